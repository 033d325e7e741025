//! The protocol between the operator and agents. A node agent handles all requests; the agent of one session handles those
//! about itself.
//!
//! A connection has one request and one response. Each is its length in four bytes, big-endian, followed by that many bytes
//! of JSON. Only a request for ports gets further responses, as long as the connection lasts. Unknown fields are ignored, so
//! either side may be newer.

use serde::{Deserialize, Serialize};

use crate::session::SessionPort;

/// The port on which node agents listen for the operator. Their session listeners use the ports above it.
pub const NODE_AGENT_PORT: u16 = 20_000;
/// The maximum length of a request.
pub const MAX_REQUEST_BYTES: u32 = 1024 * 1024;
/// The maximum length of a response: a node may serve thousands of targets, and keeps ended ones in its list for a while.
pub const MAX_RESPONSE_BYTES: u32 = 16 * 1024 * 1024;
/// The labels of the node agents' pods.
pub const NODE_AGENT_LABELS: &str =
    "app.kubernetes.io/name=standin-operator,app.kubernetes.io/component=node-agent";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "camelCase")]
pub enum NodeRequest {
    /// Serve a target. If a target of the same name is served already, the response describes that one.
    Serve(ServeRequest),
    /// List the served targets whose names have this prefix.
    List { prefix: String },
    /// Replace the grant of the session.
    Grant {
        name: String,
        grant: serde_json::Value,
    },
    /// Stream the ports of the session: one response now and one after each change.
    Ports {
        name: String,
        /// Whether responses contain the patterns of filters.
        patterns: bool,
    },
    /// Stop serving a target.
    End { name: String },
}

/// A request to serve one target to one client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServeRequest {
    pub name: String,
    /// The uid of the target's pod. Responses repeat it.
    pub pod: String,
    /// The container's id.
    pub container: String,
    /// The SHA-256 of the client's certificate, in hexadecimal digits.
    pub client_certificate: String,
    /// How long the client may stay disconnected.
    pub resume_window_secs: u64,
    /// How long to wait for the client's first connection.
    pub connect_timeout_secs: u64,
    /// The port to listen on. If it is in use, the agent takes the next free one.
    pub port: u16,
    /// What the session may do, in the format of agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant: Option<serde_json::Value>,
}

/// The response to any [`NodeRequest`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeResponse {
    #[serde(default)]
    pub served: Vec<ServedTarget>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<SessionPort>,
    /// Why the request failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A target that is served, or was served until recently.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServedTarget {
    pub name: String,
    pub pod: String,
    pub container: String,
    pub port: u16,
    /// The SHA-256 of the certificate that the client sees.
    pub certificate: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<ServeExit>,
}

/// Why a target is no longer served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServeExit {
    pub reason: String,
    pub has_failed: bool,
}

/// The port on which the agent of one session listens for the operator, if it listens for its client on this port.
pub fn operator_port(client_port: u16) -> u16 {
    client_port.saturating_add(1)
}

/// Encodes a message: its length and its JSON.
pub fn encode_message<T: Serialize>(content: &T) -> Result<Vec<u8>, serde_json::Error> {
    let content = serde_json::to_vec(content)?;
    let length = u32::try_from(content.len()).unwrap_or(u32::MAX);
    Ok([length.to_be_bytes().as_slice(), &content].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_a_length_prefix_and_allow_unknown_fields() {
        let request = NodeRequest::End {
            name: "a".to_owned(),
        };
        let text = r#"{"request":"end","name":"a"}"#;
        let expected = [&28_u32.to_be_bytes(), text.as_bytes()].concat();
        assert_eq!(encode_message(&request).unwrap(), expected);
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
