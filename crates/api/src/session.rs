//! Sessions: the stored object, from which any replica of the operator can carry on, and the one that people list.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::GROUP_VERSION;
use crate::data::SessionData;
use crate::target::{InvalidTarget, TargetPath};

/// Keeps a session's object until its agents are gone.
pub const FINALIZER: &str = "mirrord.metalbear.co/session-cleanup";

/// One session of one user with one target, as the operator's controller drives it.
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
#[serde(rename_all = "camelCase")]
pub struct MirrordClusterSessionSpec {
    pub owner: SessionOwner,
    /// The target's namespace.
    pub namespace: String,
    /// As people write it: `deployment/checkout/container/app`.
    pub target: String,
    /// The labels of the pods, for the target `label`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_target: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_cli_version: Option<String>,
    /// The session of which this one is a part, where several clusters take part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multi_cluster_parent_name: Option<String>,
    /// How many sessions of the same name there were before it in this cluster, where it is a part of another one. Its
    /// agents have other names and numbers than theirs. Ours.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub generation: u32,
    /// How long the session waits for its client, in seconds. Ours.
    pub resume_window_secs: u64,
    /// The SHA-256 of the client's certificate, in hexadecimal digits: agents let nobody else in. Ours.
    pub client_certificate: String,
    /// Branches are those of this cluster's own databases, and only the Default of several clusters has some. Ours.
    #[serde(default, skip_serializing_if = "SessionData::is_empty")]
    pub data: SessionData,
}

impl MirrordClusterSessionSpec {
    pub fn target_path(&self) -> Result<TargetPath, InvalidTarget> {
        self.target.parse()
    }
}

/// Who a session belongs to. The first three are what the client says of itself; the last is what Kubernetes knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionOwner {
    /// Tells users apart who have the same name.
    pub user_id: String,
    pub username: String,
    pub hostname: String,
    /// The authenticated user. Only this one has rights.
    pub k8s_username: String,
    /// The user's groups, where other clusters take part: the Primary vouches for both to its members. Ours.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub k8s_groups: Vec<String>,
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
    /// Why the phase is what it is, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The pods that take part, one agent each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<SessionPod>,
    /// The channel that the next pod gets.
    #[serde(default)]
    pub next_channel: u32,
    /// The ports whose traffic the session has, as its agents say. Written by the replica that carries the connection. Ours.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<SessionPort>,
    /// When a client was first connected. Written by the replica that carries the connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connected_timestamp: Option<String>,
    /// When a client was last seen. Written by the replica that carries the connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen_timestamp: Option<String>,
    /// When the session failed. It is kept for a while, so that people find the reason. Ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_timestamp: Option<String>,
    /// Set once, when the session is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<SessionClosed>,
}

/// Where a session is in its life. It is left as its documentation says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SessionPhase {
    /// Agents are being started. Left when one is ready, or when none can be.
    Pending,
    /// A client can connect. Left when the client stays away for longer than the resume window, when it says that it is
    /// done, or when somebody ends the session.
    Ready,
    /// Nothing will come of it. The message says why. Left only by deletion.
    Failed,
    /// Agents are being removed. Left when they are gone, and the object with them.
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

/// One pod of a session, and where its agent is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionPod {
    pub name: String,
    pub uid: String,
    /// The container beside which the agent works.
    pub container: String,
    /// The number of the pod's channel in the session's connection. It is never given to another pod.
    pub channel: u32,
    pub ready: bool,
    /// Where the operator reaches the agent, when it is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The name of the agent's container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The SHA-256 of the agent's certificate, where the operator knows it: clients then believe no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// Which policies the agent knows of, as a digest of all that there were. Ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policies: Option<String>,
    /// What the session may do there, as a digest. Ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A port of the target whose traffic a session has, all of it or what a filter lets through.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase")]
pub struct SessionPort {
    pub port: u16,
    /// `TCP` or `UDP`.
    pub protocol: String,
    /// `steal`, or `mirror` for copies.
    pub mode: String,
    /// Which requests, in words for people. Absent: everything on the port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
}

impl SessionPort {
    pub const TCP: &str = "TCP";
    pub const UDP: &str = "UDP";
    pub const STEAL: &str = "steal";
    pub const MIRROR: &str = "mirror";

    /// The number, and the protocol where it is not the usual one.
    pub fn number(&self) -> String {
        match self.protocol.as_str() {
            Self::UDP => format!("{}/{}", self.port, Self::UDP),
            _ => self.port.to_string(),
        }
    }
}

/// In a cell of a table.
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
    /// One word, for programs.
    pub reason: String,
    /// A sentence, for people.
    pub message: String,
}

/// A session as people list it, served live.
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
    /// The ports whose traffic it has, in whichever pod and cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<SessionPort>,
    /// The clusters of a session over several: those that are not ready now have a reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<SessionCluster>,
}

/// A cluster's part of a session over several.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionCluster {
    pub name: String,
    /// Whether environment, files, names and outgoing connections are this cluster's.
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

/// A session's number, as the client made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

impl SessionId {
    /// The name of the session's object.
    pub fn object_name(self) -> String {
        format!("session-{self}")
    }

    /// Of a session of this cluster alone, or of the child of one over several.
    pub fn from_object_name(name: &str) -> Option<Self> {
        match name.strip_prefix("session-") {
            Some(id) => Self::from_hexadecimal(id),
            None => crate::multicluster::child_id(name),
        }
    }

    /// As people see it.
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

/// As kubectl writes ages: the largest unit that is not too coarse.
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
    fn ports_are_told_in_few_words() {
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
    fn a_sessions_number_is_its_objects_name() {
        let id = SessionId(0x1f);
        assert_eq!(id.object_name(), "session-000000000000001f");
        assert_eq!(SessionId::from_object_name(&id.object_name()), Some(id));
        assert_eq!(SessionId::from_hexadecimal("1f"), Some(id));
        for wrong in ["", "+1", "x", "00000000000000001"] {
            assert_eq!(SessionId::from_hexadecimal(wrong), None, "{wrong}");
        }
    }
}
