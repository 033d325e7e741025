//! Sessions: the stored object, from which any replica of the operator can continue a session, and the object that users
//! list.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::GROUP_VERSION;
use crate::connect::OnConcurrentSteal;
use crate::data::SessionData;
use crate::target::{InvalidTarget, TargetPath};

/// The finalizer that keeps a session's object until its agents are removed.
pub const FINALIZER: &str = "mirrord.metalbear.co/session-cleanup";

/// One session of one user with one target, which the operator's controller reconciles.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "mirrord.metalbear.co",
    version = "v1alpha",
    kind = "MirrordClusterSession",
    plural = "mirrordclustersessions",
    status = "MirrordClusterSessionStatus",
    derive = "PartialEq",
    printcolumn = r#"{"name":"User","type":"string","jsonPath":".spec.owner.username"}"#,
    printcolumn = r#"{"name":"Namespace","type":"string","jsonPath":".spec.namespace"}"#,
    printcolumn = r#"{"name":"Target","type":"string","jsonPath":".spec.target"}"#,
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "self == oldSelf",
    "message": "the spec of a session never changes: it was authorized as it is"
}]))]
#[serde(rename_all = "camelCase")]
pub struct MirrordClusterSessionSpec {
    pub owner: SessionOwner,
    /// The target's namespace.
    pub namespace: String,
    /// The form for users: `deployment/checkout/container/app`.
    pub target: String,
    /// The label selector of the pods, for the target `label`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_target: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// What happens when another session already steals from a port, as the client requested it. Ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_concurrent_steal: Option<OnConcurrentSteal>,
    /// The name of the profile that the client uses. Ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_cli_version: Option<String>,
    /// The parent of this session, in a session over several clusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multi_cluster_parent_name: Option<String>,
    /// How many sessions of the same name this cluster had before, where the session is the child of another one. Its
    /// agents have other names and numbers than those of earlier generations. Ours.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub generation: u32,
    /// How long the session waits for its client to reconnect, in seconds. Ours.
    pub resume_window_secs: u64,
    /// The SHA-256 of the client's certificate, in hexadecimal digits. Agents accept no other client. Ours.
    pub client_certificate: String,
    /// Database branches and queue splits. In a session over several clusters, only the Default has branches. Ours.
    #[serde(default, skip_serializing_if = "SessionData::is_empty")]
    pub data: SessionData,
}

impl MirrordClusterSessionSpec {
    pub fn target_path(&self) -> Result<TargetPath, InvalidTarget> {
        self.target.parse()
    }
}

/// The user of a session. The client sets the first three fields; the others are the identity that Kubernetes
/// authenticated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionOwner {
    /// Distinguishes users that have the same name.
    pub user_id: String,
    pub username: String,
    pub hostname: String,
    /// The authenticated user name. Only this one counts for authorization.
    pub k8s_username: String,
    /// The authenticated groups of the user. A Primary asserts user and groups to its members. Ours.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub k8s_groups: Vec<String>,
    /// What else the cluster's authenticator says of the user, for authorizers that decide by it. It stays in the cluster.
    /// Ours.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub k8s_extra: BTreeMap<String, Vec<String>>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature of serde")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MirrordClusterSessionStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<SessionPhase>,
    /// A readable reason for the phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The pods of the session, with one agent each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<SessionPod>,
    /// The channel number of the next pod.
    #[serde(default)]
    pub next_channel: u32,
    /// The ports that the session steals from or mirrors, as its agents report. Written by the replica that relays the
    /// connection. Ours.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<SessionPort>,
    /// When a client was first connected. Written by the replica that relays the connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connected_timestamp: Option<String>,
    /// When a client was last connected. Written by the replica that relays the connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen_timestamp: Option<String>,
    /// When the session failed. Its object is kept for a while, so that users find the reason. Ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_timestamp: Option<String>,
    /// Why the user may not have the session any more. Written by the replica that relays the connection. Ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub denied: Option<String>,
    /// Set once, when the session has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<SessionClosed>,
}

/// The phase of a session. Each variant documents when the session leaves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SessionPhase {
    /// Agents are being started. Left when one is ready, or when none can become ready.
    Pending,
    /// A client can connect. Left when the client is disconnected for longer than the resume window, when it ends its
    /// session, or when a user ends the session.
    Ready,
    /// The session could not start. The message has the reason. Left only by deletion.
    Failed,
    /// Agents are being removed. Left when they are gone; the object is then removed as well.
    Terminating,
}

impl SessionPhase {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Ready => "Ready",
            Self::Failed => "Failed",
            Self::Terminating => "Terminating",
        }
    }
}

/// One pod of a session, and the address of its agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionPod {
    pub name: String,
    pub uid: String,
    /// The target container.
    pub container: String,
    /// The number of the pod's channel in the session's connection. It is never reused for another pod.
    pub channel: u32,
    pub ready: bool,
    /// The address at which the operator reaches the agent, when it is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The name of the agent's container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The SHA-256 of the agent's certificate, where the operator knows it. Clients then accept no other certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// A digest of all policies that the agent's grant was computed from. Ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policies: Option<String>,
    /// A digest of the session's grant in this pod. Ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A port of the target that a session steals from or mirrors: all of its traffic, or what a filter matches.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase")]
pub struct SessionPort {
    pub port: u16,
    /// `TCP` or `UDP`.
    pub protocol: String,
    /// `steal` or `mirror`.
    pub mode: String,
    /// A readable description of the filter. Absent: everything on the port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
}

impl SessionPort {
    pub const TCP: &str = "TCP";
    pub const UDP: &str = "UDP";
    pub const STEAL: &str = "steal";
    pub const MIRROR: &str = "mirror";

    /// The port number, and the protocol if it is not TCP.
    pub fn number(&self) -> String {
        match self.protocol.as_str() {
            Self::UDP => format!("{}/{}", self.port, Self::UDP),
            _ => self.port.to_string(),
        }
    }
}

/// The form for a cell of a table.
impl std::fmt::Display for SessionPort {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} ({}", self.number(), self.mode)?;
        if let Some(filter) = &self.filter {
            write!(formatter, ", {filter}")?;
        }
        formatter.write_str(")")
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionClosed {
    /// A machine-readable reason in one word.
    pub reason: String,
    /// A readable message.
    pub message: String,
}

impl SessionClosed {
    /// The end of a session whose user has lost the right to it.
    pub fn denied(message: impl Into<String>) -> Self {
        Self {
            reason: "Denied".to_owned(),
            message: message.into(),
        }
    }
}

/// A session as users list it, served live.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Session {
    pub api_version: String,
    pub kind: String,
    #[schemars(with = "crate::target::AnyObject")]
    pub metadata: ObjectMeta,
    pub spec: SessionSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionSpec {
    /// The session's number, in hexadecimal digits.
    pub id: String,
    pub user: String,
    pub target: String,
    pub namespace: String,
    pub phase: String,
    pub duration_secs: u64,
    pub pods: Vec<String>,
    /// The ports that the session steals from or mirrors, in all pods and clusters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<SessionPort>,
    /// The clusters of a session over several clusters. Those that are not ready have an error.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<SessionCluster>,
}

/// One cluster of a session over several clusters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionCluster {
    pub name: String,
    /// Whether environment, files, DNS names and outgoing connections come from this cluster.
    #[serde(default)]
    pub is_default: bool,
    pub ready: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Session {
    pub const KIND: &str = "Session";

    pub fn new(metadata: ObjectMeta, spec: SessionSpec) -> Self {
        Self {
            api_version: GROUP_VERSION.to_owned(),
            kind: Self::KIND.to_owned(),
            metadata,
            spec,
        }
    }
}

/// A session's number, which the client chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

impl SessionId {
    /// The name of the session's object.
    pub fn object_name(self) -> String {
        format!("session-{self}")
    }

    /// The number in the name of a session's object: a session in one cluster, or the child of one over several clusters.
    pub fn from_object_name(name: &str) -> Option<Self> {
        match name.strip_prefix("session-") {
            Some(id) => Self::from_hexadecimal(id),
            None => crate::multicluster::child_id(name),
        }
    }

    /// Parses the form that users see.
    pub fn from_hexadecimal(text: &str) -> Option<Self> {
        let plausible = text.len() <= 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        (plausible && !text.is_empty())
            .then(|| u64::from_str_radix(text, 16).ok().map(Self))
            .flatten()
    }
}

impl std::fmt::Display for SessionId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:016x}", self.0)
    }
}

/// Formats an age as kubectl does: in the largest unit that is not too coarse.
pub fn age(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short() {
        let cases = [
            (5, "5s"),
            (119, "119s"),
            (120, "2m"),
            (7200, "2h"),
            (864_000, "10d"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(age(seconds), expected);
        }
    }

    #[test]
    fn ports_have_a_short_description() {
        let port = |protocol: &str, mode: &str, filter: Option<&str>| {
            let port = SessionPort {
                port: 8080,
                protocol: protocol.to_owned(),
                mode: mode.to_owned(),
                filter: filter.map(str::to_owned),
            };
            port.to_string()
        };
        assert_eq!(port("TCP", "steal", None), "8080 (steal)");
        assert_eq!(port("UDP", "mirror", None), "8080/UDP (mirror)");
        let filter = Some("header ^x-user: anna$");
        let expected = "8080 (steal, header ^x-user: anna$)";
        assert_eq!(port("TCP", "steal", filter), expected);
    }

    #[test]
    fn object_names_contain_the_session_number() {
        let id = SessionId(0x1f);
        assert_eq!(id.object_name(), "session-000000000000001f");
        assert_eq!(SessionId::from_object_name(&id.object_name()), Some(id));
        assert_eq!(SessionId::from_hexadecimal("1f"), Some(id));
        for wrong in ["", "+1", "x", "00000000000000001"] {
            assert_eq!(SessionId::from_hexadecimal(wrong), None, "{wrong}");
        }
    }
}
