//! What a session has done, by file, DNS name, peer and port.

use serde::{Deserialize, Serialize};

use crate::counters::Counters;
use crate::event::{Keyword, Mode, Side, Transport};

/// A snapshot of a session. The lists are bounded; the totals count everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    pub counters: Counters,
    pub files: Vec<FileRow>,
    pub dns: Vec<DnsRow>,
    pub peers: Vec<PeerRow>,
    pub ports: Vec<PortRow>,
    /// The target's variables that the program has.
    pub env: Vec<(String, String)>,
    /// Operations without a row of their own, because there are too many rows.
    pub omitted: Omitted,
}

/// Operations that have no row, by what the row would be for. They are in the totals.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Omitted {
    pub remote_files: u64,
    pub local_files: u64,
    pub refused_files: u64,
    pub dns: u64,
    pub peers: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FileRow {
    pub path: String,
    pub side: Side,
    pub operations: u64,
    pub failed: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_errno: Option<String>,
    pub bytes: u64,
    /// The sum over all operations.
    pub latency_us: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DnsRow {
    pub host: String,
    pub side: Side,
    pub queries: u64,
    pub cached: u64,
    pub failed: u64,
    pub last_code: Keyword,
    pub addresses: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerRow {
    pub address: String,
    pub port: u16,
    pub transport: Transport,
    pub dns_names: Vec<String>,
    pub connections: u64,
    pub open: u64,
    pub failed: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_errno: Option<String>,
    pub sent: u64,
    pub received: u64,
    /// The sum over all connection attempts.
    pub latency_us: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PortRow {
    pub port: u16,
    pub local_port: u16,
    pub transport: Transport,
    pub mode: Mode,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    pub redirect_check: String,
    /// Milliseconds since 1970.
    pub since: u64,
    pub connections: u64,
    pub requests: u64,
    pub passed_on: u64,
    /// The time of the last connection or request, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_traffic: Option<u64>,
    /// A description of the current problem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
}
