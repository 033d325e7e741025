import { useCallback, useEffect, useState } from "react";

/** The fragment of the URL, so that "back" works and a view can be bookmarked. */
export function useHash(): [string, (hash: string) => void] {
  const read = (): string => decodeURIComponent(location.hash.slice(1));
  const [hash, setHash] = useState(read);
  useEffect(() => {
    const listen = (): void => setHash(read());
    addEventListener("hashchange", listen);
    return () => removeEventListener("hashchange", listen);
  }, []);
  const change = useCallback((next: string) => {
    location.hash = next;
  }, []);
  return [hash, change];
}

/** The current time, updated every second. */
export function useNow(): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1_000);
    return () => clearInterval(timer);
  }, []);
  return now;
}

export type Theme = "system" | "light" | "dark";
const THEMES: Theme[] = ["system", "light", "dark"];

export function useTheme(): [Theme, () => void] {
  const [theme, setTheme] = useState<Theme>(() => {
    const stored = localStorage.getItem("theme");
    return THEMES.find((theme) => theme === stored) ?? "system";
  });
  useEffect(() => {
    document.documentElement.dataset["theme"] = theme;
    localStorage.setItem("theme", theme);
  }, [theme]);
  const next = useCallback(() => {
    setTheme((theme) => THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length] ?? "system");
  }, []);
  return [theme, next];
}
