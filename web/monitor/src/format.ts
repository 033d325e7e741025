import type { Entry, Handling, Status } from "./types";

export function bytes(count: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let value = count;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? value : value.toFixed(value < 10 ? 1 : 0)} ${units[unit]}`;
}

export function duration(microseconds: number): string {
  if (microseconds < 1_000) return `${Math.round(microseconds)} µs`;
  if (microseconds < 1_000_000) return `${(microseconds / 1_000).toFixed(microseconds < 10_000 ? 1 : 0)} ms`;
  return `${(microseconds / 1_000_000).toFixed(1)} s`;
}

/** The two largest units. */
export function age(milliseconds: number): string {
  const seconds = Math.max(0, Math.floor(milliseconds / 1000));
  const [days, hours, minutes] = [Math.floor(seconds / 86400), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60];
  if (days) return `${days}d ${hours}h`;
  if (hours) return `${hours}h ${minutes}m`;
  if (minutes) return `${minutes}m ${seconds % 60}s`;
  return `${seconds}s`;
}

export const clock = (time: number): string =>
  new Date(time).toLocaleTimeString(undefined, { hour12: false }) + "." + String(time % 1000).padStart(3, "0");

export const plural = (count: number, noun: string, several = `${noun}s`): string => `${count.toLocaleString()} ${count === 1 ? noun : several}`;

const HANDLING: Record<Handling, string> = { stolen: "stolen", mirrored: "mirrored", passed_on: "passed on", lost: "lost" };
export const handling = (value: Handling): string => HANDLING[value];

/** The filter that an event belongs to. */
export type Kind = "requests" | "incoming" | "outgoing" | "files" | "dns" | "session";

export const KINDS: { kind: Kind; label: string }[] = [
  { kind: "requests", label: "Requests" },
  { kind: "incoming", label: "Incoming" },
  { kind: "outgoing", label: "Outgoing" },
  { kind: "files", label: "Files" },
  { kind: "dns", label: "DNS" },
  { kind: "session", label: "Session" },
];

export function kindOf(entry: Entry): Kind {
  switch (entry.type) {
    case "IncomingRequest":
    case "RequestsPassedOn":
      return "requests";
    case "IncomingConnection":
    case "IncomingClosed":
    case "PortSubscription":
      return "incoming";
    case "OutgoingConnection":
    case "OutgoingClosed":
      return "outgoing";
    case "FileOp":
      return "files";
    case "DnsQuery":
      return "dns";
    default:
      return "session";
  }
}

export function isProblem(entry: Entry): boolean {
  switch (entry.type) {
    case "IncomingRequest":
      return entry.status === undefined || entry.status >= 500;
    case "RequestsPassedOn":
      return true;
    case "IncomingConnection":
      return !entry.accepted;
    case "OutgoingConnection":
    case "FileOp":
      return entry.errno !== undefined;
    case "DnsQuery":
      return entry.code !== "NOERROR";
    case "Notice":
      return entry.level === "warning";
    default:
      return false;
  }
}

/** Describes an event in one line: what happened and its outcome, with several clusters also the cluster. */
export function describe(entry: Entry): { what: string; outcome: string } {
  const { what, outcome } = parts(entry);
  const cluster = "cluster" in entry ? entry.cluster : undefined;
  return { what, outcome: [outcome, cluster].filter(Boolean).join(" · ") };
}

function parts(entry: Entry): { what: string; outcome: string } {
  switch (entry.type) {
    case "IncomingRequest":
      return {
        what: `${entry.method} ${entry.path}`,
        outcome: entry.reason
          ? `${handling(entry.handling)}: ${entry.reason}`
          : `${entry.status ?? "no response"} · ${duration(entry.latency_us)} · ${handling(entry.handling)}`,
      };
    case "RequestsPassedOn":
      return { what: `port ${entry.port}: ${plural(entry.count, "request")} passed on`, outcome: entry.reason };
    case "IncomingConnection":
      return {
        what: `port ${entry.port} from ${entry.client}`,
        outcome: entry.accepted ? handling(entry.handling) : "not accepted by the program",
      };
    case "IncomingClosed":
      return {
        what: `port ${entry.port} closed`,
        outcome: `${bytes(entry.received)} in · ${bytes(entry.sent)} out · ${duration(entry.duration_us)}`,
      };
    case "PortSubscription":
      return {
        what: `port ${entry.port} → ${entry.local_port}: ${entry.mode}`,
        outcome: entry.filter ? `requests that ${entry.filter}` : "all traffic",
      };
    case "OutgoingConnection":
      return {
        what: `${endpoint(entry.address, entry.port)}${entry.dns_names?.length ? ` (${entry.dns_names.join(", ")})` : ""}`,
        outcome: entry.errno ?? `connected · ${duration(entry.latency_us)}`,
      };
    case "OutgoingClosed":
      return {
        what: `${endpoint(entry.address, entry.port)} closed`,
        outcome: `${bytes(entry.sent)} out · ${bytes(entry.received)} in · ${duration(entry.duration_us)}`,
      };
    case "FileOp":
      return {
        what: `${entry.operation} ${entry.path}`,
        outcome:
          entry.errno ??
          [entry.side, entry.latency_us === undefined ? "" : duration(entry.latency_us)].filter(Boolean).join(" · "),
      };
    case "DnsQuery":
      return {
        what: `${entry.host} ${entry.kind}`,
        outcome: entry.code === "NOERROR" ? entry.addresses.join(", ") || "no address of this kind" : entry.code,
      };
    case "EnvVar":
      return { what: "environment", outcome: plural(entry.vars.length, "variable") };
    case "LayerConnected":
      return { what: `process ${entry.process_name} (${entry.pid})`, outcome: "started" };
    case "LayerDisconnected":
      return { what: `process ${entry.pid}`, outcome: "ended" };
    case "Notice":
      return { what: entry.text, outcome: "" };
    default:
      return { what: (entry as { type: string }).type, outcome: "" };
  }
}

export const endpoint = (address: string, port: number): string =>
  port === 0 ? address : address.includes(":") ? `[${address}]:${port}` : `${address}:${port}`;

export function statusName(status: Status): string {
  return status.replace("_", " ");
}
