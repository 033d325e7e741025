// All sessions, as the server tells them. React reads a snapshot that changes a few times a second at most.

import type { Entry, News, SessionInfo } from "./types";

/** Events of a session that the page keeps. A recording may have more. */
const KEPT = 20_000;
const PAUSE_MS = 100;
const LONGEST_WAIT_MS = 5_000;

export interface Session {
  info: SessionInfo;
  events: Entry[];
  missed: number;
  /** When it ended, as far as this page has seen. */
  ended?: number;
}

export type Connection = "connecting" | "connected" | "lost";

export interface Snapshot {
  sessions: Session[];
  connection: Connection;
}

export class Store {
  private readonly sessions = new Map<string, Session>();
  private connection: Connection = "connecting";
  private snapshot: Snapshot = { sessions: [], connection: "connecting" };
  private readonly listeners = new Set<() => void>();
  private timer: ReturnType<typeof setTimeout> | undefined;
  private wait = 250;

  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  readonly get = (): Snapshot => this.snapshot;

  /** Connects, and again whenever the connection is lost: what is here already is not sent again. */
  connect(): void {
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const after = [...this.sessions]
      .filter(([, session]) => session.ended === undefined)
      .map(([id, session]) => `${id}:${session.events.at(-1)?.seq ?? 0}`)
      .join(",");
    const socket = new WebSocket(`${scheme}://${location.host}/ws?after=${encodeURIComponent(after)}`);
    socket.onopen = () => {
      this.wait = 250;
      this.connection = "connected";
      this.changed();
    };
    socket.onmessage = (message) => {
      this.take(JSON.parse(String(message.data)) as News);
      this.changed();
    };
    socket.onclose = () => {
      this.connection = "lost";
      this.changed();
      setTimeout(() => this.connect(), this.wait);
      this.wait = Math.min(this.wait * 2, LONGEST_WAIT_MS);
    };
  }

  /** Takes a session that has ended out of the list. */
  forget(id: string): void {
    this.sessions.delete(id);
    this.changed();
  }

  take(news: News): void {
    switch (news.type) {
      case "sessions": {
        const there = new Set(news.data.map((info) => info.session_id));
        for (const [id, session] of this.sessions) {
          if (!there.has(id)) end(session);
        }
        news.data.forEach((info) => this.put(info));
        break;
      }
      case "session_added":
      case "session_changed":
        this.put(news.data);
        break;
      case "session_removed": {
        const session = this.sessions.get(news.session_id);
        if (session) end(session);
        break;
      }
      case "event": {
        const session = this.sessions.get(news.session_id);
        if (session && news.data.seq > (session.events.at(-1)?.seq ?? 0)) {
          session.events.push(news.data);
          if (session.events.length > KEPT * 1.2) session.events = session.events.slice(-KEPT);
        }
        break;
      }
      case "missed": {
        const session = this.sessions.get(news.session_id);
        if (session) session.missed += news.count;
        break;
      }
      case "counters": {
        const session = this.sessions.get(news.session_id);
        if (session) session.info = { ...session.info, counters: news.data };
        break;
      }
    }
  }

  private put(info: SessionInfo): void {
    const session = this.sessions.get(info.session_id);
    if (session) {
      session.info = info;
      session.ended = undefined;
    } else {
      this.sessions.set(info.session_id, { info, events: [], missed: 0 });
    }
  }

  private changed(): void {
    this.timer ??= setTimeout(() => {
      this.timer = undefined;
      const sessions = [...this.sessions.values()].map((session) => ({ ...session, events: session.events.slice() }));
      sessions.sort(
        (one, other) =>
          Number(one.ended !== undefined) - Number(other.ended !== undefined) ||
          one.info.started_at.localeCompare(other.info.started_at),
      );
      this.snapshot = { sessions, connection: this.connection };
      this.listeners.forEach((listener) => listener());
    }, PAUSE_MS);
  }
}

function end(session: Session): void {
  if (session.ended !== undefined) return;
  session.ended = Date.now();
  session.info = { ...session.info, processes: [], health: { status: "ended", reason: "the session has ended" } };
}
