// The types of the local API, as in crates/monitor.

export type Side = "local" | "remote" | "refused";
export type Transport = "tcp" | "udp" | "unix";
export type Handling = "stolen" | "mirrored" | "passed_on" | "lost";
export type Status = "healthy" | "reconnecting" | "lost" | "ended" | "unresponsive" | "other_version" | "unknown";

interface EventBase {
  seq: number;
  /** Milliseconds since 1970. */
  time: number;
}

export interface Request extends EventBase {
  type: "IncomingRequest";
  connection: number;
  port: number;
  method: string;
  path: string;
  protocol: string;
  host?: string;
  status?: number;
  handling: Handling;
  /** Why the program did not get it, if it did not. */
  reason?: string;
  client: string;
  latency_us: number;
  received: number;
  sent: number;
  cluster?: string;
}

export type Entry =
  | Request
  | (EventBase &
      (
        | {
            type: "FileOp";
            path: string;
            operation: string;
            side: Side;
            errno?: string;
            latency_us?: number;
            bytes?: number;
          }
        | {
            type: "DnsQuery";
            host: string;
            kind: string;
            side: Side;
            code: string;
            addresses: string[];
            latency_us: number;
          }
        | {
            type: "OutgoingConnection";
            connection: number;
            address: string;
            port: number;
            transport: Transport;
            dns_names?: string[];
            errno?: string;
            latency_us: number;
          }
        | {
            type: "OutgoingClosed";
            connection: number;
            address: string;
            port: number;
            sent: number;
            received: number;
            duration_us: number;
          }
        | {
            type: "PortSubscription";
            port: number;
            local_port: number;
            transport: Transport;
            mode: "steal" | "mirror";
            filter?: string;
            redirect_check: string;
            cluster?: string;
          }
        | {
            type: "IncomingConnection";
            connection: number;
            port: number;
            transport: Transport;
            client: string;
            handling: Handling;
            accepted: boolean;
            latency_us: number;
            cluster?: string;
          }
        | {
            type: "IncomingClosed";
            connection: number;
            port: number;
            received: number;
            sent: number;
            duration_us: number;
          }
        | { type: "RequestsPassedOn"; port: number; count: number; lost: number; reason: string; cluster?: string }
        | { type: "EnvVar"; vars: [string, string][] }
        | { type: "LayerConnected"; pid: number; process_name: string }
        | { type: "LayerDisconnected"; pid: number }
        | { type: "Notice"; level: "info" | "warning"; text: string }
      ));

export interface Counters {
  files: {
    remote: number;
    local: number;
    refused: number;
    failed: number;
    read_bytes: number;
    written_bytes: number;
  };
  dns: { queries: number; cached: number; failed: number };
  outgoing: { connections: number; open: number; failed: number; sent_bytes: number; received_bytes: number };
  incoming: {
    connections: number;
    open: number;
    requests: number;
    failed: number;
    stolen: number;
    mirrored: number;
    passed_on: number;
    received_bytes: number;
    sent_bytes: number;
    latencies: number[];
  };
  events: number;
}

export interface Port {
  port: number;
  local_port: number;
  transport: Transport;
  mode: "steal" | "mirror";
  filter?: string;
  redirect_check: string;
  since: number;
  connections: number;
  requests: number;
  passed_on: number;
  last_traffic?: number;
  problem?: string;
  cluster?: string;
}

export interface SessionInfo {
  session_id: string;
  protocol_version: number;
  target: string;
  started_at: string;
  standin_version: string;
  is_operator: boolean;
  clusters: string[];
  processes: { pid: number; process_name: string }[];
  command: string[];
  supervisor: number;
  config_path?: string;
  health: { status: Status; reason?: string };
  ports: Port[];
  counters: Counters;
}

export interface FileRow {
  path: string;
  side: Side;
  operations: number;
  failed: number;
  last_errno?: string;
  bytes: number;
  latency_us: number;
}

export interface DnsRow {
  host: string;
  side: Side;
  queries: number;
  cached: number;
  failed: number;
  last_code: string;
  addresses: string[];
}

export interface PeerRow {
  address: string;
  port: number;
  transport: Transport;
  dns_names: string[];
  connections: number;
  open: number;
  failed: number;
  last_errno?: string;
  sent: number;
  received: number;
  latency_us: number;
}

export interface State {
  counters: Counters;
  files: FileRow[];
  dns: DnsRow[];
  peers: PeerRow[];
  ports: Port[];
  env: [string, string][];
  omitted: Omitted;
}

/** Operations that have no row, because there are too many rows. */
export interface Omitted {
  remote_files: number;
  local_files: number;
  refused_files: number;
  dns: number;
  peers: number;
}

export interface ConfigValue {
  key: string;
  value: string;
  reason: string;
  is_default: boolean;
}

export interface Detail {
  info: SessionInfo;
  state: State;
  config: ConfigValue[];
  shows_env_values: boolean;
}

export interface Version {
  version: string;
  licence: string;
  operator: Operator;
}

/** The operator of the cluster that `standin exec` would use. */
export type Operator =
  | { status: "unknown" }
  | { status: "not_configured"; reason: string }
  | { status: "absent"; cluster: string }
  | { status: "unavailable"; reason: string }
  | { status: "running"; cluster: string; version: string; license?: License };

export interface License {
  name: string;
  organization: string;
  expire_at: string | null;
  subscription_id: string | null;
}

export type Message =
  | { type: "sessions"; data: SessionInfo[] }
  | { type: "session_added"; data: SessionInfo }
  | { type: "session_changed"; data: SessionInfo }
  | { type: "session_removed"; session_id: string }
  | { type: "event"; session_id: string; data: Entry }
  | { type: "missed"; session_id: string; count: number }
  | { type: "counters"; session_id: string; data: Counters };
