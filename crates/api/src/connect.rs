//! The parameters of a client's connection, in the query or in a header, and the agent endpoints that the operator sends
//! over the connection.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::data::SessionData;

/// The query in base64, for parameters that are too long for a URL.
pub const PARAMETERS_HEADER: &str = "x-mirrord-connect-params";
/// The session's number, in decimal digits. The client chooses it and sends the same number when it reconnects.
pub const SESSION_ID_HEADER: &str = "x-session-id";
/// The client's certificate: DER in base64. Agents of the session accept only a client that has its key.
pub const CLIENT_CERTIFICATE_HEADER: &str = "x-client-der";
pub const CLIENT_NAME_HEADER: &str = "x-client-name";
pub const CLIENT_HOSTNAME_HEADER: &str = "x-client-hostname";
pub const CLIENT_VERSION_HEADER: &str = "x-mirrord-cli-version";

/// The reason with which the operator closes a connection that must not be reopened, because the session was ended.
pub const SESSION_ENDED: &str = "the session has ended";

/// The options of a session, beside its target. Unknown parameters are ignored, not refused: a newer client may send
/// some that only a newer operator understands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectParameters {
    /// Whether the request opens a connection. Without it, the request only reads the target.
    pub connect: bool,
    pub on_concurrent_steal: Option<OnConcurrentSteal>,
    pub profile: Option<String>,
    /// The label selector of the pods, for a target of the kind `label`.
    pub label_target: Option<String>,
    pub key: Option<String>,
    /// How long the session waits for its client to reconnect, in seconds. Ours.
    pub resume_window: Option<u64>,
    /// Whether the session spans the member clusters, where the operator has some. The default is yes.
    pub multi_cluster: Option<bool>,
    pub data: SessionData,
}

/// What happens when another session already steals from the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum OnConcurrentSteal {
    Abort,
    Continue,
    Override,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidParameters {
    #[error("the header {PARAMETERS_HEADER} is not base64")]
    NotBase64,
    #[error("the connect parameter `{0}` is not UTF-8")]
    NotText(String),
    #[error("the connect parameter `{name}` is `{value}`; it can be {allowed}")]
    Value {
        name: &'static str,
        value: String,
        allowed: &'static str,
    },
}

impl ConnectParameters {
    /// Parses the query of a URL, and the header if there is one. The header's values win: it is sent when they are too
    /// long for the query.
    pub fn read(query: &str, header: Option<&str>) -> Result<Self, InvalidParameters> {
        let mut parameters = Self::default();
        parameters.add(query)?;
        if let Some(header) = header {
            let bytes = STANDARD
                .decode(header)
                .map_err(|_| InvalidParameters::NotBase64)?;
            let query = String::from_utf8(bytes).map_err(|_| InvalidParameters::NotBase64)?;
            parameters.add(&query)?;
        }
        Ok(parameters)
    }

    fn add(&mut self, query: &str) -> Result<(), InvalidParameters> {
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decode(name, value)?;
            match name {
                "connect" => self.connect = parse_bool("connect", &value)?,
                "on_concurrent_steal" => self.on_concurrent_steal = Some(parse_on_steal(&value)?),
                "profile" => self.profile = Some(value),
                "label_target" => self.label_target = Some(value),
                "key" => self.key = Some(value),
                "resume_window" => {
                    let seconds = value.parse().map_err(|_| InvalidParameters::Value {
                        name: "resume_window",
                        value,
                        allowed: "a number of seconds",
                    })?;
                    self.resume_window = Some(seconds);
                }
                "multi_cluster" => self.multi_cluster = Some(parse_bool("multi_cluster", &value)?),
                other => self.data.add(other, &value)?,
            }
        }
        Ok(())
    }

    /// The query with all parameters that are set.
    pub fn query(&self) -> String {
        let steal = self.on_concurrent_steal.map(OnConcurrentSteal::as_str);
        let window = self.resume_window.map(|seconds| seconds.to_string());
        let pairs = [
            ("connect", self.connect.then_some("true")),
            ("on_concurrent_steal", steal),
            ("profile", self.profile.as_deref()),
            ("label_target", self.label_target.as_deref()),
            ("key", self.key.as_deref()),
            ("resume_window", window.as_deref()),
            ("multi_cluster", self.multi_cluster.map(bool_text)),
        ];
        let data = self.data.parameters();
        let data = data.iter().map(|(name, value)| (*name, value.as_deref()));
        let mut query = String::new();
        for (name, value) in pairs.into_iter().chain(data) {
            if let Some(value) = value {
                let separator = if query.is_empty() { "" } else { "&" };
                let value = utf8_percent_encode(value, NON_ALPHANUMERIC);
                // Writing to a string does not fail.
                let _ = write!(query, "{separator}{name}={value}");
            }
        }
        query
    }
}

impl OnConcurrentSteal {
    fn as_str(self) -> &'static str {
        match self {
            Self::Abort => "abort",
            Self::Continue => "continue",
            Self::Override => "override",
        }
    }
}

fn decode(name: &str, value: &str) -> Result<String, InvalidParameters> {
    let spaced = value.replace('+', " ");
    percent_decode_str(&spaced)
        .decode_utf8()
        .map(std::borrow::Cow::into_owned)
        .map_err(|_| InvalidParameters::NotText(name.to_owned()))
}

fn bool_text(value: bool) -> &'static str {
    if value { "true" } else { "false" }
}

fn parse_bool(name: &'static str, value: &str) -> Result<bool, InvalidParameters> {
    match value {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(InvalidParameters::Value {
            name,
            value: value.to_owned(),
            allowed: "true or false",
        }),
    }
}

fn parse_on_steal(value: &str) -> Result<OnConcurrentSteal, InvalidParameters> {
    match value {
        "abort" => Ok(OnConcurrentSteal::Abort),
        "continue" => Ok(OnConcurrentSteal::Continue),
        "override" => Ok(OnConcurrentSteal::Override),
        _ => Err(InvalidParameters::Value {
            name: "on_concurrent_steal",
            value: value.to_owned(),
            allowed: "abort, continue or override",
        }),
    }
}

/// The agents of a session. The operator sends this over the connection, first when the client has connected and then
/// whenever it changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentEndpoints {
    pub endpoints: Vec<AgentEndpoint>,
    /// The clusters of a session over several clusters. Empty in a session in one cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<ClusterEndpoints>,
    /// This replica of the operator is shutting down: the client should connect to another one, and then close this
    /// connection.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub draining: bool,
    /// Why the session has ended. It is in the last message, before the connection is closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
}

/// A cluster of a session, as seen from the Primary.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterEndpoints {
    pub name: String,
    /// Whether environment, files, DNS names and outgoing connections come from this cluster.
    #[serde(default)]
    pub is_default: bool,
    /// Why the cluster is unreachable now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How often the Primary has switched to another replica of the cluster's operator, because the old one was shutting
    /// down. After each handover, clients should reopen the channels to this cluster, and then close the old ones.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub handovers: u32,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes fields by reference"
)]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl AgentEndpoints {
    /// How many handovers the cluster of this endpoint has had over this connection. `None` in a session in one cluster,
    /// and for an endpoint that does not exist.
    pub fn handovers(&self, endpoint: u32) -> Option<u32> {
        let endpoint = self
            .endpoints
            .iter()
            .find(|other| other.number == endpoint)?;
        let mut clusters = self.clusters.iter();
        let cluster = clusters.find(|cluster| Some(&cluster.name) == endpoint.cluster.as_ref())?;
        Some(cluster.handovers)
    }
}

/// The agent of one pod of the session, to which channels can be opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentEndpoint {
    /// The number with which channels to the agent are opened. Another pod never gets the same number.
    pub number: u32,
    /// The pod's cluster, in a session over several clusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    pub pod: String,
    pub container: String,
    pub ready: bool,
    /// The SHA-256 of the agent's certificate, where the operator knows it. The client then accepts no other
    /// certificate. Without it, the client trusts the first certificate that it sees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// The name of the agent. Another agent in the same pod has another name and none of this one's state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// A digest of the session's grant in this pod. It changes when the administrators' policies change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_round_trip() {
        let parameters = ConnectParameters {
            connect: true,
            on_concurrent_steal: Some(OnConcurrentSteal::Override),
            profile: Some("a profile & more".to_owned()),
            label_target: Some("app=checkout,tier!=db".to_owned()),
            key: Some("ключ".to_owned()),
            resume_window: Some(600),
            multi_cluster: Some(false),
            data: SessionData::default(),
        };
        assert_eq!(
            ConnectParameters::read(&parameters.query(), None),
            Ok(parameters.clone())
        );
        assert_eq!(
            ConnectParameters::read("connect=true", Some(&STANDARD.encode(parameters.query()))),
            Ok(parameters)
        );
    }

    #[test]
    fn unknown_parameters_are_ignored() {
        let parameters = ConnectParameters::read("connect=true&kafka_splits=%7B%7D&x", None);
        assert_eq!(
            parameters,
            Ok(ConnectParameters {
                connect: true,
                ..ConnectParameters::default()
            })
        );
    }

    #[test]
    fn errors_name_invalid_values() {
        let cases = [
            (
                "connect=yes",
                None,
                "the connect parameter `connect` is `yes`; it can be true or false",
            ),
            (
                "on_concurrent_steal=fight",
                None,
                "the connect parameter `on_concurrent_steal` is `fight`; it can be abort, continue or override",
            ),
            (
                "resume_window=long",
                None,
                "the connect parameter `resume_window` is `long`; it can be a number of seconds",
            ),
            ("key=%ff", None, "the connect parameter `key` is not UTF-8"),
            (
                "",
                Some("?"),
                "the header x-mirrord-connect-params is not base64",
            ),
        ];
        for (query, header, message) in cases {
            let error = ConnectParameters::read(query, header).unwrap_err();
            assert_eq!(error.to_string(), message);
        }
    }
}
