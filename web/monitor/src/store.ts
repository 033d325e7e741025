// All sessions, as the server reports them. React reads a snapshot that changes at most a few times per second.

import type { Entry, Message, SessionInfo } from "./types";

/** The number of events that the page retains for each session. A recording may have more. */
const MAX_EVENTS = 20_000;
const SNAPSHOT_INTERVAL_MS = 100;
const MIN_BACKOFF_MS = 250;
const MAX_BACKOFF_MS = 5_000;

export interface Session {
  info: SessionInfo;
  events: Entry[];
  missed: number;
  /** When this page noticed that the session has ended. */
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
  private backoff = MIN_BACKOFF_MS;

  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  readonly get = (): Snapshot => this.snapshot;

  /** Connects, and reconnects when the connection is lost. Events that the page already has are not sent again. */
  connect(): void {
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const after = [...this.sessions]
      .filter(([, session]) => session.ended === undefined)
      .map(([id, session]) => `${id}:${session.events.at(-1)?.seq ?? 0}`)
      .join(",");
    const socket = new WebSocket(`${scheme}://${location.host}/ws?after=${encodeURIComponent(after)}`);
    socket.onopen = () => {
      this.backoff = MIN_BACKOFF_MS;
      this.connection = "connected";
      this.scheduleSnapshot();
    };
    socket.onmessage = (message) => {
      this.apply(JSON.parse(String(message.data)) as Message);
      this.scheduleSnapshot();
    };
    socket.onclose = () => {
      this.connection = "lost";
      this.scheduleSnapshot();
      setTimeout(() => this.connect(), this.backoff);
      this.backoff = Math.min(this.backoff * 2, MAX_BACKOFF_MS);
    };
  }

  /** Removes an ended session from the list. */
  remove(id: string): void {
    this.sessions.delete(id);
    this.scheduleSnapshot();
  }

  apply(message: Message): void {
    switch (message.type) {
      case "sessions": {
        const current = new Set(message.data.map((info) => info.session_id));
        for (const [id, session] of this.sessions) {
          if (!current.has(id)) end(session);
        }
        message.data.forEach((info) => this.put(info));
        break;
      }
      case "session_added":
      case "session_changed":
        this.put(message.data);
        break;
      case "session_removed": {
        const session = this.sessions.get(message.session_id);
        if (session) end(session);
        break;
      }
      case "event": {
        const session = this.sessions.get(message.session_id);
        if (session && message.data.seq > (session.events.at(-1)?.seq ?? 0)) {
          session.events.push(message.data);
          if (session.events.length > MAX_EVENTS * 1.2) session.events = session.events.slice(-MAX_EVENTS);
        }
        break;
      }
      case "missed": {
        const session = this.sessions.get(message.session_id);
        if (session) session.missed += message.count;
        break;
      }
      case "counters": {
        const session = this.sessions.get(message.session_id);
        if (session) session.info = { ...session.info, counters: message.data };
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

  private scheduleSnapshot(): void {
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
    }, SNAPSHOT_INTERVAL_MS);
  }
}

function end(session: Session): void {
  if (session.ended !== undefined) return;
  session.ended = Date.now();
  session.info = { ...session.info, processes: [], health: { status: "ended", reason: "the session has ended" } };
}
