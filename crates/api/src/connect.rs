//! What a client says when it connects: in the query of the address, or in a header where the query would be too long.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::{Deserialize, Serialize};

use crate::data::SessionData;

/// The query, in base64.
pub const PARAMETERS_HEADER: &str = "x-mirrord-connect-params";
/// The session's number, in decimal digits. It is the client's, and the same each time that it comes back.
pub const SESSION_ID_HEADER: &str = "x-session-id";
/// The client's certificate: DER in base64. Agents of its session let nobody in who does not have the key.
pub const CLIENT_CERTIFICATE_HEADER: &str = "x-client-der";
pub const CLIENT_NAME_HEADER: &str = "x-client-name";
pub const CLIENT_HOSTNAME_HEADER: &str = "x-client-hostname";
pub const CLIENT_VERSION_HEADER: &str = "x-mirrord-cli-version";

/// Why the operator ends a connection that is not to be made again: somebody has ended the session.
pub const SESSION_IS_OVER: &str = "the session is over";

/// What a session wants, beside its target. Parameters that are not known are kept out, not refused: a newer client may
/// send some that only a newer operator understands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectParameters {
    /// Whether this is a connection at all, and not a question about a target.
    pub connect: bool,
    pub on_concurrent_steal: Option<OnConcurrentSteal>,
    pub profile: Option<String>,
    /// The labels of the pods, for a target of the kind `label`.
    pub label_target: Option<String>,
    pub key: Option<String>,
    /// How long the session waits for its client after a lost connection, in seconds. Ours.
    pub resume_window: Option<u64>,
    /// Whether other clusters take part, where the operator has some. They do, when nothing is said.
    pub multi_cluster: Option<bool>,
    pub data: SessionData,
}

/// What happens when somebody else has the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// From the query of an address, and the header if there is one. The header's values win: it is sent when the query
    /// could not hold them.
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
            let value = decoded(name, value)?;
            match name {
                "connect" => self.connect = truth("connect", &value)?,
                "on_concurrent_steal" => self.on_concurrent_steal = Some(on_steal(&value)?),
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
                "multi_cluster" => self.multi_cluster = Some(truth("multi_cluster", &value)?),
                other => self.data.add(other, &value)?,
            }
        }
        Ok(())
    }

    /// The query that says all this.
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
            ("multi_cluster", self.multi_cluster.map(written)),
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

fn decoded(name: &str, value: &str) -> Result<String, InvalidParameters> {
    let spaced = value.replace('+', " ");
    percent_decode_str(&spaced)
        .decode_utf8()
        .map(std::borrow::Cow::into_owned)
        .map_err(|_| InvalidParameters::NotText(name.to_owned()))
}

fn written(truth: bool) -> &'static str {
    if truth { "true" } else { "false" }
}

fn truth(name: &'static str, value: &str) -> Result<bool, InvalidParameters> {
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

fn on_steal(value: &str) -> Result<OnConcurrentSteal, InvalidParameters> {
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

/// What the operator says over the connection, first and whenever it changes: where agents are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Places {
    pub places: Vec<Place>,
    /// The clusters of a session over several. Empty, where there is one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<PlaceCluster>,
    /// This replica of the operator is about to end: the client should connect to another, and then leave.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaving: bool,
}

/// A cluster of a session, as seen from the Primary.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlaceCluster {
    pub name: String,
    /// Whether environment, files, names and outgoing connections are this cluster's.
    #[serde(default)]
    pub is_default: bool,
    /// Why it cannot be reached now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How often the Primary has left a replica of the cluster's operator for another one, because that replica was about
    /// to end. After each time, channels to this cluster should be opened anew, and then the old ones closed.
    #[serde(default, skip_serializing_if = "is_never")]
    pub moves: u32,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes fields by reference"
)]
fn is_never(times: &u32) -> bool {
    *times == 0
}

impl Places {
    /// How often channels to a place had to be opened anew over this connection. None, if there is no such place in any
    /// of several clusters.
    pub fn moves(&self, place: u32) -> Option<u32> {
        let place = self.places.iter().find(|known| known.number == place)?;
        let mut clusters = self.clusters.iter();
        let cluster = clusters.find(|known| Some(&known.name) == place.cluster.as_ref())?;
        Some(cluster.moves)
    }
}

/// One pod of the session, to which channels can be opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Place {
    /// What a channel to it is opened with. Another pod never gets the same number.
    pub number: u32,
    /// Where the pod is, in a session over several clusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    pub pod: String,
    pub container: String,
    pub ready: bool,
    /// The SHA-256 of the agent's certificate, where the operator knows it: then believe no other. Without it, the first
    /// one that is seen has to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// The name of the agent. Another agent in the same pod has another one, and knows nothing of what this one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// A digest of what the session may do there. Another one means that the administrators' rules have changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
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
    fn parameters_of_newer_clients_are_let_through() {
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
    fn wrong_values_are_named() {
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
