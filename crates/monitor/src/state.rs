//! What a session has done, by file, name, peer and port.

use serde::{Deserialize, Serialize};

use crate::counters::Counters;
use crate::event::{Mode, Side, Transport, Word};

/// Everything that can be asked of a session at a moment. Each list has a bound, and the totals know of the rest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    pub counters: Counters,
    pub files: Vec<FileRow>,
    pub names: Vec<NameRow>,
    pub peers: Vec<PeerRow>,
    pub ports: Vec<PortRow>,
    /// The target's variables that the program has.
    pub env: Vec<(String, String)>,
    /// Files, names and peers that have no row of their own, because there are too many.
    pub without_row: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRow {
    pub path: String,
    pub side: Side,
    pub operations: u64,
    pub failed: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_errno: Option<String>,
    pub bytes: u64,
    /// All operations together.
    pub latency_us: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameRow {
    pub host: String,
    pub side: Side,
    pub queries: u64,
    pub cached: u64,
    pub failed: u64,
    pub last_code: Word,
    pub addresses: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerRow {
    pub address: String,
    pub port: u16,
    pub transport: Transport,
    pub names: Vec<String>,
    pub connections: u64,
    pub open: u64,
    pub failed: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_errno: Option<String>,
    pub sent: u64,
    pub received: u64,
    /// All connects together.
    pub latency_us: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortRow {
    pub port: u16,
    pub local_port: u16,
    pub transport: Transport,
    pub mode: Mode,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    pub checked: String,
    /// Milliseconds since 1970.
    pub since: u64,
    pub connections: u64,
    pub requests: u64,
    pub passed_on: u64,
    /// When the last connection or request came, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_traffic: Option<u64>,
    /// What is wrong, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
}
