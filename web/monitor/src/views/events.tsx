import { useLayoutEffect, useMemo, useRef, useState, type KeyboardEvent } from "react";

import { KINDS, bytes, clock, describe, duration, handling, isProblem, kindOf, type Kind } from "../format";
import { useSearchKey } from "../parts/search";
import type { Entry } from "../types";

interface Props {
  events: Entry[];
  missed: number;
  caption: string;
  /** The list has only requests, so there is no filter by kind. */
  isRequests?: boolean;
}

/** The number of rows that are shown at first. Older ones are shown on demand. */
const INITIAL_ROWS = 300;

export function Events({ events, missed, caption, isRequests = false }: Props) {
  const [search, setSearch] = useState("");
  const [hidden, setHidden] = useState<ReadonlySet<Kind>>(new Set());
  const [onlyProblems, setOnlyProblems] = useState(false);
  const [pausedAt, setPausedAt] = useState<number>();
  const [open, setOpen] = useState<number>();
  const [shown, setShown] = useState(INITIAL_ROWS);
  const field = useSearchKey();
  const list = useRef<HTMLOListElement>(null);

  const last = events.at(-1)?.seq ?? 0;
  // A layout effect, so that the key works as soon as the list is visible.
  useLayoutEffect(() => {
    const listen = (event: globalThis.KeyboardEvent): void => {
      const inField = event.target instanceof HTMLElement && event.target.matches("input, textarea, select");
      if (event.key === "p" && !inField && !event.ctrlKey && !event.metaKey) setPausedAt((paused) => (paused === undefined ? last : undefined));
    };
    addEventListener("keydown", listen);
    return () => removeEventListener("keydown", listen);
  }, [last]);

  const visible = useMemo(() => (pausedAt === undefined ? events : events.filter((entry) => entry.seq <= pausedAt)), [events, pausedAt]);
  const found = useMemo(() => {
    const query = search.toLowerCase();
    return visible
      .filter((entry) => {
        if (hidden.has(kindOf(entry)) || (onlyProblems && !isProblem(entry))) return false;
        if (query === "") return true;
        const { what, outcome } = describe(entry);
        return `${what} ${outcome}`.toLowerCase().includes(query);
      })
      .reverse();
  }, [visible, search, hidden, onlyProblems]);
  const counts = useMemo(() => {
    const sums = new Map<Kind, number>();
    for (const entry of visible) sums.set(kindOf(entry), (sums.get(kindOf(entry)) ?? 0) + 1);
    return sums;
  }, [visible]);

  const toggle = (kind: Kind): void => {
    const next = new Set(hidden);
    if (!next.delete(kind)) next.add(kind);
    setHidden(next);
  };
  const move = (event: KeyboardEvent): void => {
    const step = event.key === "ArrowDown" || event.key === "j" ? 1 : event.key === "ArrowUp" || event.key === "k" ? -1 : 0;
    if (event.key === "Escape") setOpen(undefined);
    if (step === 0) return;
    event.preventDefault();
    const rows = [...(list.current?.querySelectorAll<HTMLElement>(".event > button") ?? [])];
    rows[rows.indexOf(document.activeElement as HTMLElement) + step]?.focus();
  };
  const pending = events.length - visible.length;
  return (
    <>
      <div className="filters">
        <input ref={field} type="search" placeholder="Search (/)" aria-label={`Search in ${caption}`} value={search} onChange={(event) => setSearch(event.target.value)} />
        {!isRequests &&
          KINDS.map(({ kind, label }) => (
            <label key={kind} className="chip">
              <input type="checkbox" checked={!hidden.has(kind)} onChange={() => toggle(kind)} />
              <span className={`kind ${kind}`} aria-hidden="true" /> {label} <small>{(counts.get(kind) ?? 0).toLocaleString()}</small>
            </label>
          ))}
        <label className="chip">
          <input type="checkbox" checked={onlyProblems} onChange={(event) => setOnlyProblems(event.target.checked)} /> Only problems
        </label>
        <button type="button" aria-pressed={pausedAt !== undefined} onClick={() => setPausedAt(pausedAt === undefined ? last : undefined)}>
          {pausedAt === undefined ? "Pause" : `Resume${pending > 0 ? ` (${pending} new)` : ""}`}
        </button>
        <span className="count" role="status">
          {found.length.toLocaleString()} shown
        </span>
      </div>
      {missed > 0 && <p className="alarm">{missed.toLocaleString()} events were missed and are not in this list. The counters include them.</p>}
      {found.length === 0 ? (
        <p className="empty">{events.length === 0 ? "Nothing has happened yet." : "Nothing matches. Change the filters above."}</p>
      ) : (
        // eslint-disable-next-line jsx-a11y/no-noninteractive-element-interactions -- arrow keys move between the buttons in it
        <ol className="events" ref={list} aria-label={caption} onKeyDown={move}>
          {found.slice(0, shown).map((entry) => (
            <Row key={entry.seq} entry={entry} isOpen={open === entry.seq} onToggle={() => setOpen(open === entry.seq ? undefined : entry.seq)} />
          ))}
        </ol>
      )}
      {found.length > shown && (
        <button type="button" className="more" onClick={() => setShown(shown * 4)}>
          Show older ({(found.length - shown).toLocaleString()})
        </button>
      )}
    </>
  );
}

function Row({ entry, isOpen, onToggle }: { entry: Entry; isOpen: boolean; onToggle: () => void }) {
  const { what, outcome } = describe(entry);
  const kind = kindOf(entry);
  const label = KINDS.find((item) => item.kind === kind)?.label ?? kind;
  return (
    <li className={isProblem(entry) ? "event problem" : "event"} data-type={entry.type}>
      <button type="button" aria-expanded={isOpen} onClick={onToggle}>
        <time dateTime={new Date(entry.time).toISOString()}>{clock(entry.time)}</time>
        <span className={`kind ${kind}`} aria-hidden="true" />
        <span className="unseen">{label}: </span>
        <span className="what">{what}</span>
        <span className="outcome">{outcome}</span>
      </button>
      {isOpen && <Fields entry={entry} />}
    </li>
  );
}

function Fields({ entry }: { entry: Entry }) {
  // For a request that the program did not get, only the request itself is known.
  const unknown = "reason" in entry && entry.type === "IncomingRequest" ? UNKNOWN : [];
  const fields = Object.entries(entry).filter(([name]) => name !== "vars" && !unknown.includes(name));
  return (
    <dl className="fields">
      {fields.map(([name, value]) => (
        <div key={name}>
          <dt>{FIELD_LABELS[name] ?? name}</dt>
          <dd>{show(name, value)}</dd>
        </div>
      ))}
    </dl>
  );
}

const UNKNOWN = ["connection", "protocol", "client", "latency_us", "received", "sent"];

const FIELD_LABELS: Record<string, string> = {
  seq: "Number",
  time: "Time",
  type: "Kind",
  latency_us: "Latency",
  duration_us: "Duration",
  errno: "Error",
  local_port: "Program's port",
  path: "Path",
  method: "Method",
  status: "Status",
  handling: "Handling",
  reason: "Reason",
  client: "Client",
  cluster: "Cluster",
  port: "Port",
  host: "Host",
  protocol: "Protocol",
  received: "Received",
  sent: "Sent",
  connection: "Connection",
  operation: "Operation",
  side: "Where",
  address: "Address",
  dns_names: "DNS names",
  addresses: "Addresses",
  transport: "Transport",
  bytes: "Bytes",
  code: "Response code",
  kind: "Record type",
  redirect_check: "Redirect check",
};

function show(name: string, value: unknown): string {
  if (name === "time") return new Date(Number(value)).toLocaleString(undefined, { hour12: false });
  if (name.endsWith("_us")) return duration(Number(value));
  if (name === "received" || name === "sent" || name === "bytes") return bytes(Number(value));
  if (name === "handling") return handling(value as "stolen");
  if (Array.isArray(value)) return value.join(", ") || "none";
  return String(value);
}
