//! Totals of everything that a session did.

use serde::{Deserialize, Serialize};

use crate::latency::Latencies;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    pub files: FileTotals,
    pub dns: DnsTotals,
    pub outgoing: OutgoingTotals,
    pub incoming: IncomingTotals,
    /// The number of events so far, which is the number of the last one.
    pub events: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FileTotals {
    /// Operations at the target.
    pub remote: u64,
    /// Operations on this machine.
    pub local: u64,
    /// Operations that the settings refuse, because they hide or protect the path.
    pub refused: u64,
    /// Operations at the target that failed.
    pub failed: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DnsTotals {
    pub queries: u64,
    /// Queries that were answered from the cache.
    pub cached: u64,
    /// Queries with a response code other than `NOERROR`.
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
    /// Responses with a status of 500 and above, and requests without a response.
    pub failed: u64,
    pub stolen: u64,
    pub mirrored: u64,
    pub passed_on: u64,
    pub received_bytes: u64,
    pub sent_bytes: u64,
    /// From a request to the beginning of its response.
    pub latencies: Latencies,
}
