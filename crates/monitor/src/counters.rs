//! Sums of everything that a session did.

use serde::{Deserialize, Serialize};

use crate::latency::Latencies;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    pub files: FileTotals,
    pub names: NameTotals,
    pub outgoing: OutgoingTotals,
    pub incoming: IncomingTotals,
    /// Events that there were. The last one has this number.
    pub events: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FileTotals {
    /// At the target.
    pub remote: u64,
    /// Paths that were looked at and left to this machine.
    pub local: u64,
    /// Paths that the settings hide or protect.
    pub refused: u64,
    /// Operations at the target that failed.
    pub failed: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NameTotals {
    pub queries: u64,
    /// Of these, answered from memory.
    pub cached: u64,
    /// Answers other than an address or that there is none of this kind.
    pub failed: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OutgoingTotals {
    pub connections: u64,
    pub open: u64,
    pub failed: u64,
    pub sent_bytes: u64,
    pub received_bytes: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IncomingTotals {
    pub connections: u64,
    pub open: u64,
    pub requests: u64,
    /// Answers with a status of 500 and above, and requests without an answer.
    pub failed: u64,
    pub stolen: u64,
    pub mirrored: u64,
    pub passed_on: u64,
    pub received_bytes: u64,
    pub sent_bytes: u64,
    /// From a request to the beginning of its answer.
    pub latencies: Latencies,
}
