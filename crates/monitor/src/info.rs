//! Information about a session.

use serde::{Deserialize, Serialize};

use crate::counters::Counters;
use crate::state::PortRow;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionInfo {
    pub session_id: String,
    pub protocol_version: u32,
    pub target: String,
    /// In the format of RFC 3339.
    pub started_at: String,
    pub standin_version: String,
    pub is_operator: bool,
    /// The clusters of the session. Empty for a target on this machine.
    pub clusters: Vec<String>,
    pub processes: Vec<ProcessInfo>,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The `standin` process.
    pub supervisor: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_path: Option<String>,
    pub health: Health,
    pub ports: Vec<PortRow>,
    pub counters: Counters,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessInfo {
    pub pid: u32,
    pub process_name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    pub status: Status,
    /// The reason, unless the session is healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Healthy,
    /// The connection to the agent is being restored.
    Reconnecting,
    /// There is no agent or no target.
    Lost,
    /// The session has ended.
    Ended,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            status: Status::Healthy,
            reason: None,
        }
    }
}

/// One key of the effective configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigValue {
    pub key: String,
    /// As JSON. Secrets are `(hidden)`.
    pub value: String,
    /// Where the value comes from: `default`, a location in a file, a variable, a flag, or what added it.
    pub reason: String,
    pub is_default: bool,
}
