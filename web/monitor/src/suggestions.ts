// What a session shows that its user could do something about.

import type { State } from "./types";
import { plural } from "./format";

export interface Suggestion {
  id: string;
  title: string;
  advice: string;
  items: string[];
}

const SILENCE_MS = 60_000;
const MANY_FILES = 3;

export function suggestions(state: State, now: number): Suggestion[] {
  const found: Suggestion[] = [];
  for (const port of state.ports) {
    if (port.problem) {
      found.push({ id: `port-${port.port}`, title: `Port ${port.port} of the target`, advice: port.problem, items: [] });
    } else if (port.last_traffic === undefined && port.connections === 0 && now - port.since > SILENCE_MS) {
      found.push({
        id: `silent-${port.port}`,
        title: `Port ${port.port} is subscribed and saw no packet in ${Math.floor((now - port.since) / 1000)} s`,
        advice: port.filter
          ? `Does anybody send requests that ${port.filter}? Connections that were open before stay with the application: see flush_connections.`
          : "Does anybody send to this port of the target? Connections that were open before stay with the application: see flush_connections.",
        items: [],
      });
    }
    if (port.passed_on > 0) {
      found.push({
        id: `passed-${port.port}`,
        title: `${plural(port.passed_on, "request")} to port ${port.port} were wanted and went to the application`,
        advice: "The program did not take or answer them in time. Look at its own log; answer_within says how long is waited.",
        items: [],
      });
    }
  }
  const remote = state.files.filter((file) => file.side === "remote");
  const absent = remote.filter((file) => file.last_errno === "ENOENT" && file.failed === file.operations);
  if (absent.length >= MANY_FILES) {
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
  const nameless = state.names.filter((name) => name.failed === name.queries);
  if (nameless.length > 0) {
    found.push({
      id: "names",
      title: `${plural(nameless.length, "name")} could not be resolved`,
      advice: "Names are resolved as the target does. Those of this machine's network belong in feature.network.dns.filter.local.",
      items: nameless.map((name) => `${name.host} (${name.last_code})`),
    });
  }
  const unreachable = state.peers.filter((peer) => peer.failed > 0 && peer.failed === peer.connections);
  if (unreachable.length > 0) {
    found.push({
      id: "peers",
      title: `${plural(unreachable.length, "peer")} could not be reached from the target`,
      advice: "What runs on this machine belongs in feature.network.outgoing.filter.local.",
      items: unreachable.map((peer) => `${peer.names[0] ?? peer.address}:${peer.port} (${peer.last_errno ?? "failed"})`),
    });
  }
  const { requests, failed } = state.counters.incoming;
  if (requests >= 5 && failed * 5 >= requests) {
    found.push({
      id: "failing",
      title: `${failed} of ${requests} requests failed in the program`,
      advice: "Answers of 500 and above, and requests without an answer, are listed under Requests.",
      items: [],
    });
  }
  return found;
}
