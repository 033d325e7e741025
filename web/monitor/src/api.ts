import { useEffect, useState } from "react";

import type { Detail, Version } from "./types";

const REFRESH_MS = 2_000;
const VERSION_REFRESH_MS = 30_000;

async function get<T>(path: string): Promise<T> {
  const response = await fetch(path, { headers: { accept: "application/json" } });
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return (await response.json()) as T;
}

/** The version and the operator. The server asks the cluster in the background, so the first response does not know it yet. */
export function useVersion(): Version | undefined {
  const [version, setVersion] = useState<Version>();
  useEffect(() => {
    let isCancelled = false;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const refresh = async (): Promise<void> => {
      const next = await get<Version>("/api/version").catch(() => undefined);
      if (isCancelled) return;
      if (next) setVersion(next);
      timer = setTimeout(() => void refresh(), next?.operator.status === "unknown" ? REFRESH_MS : VERSION_REFRESH_MS);
    };
    void refresh();
    return () => {
      isCancelled = true;
      clearTimeout(timer);
    };
  }, []);
  return version;
}

export async function kill(id: string): Promise<void> {
  const response = await fetch(`/api/sessions/${encodeURIComponent(id)}/kill`, { method: "POST" });
  if (!response.ok) {
    const body = (await response.json().catch(() => ({}))) as { error?: string };
    throw new Error(body.error ?? `the server responded with ${response.status}`);
  }
}

/** Everything of a session except its events, refreshed while the session is live. The last response is kept. */
export function useDetail(id: string, isLive: boolean): Detail | undefined {
  const [detail, setDetail] = useState<Detail>();
  useEffect(() => {
    let isCancelled = false;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const refresh = async (): Promise<void> => {
      const next = await get<Detail>(`/api/sessions/${encodeURIComponent(id)}`).catch(() => undefined);
      if (isCancelled) return;
      if (next) setDetail(next);
      if (isLive) timer = setTimeout(() => void refresh(), REFRESH_MS);
    };
    void refresh();
    return () => {
      isCancelled = true;
      clearTimeout(timer);
    };
  }, [id, isLive]);
  return detail?.info.session_id === id || detail?.info.session_id === id.replace(/-recording$/, "") ? detail : undefined;
}
