import { useEffect, useState } from "react";

import type { Detail, Version } from "./types";

const REFRESH_MS = 2_000;

async function get<T>(path: string): Promise<T> {
  const response = await fetch(path, { headers: { accept: "application/json" } });
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return (await response.json()) as T;
}

export const getVersion = (): Promise<Version> => get<Version>("/api/version");

export async function kill(id: string): Promise<void> {
  const response = await fetch(`/api/sessions/${encodeURIComponent(id)}/kill`, { method: "POST" });
  if (!response.ok) {
    const answer = (await response.json().catch(() => ({}))) as { error?: string };
    throw new Error(answer.error ?? `the server answered ${response.status}`);
  }
}

/** Everything of a session but its events, asked again and again as long as it lives. The last answer stays. */
export function useDetail(id: string, isLive: boolean): Detail | undefined {
  const [detail, setDetail] = useState<Detail>();
  useEffect(() => {
    let over = false;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const ask = async (): Promise<void> => {
      const answer = await get<Detail>(`/api/sessions/${encodeURIComponent(id)}`).catch(() => undefined);
      if (over) return;
      if (answer) setDetail(answer);
      if (isLive) timer = setTimeout(() => void ask(), REFRESH_MS);
    };
    void ask();
    return () => {
      over = true;
      clearTimeout(timer);
    };
  }, [id, isLive]);
  return detail?.info.session_id === id || detail?.info.session_id === id.replace(/-recording$/, "") ? detail : undefined;
}
