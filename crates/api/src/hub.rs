//! The hub's HTTP API, and the messages between a hub and its tunnel agents, as JSON.
//!
//! Administrators and `standin cluster` use the API with a token of the hub's cluster, agents with a registration token
//! and later with their certificates. Field names are part of the interface.
//!
//! | endpoint | request | response |
//! |---|---|---|
//! | `POST /api/agents/tokens` | [`TokenRequest`] | [`RegistrationToken`] |
//! | `POST /api/agents/register` | [`Registration`] | [`Registered`] |
//! | `GET /api/agents/connect` | WebSocket upgrade with a client certificate | the tunnel |
//! | `GET /api/hub` | | [`HubDescription`] |
//! | `GET /api/clusters` | | [`ClusterList`] |
//! | `POST /api/clusters` | [`NewCluster`] | [`Cluster`] |
//! | `GET`, `DELETE /api/clusters/NAME` | | [`Cluster`]; nothing |
//! | `POST /api/clusters/NAME/revoke` | | [`Cluster`] |
//! | `GET /api/audit?cluster=&user=&limit=` | | [`AuditList`] |
//! | `/clusters/NAME/…` | anything for the API server of that cluster | its response |
//!
//! Every error is an [`ErrorBody`]; under `/clusters/` it is a Kubernetes `Status`, because its readers are Kubernetes
//! clients.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

/// The paths of the API.
pub mod path {
    pub const TOKENS: &str = "/api/agents/tokens";
    pub const REGISTER: &str = "/api/agents/register";
    pub const CONNECT: &str = "/api/agents/connect";
    pub const HUB: &str = "/api/hub";
    pub const CLUSTERS: &str = "/api/clusters";
    pub const AUDIT: &str = "/api/audit";
    /// The API servers of the clusters are below this path, each by the name of its cluster.
    pub const PROXY: &str = "/clusters/";
}

/// The error of a registration that failed, whatever the reason was. The log of the hub has the reason.
pub const REGISTRATION_REJECTED: &str = "registration rejected";

/// Asks for a token with which an agent can register one cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TokenRequest {
    pub cluster: String,
}

/// A token with which an agent can register one cluster, once.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RegistrationToken {
    pub token: String,
    pub cluster: String,
    pub expires_at: Time,
}

impl std::fmt::Debug for RegistrationToken {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("RegistrationToken")
            .field("cluster", &self.cluster)
            .field("expires_at", &self.expires_at)
            .finish_non_exhaustive()
    }
}

/// An agent's request for a certificate.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Registration {
    pub token: String,
    pub cluster: String,
    /// A certificate signing request in PEM. Only its public key is used.
    pub csr: String,
}

impl std::fmt::Debug for Registration {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Registration")
            .field("cluster", &self.cluster)
            .finish_non_exhaustive()
    }
}

/// An agent's certificate, and the authorities that it has to trust.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Registered {
    /// In PEM, the agent's own certificate first.
    pub cert: String,
    /// In PEM: every authority that may have signed the hub's certificate.
    pub ca_bundle: String,
    pub expires_at: Time,
}

/// What an agent sends to its hub on the control stream of a tunnel, one JSON object per line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "type",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum AgentMessage {
    /// The first message.
    Hello {
        /// The agent's release.
        version: String,
        /// The version of the cluster's API server, if it is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kubernetes_version: Option<String>,
    },
    /// Asks for a certificate for a new key.
    Renew {
        /// A certificate signing request in PEM.
        csr: String,
    },
    /// The agent has stored these authorities. Certificates may be signed by them now.
    Trusts {
        /// The SHA-256 fingerprints of the authorities, in hex.
        authorities: Vec<String>,
    },
    /// A message of a later protocol version, which is ignored.
    #[serde(other)]
    Unknown,
}

/// What a hub sends to an agent on the control stream of a tunnel, one JSON object per line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "type",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum HubMessage {
    /// The response to [`AgentMessage::Renew`].
    Certificate(Registered),
    /// Every authority that the agent has to trust from now on, sent at the start and whenever they change.
    Authorities {
        /// In PEM.
        ca_bundle: String,
    },
    /// This replica shuts down: the agent connects to another one, and then ends this tunnel.
    Draining,
    /// The hub could not do what the agent asked for. The agent asks again later.
    Failed { error: String },
    /// A message of a later protocol version, which is ignored.
    #[serde(other)]
    Unknown,
}

/// What clients and administrators need to know of a hub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HubDescription {
    pub version: String,
    /// The address for agents, such as `wss://hub.example.com:8443`.
    pub agent_url: Option<String>,
    /// The address for registrations, if it is not the one for agents.
    pub registration_url: Option<String>,
    /// The address for Kubernetes clients, such as `https://hub.example.com:6443`.
    pub api_url: Option<String>,
    /// The pin of the hub's key, `sha256:` and hex, if the hub serves agents with a certificate of its own authority.
    #[serde(rename = "serverCAHash")]
    pub server_ca_hash: Option<String>,
    /// The authorities of the address for Kubernetes clients, in PEM, if they are the hub's own.
    pub ca_bundle: Option<String>,
    /// The chart for agents, as `helm install` takes it.
    pub agent_chart: String,
}

/// A request to register a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NewCluster {
    pub name: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterList {
    pub clusters: Vec<Cluster>,
}

/// A registered cluster, and its connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cluster {
    pub name: String,
    /// Always `agent`.
    pub backend: String,
    pub state: ClusterState,
    /// Whether the cluster is in the values of the chart. Otherwise it was registered at run time.
    pub from_values: bool,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connected_since: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes_version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_expires_at: Option<Time>,
    /// The replicas of the hub that have a tunnel to the cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replicas: Vec<String>,
    /// Why the cluster is not connected, and what to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// How far a cluster is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ClusterState {
    /// No agent has registered yet.
    Pending,
    /// An agent has a tunnel.
    Connected,
    /// An agent has registered, and has no tunnel now.
    Disconnected,
    /// Its certificates were revoked: an agent has to register again.
    Revoked,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditList {
    /// The newest first.
    pub rows: Vec<AuditRow>,
}

/// One request of a user to a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditRow {
    pub id: String,
    pub time: Time,
    pub actor: AuditActor,
    /// As in Kubernetes' own authorization: `get`, `list`, `watch`, `create`, `delete` and so on.
    pub verb: String,
    pub outcome: AuditOutcome,
    pub cluster: String,
    /// Always `agent`.
    pub cluster_backend: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_group: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subresource: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The path without its query, which may contain data.
    pub path: String,
    /// The HTTP status of the response.
    pub status: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Until the end of the response.
    pub duration_ms: u64,
}

/// The user of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditActor {
    pub sub: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AuditOutcome {
    Success,
    /// The hub, the agent or the API server refused it.
    Denied,
    Failure,
}

/// The body of an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ErrorBody {
    pub error: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check<T>(message: &T, text: serde_json::Value)
    where
        T: Serialize + for<'a> Deserialize<'a> + PartialEq + std::fmt::Debug,
    {
        assert_eq!(serde_json::to_value(message).unwrap(), text);
        assert_eq!(serde_json::from_value::<T>(text).unwrap(), *message);
    }

    fn registered() -> (Registered, serde_json::Value) {
        let expires_at: Time = serde_json::from_value(json!("2026-01-02T03:04:05Z")).unwrap();
        let registered = Registered {
            cert: "C".to_owned(),
            ca_bundle: "B".to_owned(),
            expires_at,
        };
        let text = json!({ "cert": "C", "caBundle": "B", "expiresAt": "2026-01-02T03:04:05Z" });
        (registered, text)
    }

    #[test]
    fn messages_have_the_field_names_of_the_interface() {
        let (registered, mut text) = registered();
        check(&registered, text.clone());
        text["type"] = json!("certificate");
        check(&HubMessage::Certificate(registered), text);
        check(&HubMessage::Draining, json!({ "type": "draining" }));
        let authorities = HubMessage::Authorities {
            ca_bundle: "B".to_owned(),
        };
        let text = json!({ "type": "authorities", "caBundle": "B" });
        check(&authorities, text);
        let hello = AgentMessage::Hello {
            version: "0.1.0".to_owned(),
            kubernetes_version: None,
        };
        check(&hello, json!({ "type": "hello", "version": "0.1.0" }));
    }

    #[test]
    fn messages_of_later_versions_are_ignored() {
        let text = json!({ "type": "somethingNew", "a": 1 });
        let message: HubMessage = serde_json::from_value(text.clone()).unwrap();
        assert_eq!(message, HubMessage::Unknown);
        let message: AgentMessage = serde_json::from_value(text).unwrap();
        assert_eq!(message, AgentMessage::Unknown);
    }

    #[test]
    fn tokens_are_not_in_debug_output() {
        let registration = Registration {
            token: "SECRET".to_owned(),
            cluster: "a".to_owned(),
            csr: String::new(),
        };
        assert!(!format!("{registration:?}").contains("SECRET"));
    }
}
