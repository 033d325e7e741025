import { bytes, duration, endpoint, plural } from "../format";
import { DataTable, type Column } from "../parts/table";
import type { Detail, DnsRow, FileRow, PeerRow } from "../types";

const average = (total: number, count: number): string => (total > 0 && count > 0 ? duration(total / count) : "–");

const FILES: Column<FileRow>[] = [
  { name: "Path", cell: (row) => <code>{row.path}</code>, by: (row) => row.path },
  { name: "Where", cell: (row) => <span className={`tag ${row.side}`}>{row.side}</span>, by: (row) => row.side },
  { name: "Operations", cell: (row) => row.operations.toLocaleString(), by: (row) => row.operations, isNumber: true },
  { name: "Failed", cell: (row) => (row.failed > 0 ? <span className="bad">{`${row.failed} (${row.last_errno ?? "?"})`}</span> : "–"), by: (row) => row.failed, isNumber: true },
  { name: "Average", cell: (row) => average(row.latency_us, row.operations), by: (row) => row.latency_us / Math.max(1, row.operations), isNumber: true },
  { name: "Bytes", cell: (row) => (row.bytes > 0 ? bytes(row.bytes) : "–"), by: (row) => row.bytes, isNumber: true },
];

/** Operations that are counted, but not in a row of a table. */
function Omitted({ operations }: { operations: [number, string][] }) {
  const found = operations.filter(([count]) => count > 0);
  if (found.length === 0) return null;
  const texts = found.map(([count, what]) => `${plural(count, "operation")} on further ${what}`);
  return <p className="hint">Not listed, because there are too many: {texts.join("; ")}. They are in the totals.</p>;
}

export function Files({ detail }: { detail: Detail }) {
  const rank = { remote: 0, refused: 1, local: 2 };
  const rows = detail.state.files.toSorted((one, other) => rank[one.side] - rank[other.side] || other.failed - one.failed || one.path.localeCompare(other.path));
  const { remote_files, refused_files, local_files } = detail.state.omitted;
  return (
    <>
      <Omitted operations={[[remote_files, "files of the target"], [refused_files, "refused paths"], [local_files, "files of this machine"]]} />
      <DataTable
        caption="Files"
        rows={rows}
        columns={FILES}
        keyOf={(row) => `${row.side} ${row.path}`}
        textOf={(row) => `${row.path} ${row.side} ${row.last_errno ?? ""}`}
        isProblem={(row) => row.failed > 0}
        empty="The session has used no files."
      />
    </>
  );
}

const DNS: Column<DnsRow>[] = [
  { name: "DNS name", cell: (row) => <code>{row.host}</code>, by: (row) => row.host },
  { name: "Where", cell: (row) => <span className={`tag ${row.side}`}>{row.side}</span>, by: (row) => row.side },
  { name: "Queries", cell: (row) => row.queries.toLocaleString(), by: (row) => row.queries, isNumber: true },
  { name: "Cached", cell: (row) => row.cached.toLocaleString(), by: (row) => row.cached, isNumber: true },
  { name: "Failed", cell: (row) => (row.failed > 0 ? <span className="bad">{`${row.failed} (${row.last_code})`}</span> : "–"), by: (row) => row.failed, isNumber: true },
  { name: "Addresses", cell: (row) => row.addresses.join(", ") || "–" },
];

export function Dns({ detail }: { detail: Detail }) {
  return (
    <>
      <Omitted operations={[[detail.state.omitted.dns, "DNS names"]]} />
      <DataTable
        caption="DNS"
        rows={detail.state.dns}
        columns={DNS}
        keyOf={(row) => row.host}
        textOf={(row) => `${row.host} ${row.addresses.join(" ")} ${row.last_code}`}
        isProblem={(row) => row.failed > 0}
        empty="The session has made no DNS queries."
      />
    </>
  );
}

const PEERS: Column<PeerRow>[] = [
  {
    name: "Peer",
    cell: (row) => (
      <>
        <code>{endpoint(row.address, row.port)}</code>
        {row.dns_names.length > 0 && <small> {row.dns_names.join(", ")}</small>}
      </>
    ),
    by: (row) => endpoint(row.address, row.port),
  },
  { name: "Transport", cell: (row) => row.transport, by: (row) => row.transport },
  { name: "Connections", cell: (row) => row.connections.toLocaleString(), by: (row) => row.connections, isNumber: true },
  { name: "Open", cell: (row) => row.open.toLocaleString(), by: (row) => row.open, isNumber: true },
  { name: "Failed", cell: (row) => (row.failed > 0 ? <span className="bad">{`${row.failed} (${row.last_errno ?? "?"})`}</span> : "–"), by: (row) => row.failed, isNumber: true },
  { name: "Connect", cell: (row) => average(row.latency_us, row.connections), by: (row) => row.latency_us / Math.max(1, row.connections), isNumber: true },
  { name: "Sent", cell: (row) => bytes(row.sent), by: (row) => row.sent, isNumber: true },
  { name: "Received", cell: (row) => bytes(row.received), by: (row) => row.received, isNumber: true },
];

export function Peers({ detail }: { detail: Detail }) {
  return (
    <>
      <Omitted operations={[[detail.state.omitted.peers, "peers"]]} />
      <DataTable
        caption="Connections through the target"
        rows={detail.state.peers}
        columns={PEERS}
        keyOf={(row) => `${row.transport} ${endpoint(row.address, row.port)}`}
        textOf={(row) => `${row.address}:${row.port} ${row.dns_names.join(" ")} ${row.last_errno ?? ""}`}
        isProblem={(row) => row.failed > 0}
        empty="The session has made no connections through the target."
      />
    </>
  );
}
