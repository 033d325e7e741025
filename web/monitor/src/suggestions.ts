// Problems of a session that its user can fix, with advice.

import type { State } from "./types";
import { plural } from "./format";

export interface Suggestion {
  id: string;
  title: string;
  advice: string;
  items: string[];
}

const SILENCE_MS = 60_000;
const MIN_ABSENT_FILES = 3;

export function suggestions(state: State, now: number): Suggestion[] {
  const found: Suggestion[] = [];
  for (const port of state.ports) {
    if (port.problem) {
      found.push({ id: `port-${port.port}`, title: `Port ${port.port} of the target`, advice: port.problem, items: [] });
    } else if (port.last_traffic === undefined && port.connections === 0 && now - port.since > SILENCE_MS) {
      found.push({
        id: `silent-${port.port}`,
        title: `Port ${port.port} is subscribed and received nothing for ${Math.floor((now - port.since) / 1000)} s`,
        advice: port.filter
          ? `Do clients send requests that ${port.filter}? Connections that were open before stay with the application: see flush_connections.`
          : "Do clients send to this port of the target? Connections that were open before stay with the application: see flush_connections.",
        items: [],
      });
    }
    if (port.passed_on > 0) {
      found.push({
        id: `passed-${port.port}`,
        title: `${plural(port.passed_on, "request")} to port ${port.port} matched and went to the application instead`,
        advice: "The program did not accept or answer them in time. Check its own log; response_timeout sets the timeout.",
        items: [],
      });
    }
  }
  const remote = state.files.filter((file) => file.side === "remote");
  const absent = remote.filter((file) => file.last_errno === "ENOENT" && file.failed === file.operations);
  if (absent.length >= MIN_ABSENT_FILES) {
    found.push({
      id: "absent",
      title: `These ${absent.length} files were read remotely and do not exist there`,
      advice: "If they are files of this machine, name them in feature.fs.local.",
      items: absent.map((file) => file.path),
    });
  }
  const denied = remote.filter((file) => file.last_errno === "EACCES" || file.last_errno === "EPERM");
  if (denied.length > 0) {
    found.push({
      id: "denied",
      title: `${plural(denied.length, "file")} of the target cannot be read by its own user`,
      advice: "The session has the rights of the target's process. If the files are this machine's, name them in feature.fs.local.",
      items: denied.map((file) => file.path),
    });
  }
  const protectedFiles = state.files.filter((file) => file.last_errno === "EROFS");
  if (protectedFiles.length > 0) {
    found.push({
      id: "protected",
      title: `${plural(protectedFiles.length, "file")} of the target may only be read`,
      advice: "To write them there, use feature.fs.mode write, or name them in feature.fs.read_write; in feature.fs.local they are this machine's.",
      items: protectedFiles.map((file) => file.path),
    });
  }
  const unresolved = state.dns.filter((row) => row.failed === row.queries);
  if (unresolved.length > 0) {
    found.push({
      id: "dns",
      title: `${plural(unresolved.length, "DNS name")} could not be resolved`,
      advice: "DNS names are resolved as at the target. Those of this machine's network belong in feature.network.dns.filter.local.",
      items: unresolved.map((row) => `${row.host} (${row.last_code})`),
    });
  }
  const unreachable = state.peers.filter((peer) => peer.failed > 0 && peer.failed === peer.connections);
  if (unreachable.length > 0) {
    found.push({
      id: "peers",
      title: `${plural(unreachable.length, "peer")} could not be reached from the target`,
      advice: "Services of this machine belong in feature.network.outgoing.filter.local.",
      items: unreachable.map((peer) => `${peer.dns_names[0] ?? peer.address}:${peer.port} (${peer.last_errno ?? "failed"})`),
    });
  }
  const { requests, failed } = state.counters.incoming;
  if (requests >= 5 && failed * 5 >= requests) {
    found.push({
      id: "failing",
      title: `${failed} of ${requests} requests failed in the program`,
      advice: "Responses with 500 and above, and requests without a response, are listed under Requests.",
      items: [],
    });
  }
  return found;
}
