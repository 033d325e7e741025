//! What an operator and agents say to one another: those that wait on nodes are asked for everything, those of one session for
//! what is about themselves. One request and one answer per connection, each as its length in four bytes, big-endian, and so
//! many bytes of JSON; who asks for ports gets answers as long as the connection lasts. Fields that are not known are ignored,
//! so either side may be newer.

use serde::{Deserialize, Serialize};

use crate::session::SessionPort;

/// Where agents on nodes listen for the operator. Those for sessions listen above it.
pub const PORT: u16 = 20_000;
/// The longest request.
pub const MOST_BYTES: u32 = 1024 * 1024;
/// The longest answer: a node may serve thousands of targets, and remembers for a while what it has served.
pub const MOST_ANSWER_BYTES: u32 = 16 * 1024 * 1024;
/// The labels of their pods.
pub const LABELS: &str =
    "app.kubernetes.io/name=standin-operator,app.kubernetes.io/component=node-agent";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "camelCase")]
pub enum NodeRequest {
    /// Serve a target. One that is served already, by the same name, is answered as it is.
    Serve(NodeOrder),
    /// Say what is served, of all names that begin like this.
    List { prefix: String },
    /// From now on its session may do this, and nothing else.
    Grant {
        name: String,
        grant: serde_json::Value,
    },
    /// Say which ports its session has, now and whenever that changes, in one answer after the other.
    Ports {
        name: String,
        /// Whether the patterns of filters are told, too.
        patterns: bool,
    },
    /// Serve one no longer.
    End { name: String },
}

/// A target that is to be served to one client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeOrder {
    pub name: String,
    /// The uid of the target's pod, which is given back in answers.
    pub pod: String,
    /// The container's id.
    pub container: String,
    /// The SHA-256 of the client's certificate, in hexadecimal digits.
    pub client_certificate: String,
    /// How long the client may be away.
    pub resume_window_secs: u64,
    /// How long to wait for the client to come at all.
    pub patience_secs: u64,
    /// The port to listen on; the next free one, when it is taken.
    pub port: u16,
    /// What the session may do, as agents understand it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant: Option<serde_json::Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeAnswer {
    #[serde(default)]
    pub served: Vec<Served>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<SessionPort>,
    /// Why nothing was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A target that is or was served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Served {
    pub name: String,
    pub pod: String,
    pub container: String,
    pub port: u16,
    /// The SHA-256 of the certificate that the client sees.
    pub certificate: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<ServedEnd>,
}

/// How it ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServedEnd {
    pub why: String,
    pub has_failed: bool,
}

/// A message as it travels.
pub fn message<T: Serialize>(content: &T) -> Result<Vec<u8>, serde_json::Error> {
    let content = serde_json::to_vec(content)?;
    let length = u32::try_from(content.len()).unwrap_or(u32::MAX);
    Ok([length.to_be_bytes().as_slice(), &content].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_begin_with_their_length_and_have_room_for_more() {
        let request = NodeRequest::End {
            name: "a".to_owned(),
        };
        let text = r#"{"request":"end","name":"a"}"#;
        let expected = [&28_u32.to_be_bytes(), text.as_bytes()].concat();
        assert_eq!(message(&request).unwrap(), expected);
        let newer = r#"{"request":"list","prefix":"a","more":1}"#;
        let read: NodeRequest = serde_json::from_str(newer).unwrap();
        assert_eq!(
            read,
            NodeRequest::List {
                prefix: "a".to_owned()
            }
        );
    }
}
