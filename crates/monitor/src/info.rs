//! Information about a session.
//!
//! A program may read the sessions of an earlier or a later release. Within one version of the API each field that is missing
//! has a default. Of a session with another version only what identifies it is read.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::PROTOCOL_VERSION;
use crate::counters::Counters;
use crate::state::PortRow;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
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

impl SessionInfo {
    /// Reads the response to `GET /info` of any version of the API.
    ///
    /// # Errors
    /// When the text is not JSON, or a field of this version of the API has another type.
    pub fn parse(json: &[u8]) -> Result<Self, serde_json::Error> {
        let value: Value = serde_json::from_slice(json)?;
        match value.get("protocol_version").and_then(Value::as_u64) {
            Some(version) if version == u64::from(PROTOCOL_VERSION) => {
                serde_json::from_value(value)
            }
            version => Ok(Self::of_other_version(&value, version)),
        }
    }

    /// Whether all of the session can be read, and not only what identifies it.
    #[must_use]
    pub fn is_supported(&self) -> bool {
        self.protocol_version == PROTOCOL_VERSION
    }

    fn of_other_version(value: &Value, version: Option<u64>) -> Self {
        let text = |key: &str| {
            let text = value.get(key).and_then(Value::as_str);
            text.unwrap_or_default().to_owned()
        };
        let version = version.and_then(|version| u32::try_from(version).ok());
        let standin_version = text("standin_version");
        let reason = format!(
            "this session is of release {standin_version}, with another version of the local API; use the `standin` of that \
             release for it"
        );
        Self {
            session_id: text("session_id"),
            protocol_version: version.unwrap_or_default(),
            target: text("target"),
            started_at: text("started_at"),
            standin_version,
            health: Health {
                status: Status::OtherVersion,
                reason: Some(reason),
            },
            ..Self::default()
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessInfo {
    pub pid: u32,
    pub process_name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Health {
    pub status: Status,
    /// The reason, unless the session is healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    #[default]
    Healthy,
    /// The connection to the agent is being restored.
    Reconnecting,
    /// There is no agent or no target.
    Lost,
    /// The session has ended.
    Ended,
    /// The session does not respond, for example because it was stopped. Set by readers.
    Unresponsive,
    /// The session has another version of the API. Set by readers.
    OtherVersion,
    /// A status that this release does not know.
    #[serde(other)]
    Unknown,
}

/// One key of the effective configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConfigValue {
    pub key: String,
    /// As JSON. Secrets are `(hidden)`.
    pub value: String,
    /// Where the value comes from: `default`, a location in a file, a variable, a flag, or what added it.
    pub reason: String,
    pub is_default: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The response of the first release that had this version of the API. It never changes.
    const FIRST: &[u8] = include_bytes!("info/first.json");

    #[test]
    fn the_response_of_the_first_release_is_read() {
        let info = SessionInfo::parse(FIRST).unwrap();
        assert!(info.is_supported());
        assert_eq!(info.session_id, "5eed0000c0ffee01");
        assert_eq!(info.processes[0].process_name, "node");
        assert_eq!(info.ports[0].requests, 12);
        assert_eq!(info.counters.incoming.stolen, 12);
        let mut written = serde_json::to_value(&info).unwrap();
        let first: Value = serde_json::from_slice(FIRST).unwrap();
        // Nothing of it is lost or renamed.
        keep_keys_of(&mut written, &first);
        assert_eq!(written, first);
    }

    /// Removes the keys that `other` does not have.
    fn keep_keys_of(value: &mut Value, other: &Value) {
        match (value, other) {
            (Value::Object(fields), Value::Object(others)) => {
                fields.retain(|key, _| others.contains_key(key));
                for (key, field) in fields {
                    keep_keys_of(field, &others[key]);
                }
            }
            (Value::Array(items), Value::Array(others)) => {
                for (item, other) in items.iter_mut().zip(others) {
                    keep_keys_of(item, other);
                }
            }
            _ => {}
        }
    }

    #[test]
    fn every_field_but_the_version_has_a_default() {
        let info = SessionInfo::parse(br#"{"protocol_version": 1}"#).unwrap();
        assert_eq!((info.is_supported(), info.target.as_str()), (true, ""));
        let text = r#"{"protocol_version": 1, "health": {"status": "new"}, "ports": [{}], "processes": [{}], "new": 1}"#;
        let info = SessionInfo::parse(text.as_bytes()).unwrap();
        assert_eq!(info.health.status, Status::Unknown);
    }

    #[test]
    fn a_session_of_another_version_is_identified() {
        for (text, version) in [
            (
                r#"{"protocol_version": 99, "session_id": "a1", "target": "pod/x", "standin_version": "9.0.0", "health": 7}"#,
                99,
            ),
            (
                r#"{"session_id": "a1", "target": "pod/x", "standin_version": "9.0.0"}"#,
                0,
            ),
        ] {
            let info = SessionInfo::parse(text.as_bytes()).unwrap();
            assert!(!info.is_supported());
            assert_eq!(
                (info.protocol_version, info.target.as_str()),
                (version, "pod/x")
            );
            assert_eq!(info.health.status, Status::OtherVersion);
            assert!(info.health.reason.unwrap().contains("release 9.0.0"));
        }
        assert!(SessionInfo::parse(b"no JSON").is_err());
    }
}
