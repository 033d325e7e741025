//! A session over several clusters: the parent object in the Primary, with one child session in each cluster.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::connect::OnConcurrentSteal;
use crate::data::SessionData;
use crate::session::{SessionClosed, SessionId, SessionOwner, SessionPod, SessionPort};

/// The finalizer that keeps a parent's object until its children are removed.
pub const PARENT_FINALIZER: &str = "operator.metalbear.co/multi-cluster-session-cleanup";
/// The header with the child's name in the Primary's connect request to a member cluster. Ours.
pub const CHILD_HEADER: &str = "x-multi-cluster-child";
/// The label of children with the parent's name. Ours.
pub const PARENT_LABEL: &str = "operator.metalbear.co/multi-cluster-parent";
/// The label of children with the parent's uid: two Primaries may have sessions with the same number. Ours.
pub const PARENT_UID_LABEL: &str = "operator.metalbear.co/multi-cluster-parent-uid";

const PREFIX: &str = "mc-";

/// One session of one user with one target in several clusters, which the Primary reconciles.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "operator.metalbear.co",
    version = "v1alpha",
    kind = "MirrordMultiClusterSession",
    plural = "mirrordmulticlustersessions",
    shortname = "mmcs",
    status = "MirrordMultiClusterSessionStatus",
    derive = "PartialEq",
    printcolumn = r#"{"name":"User","type":"string","jsonPath":".spec.owner.username"}"#,
    printcolumn = r#"{"name":"Namespace","type":"string","jsonPath":".spec.namespace"}"#,
    printcolumn = r#"{"name":"Target","type":"string","jsonPath":".spec.target"}"#,
    printcolumn = r#"{"name":"Default","type":"string","jsonPath":".spec.defaultCluster"}"#,
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "self == oldSelf",
    "message": "the spec of a session never changes: it was authorized as it is"
}]))]
#[serde(rename_all = "camelCase")]
pub struct MirrordMultiClusterSessionSpec {
    pub owner: SessionOwner,
    /// The target's namespace, which is the same in all clusters.
    pub namespace: String,
    /// The form for users: `deployment/checkout/container/app`.
    pub target: String,
    /// As in resource names: `deployment.checkout.container.app`.
    pub target_alias: String,
    /// The clusters of the session. Their order never changes: endpoint numbers depend on it.
    pub clusters: Vec<String>,
    pub primary_cluster: String,
    /// The cluster that serves stateful operations: environment, files, DNS names and outgoing connections.
    pub default_cluster: String,
    /// What happens to the session when one of its clusters is unreachable. Ours.
    #[serde(default)]
    pub on_unreachable: OnUnreachable,
    /// The label selector of the pods, for the target `label`. Ours.
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
    /// How long the session and its children wait for the client to reconnect, in seconds. Ours.
    pub resume_window_secs: u64,
    /// The SHA-256 of the client's certificate, in hexadecimal digits. Ours.
    pub client_certificate: String,
    /// Database branches and queue splits as the client sent them. Children get their part of it. Ours.
    #[serde(default, skip_serializing_if = "SessionData::is_empty")]
    pub data: SessionData,
}

impl MirrordMultiClusterSessionSpec {
    /// The data of the child in a cluster. A branch exists once, in the Default; each cluster has its own queues.
    pub fn data_in(&self, cluster: &str) -> SessionData {
        match cluster == self.default_cluster {
            true => self.data.clone(),
            false => self.data.without_branches(),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MirrordMultiClusterSessionStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<MultiClusterPhase>,
    /// A readable reason for the phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The children, by cluster. A child is recorded here before it is created, so that none is leaked.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cluster_sessions: BTreeMap<String, ClusterSession>,
    /// When the client was last connected. Written by the replica that relays the connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connected_timestamp: Option<String>,
    /// When the session failed. Its object is kept for a while, so that the client and users find the reason. Ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_timestamp: Option<String>,
    /// Why the user may not have the session any more. Written by the replica that relays the connection. Ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub denied: Option<String>,
    /// Set once, when the session has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<SessionClosed>,
}

/// What happens to a session when one of its clusters is unreachable. A session always needs its Default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum OnUnreachable {
    /// The session starts when all clusters are ready, and ends when any child ends.
    #[default]
    Fail,
    /// The session starts when the Default is ready. Other clusters join when they are reachable, leave, and join again.
    Continue,
}

/// The phase of a session over several clusters. Each variant documents when the session leaves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MultiClusterPhase {
    /// The children are being recorded in the status. Left when their creation begins.
    Initializing,
    /// Children are being created. Left when all required children are ready, or when one of them cannot become ready.
    Pending,
    /// A client can connect. Left when the client is disconnected for longer than the resume window, when it ends its
    /// session, or when a user ends the session or a required child.
    Ready,
    /// The session could not start. The message has the reason. Left only by deletion.
    Failed,
    /// Children are being removed. Left when they are gone; the object is then removed as well.
    Terminating,
}

/// One child, as last observed by the Primary.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterSession {
    /// The name of the child's object.
    pub session_name: String,
    pub ready: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// When the child's client was last connected, by the clock of its cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heartbeat: Option<String>,
    /// Whether the child has been observed in its cluster. A child that was observed and is missing now was ended. Ours.
    #[serde(default)]
    pub made: bool,
    /// How many earlier children the cluster had in this session. It grows when the cluster joins again. Ours.
    #[serde(default)]
    pub generation: u32,
    /// The pods of the child, as last reported by its cluster. A client that reconnects after a restart of the Primary gets
    /// them at once, and does not drop their agents. Ours.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<SessionPod>,
    /// The ports that the child steals from or mirrors. Ours.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<SessionPort>,
    /// How many pods and ports are left out here, because the cluster reported more than a parent can hold. Ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub omitted: Option<String>,
    /// When the previous child was observed to be gone. Ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_timestamp: Option<String>,
}

impl MultiClusterPhase {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Initializing => "Initializing",
            Self::Pending => "Pending",
            Self::Ready => "Ready",
            Self::Failed => "Failed",
            Self::Terminating => "Terminating",
        }
    }
}

/// The name of a parent's object.
pub fn parent_name(id: SessionId) -> String {
    format!("{PREFIX}{id}")
}

/// The session number in a parent's name.
pub fn parent_id(name: &str) -> Option<SessionId> {
    SessionId::from_hexadecimal(name.strip_prefix(PREFIX)?)
}

/// The name of the child in a cluster. EKS allows characters in cluster names that Kubernetes does not allow in names.
pub fn child_name(parent: &str, cluster: &str) -> String {
    let cluster = cluster.to_ascii_lowercase().replace('_', "-");
    format!("{parent}-{cluster}")
}

/// The session number in a child's name.
pub fn child_id(name: &str) -> Option<SessionId> {
    let (id, cluster) = name.strip_prefix(PREFIX)?.split_once('-')?;
    SessionId::from_hexadecimal(id).filter(|_| id.len() == 16 && !cluster.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn child_names_contain_the_session_number() {
        let id = SessionId(0x4dbe_55ab_68bb_a16c);
        let parent = parent_name(id);
        assert_eq!(parent, "mc-4dbe55ab68bba16c");
        assert_eq!(parent_id(&parent), Some(id));
        let child = child_name(&parent, "remote-1");
        assert_eq!(child, "mc-4dbe55ab68bba16c-remote-1");
        assert_eq!(child_id(&child), Some(id));
        assert_eq!(
            child_name(&parent, "Team_Blue"),
            "mc-4dbe55ab68bba16c-team-blue"
        );
        for other in [
            "mc-4dbe55ab68bba16c",
            "mc-1-east",
            "session-4dbe55ab68bba16c",
            "mc-4dbe55ab68bba16c-",
        ] {
            assert_eq!(child_id(other), None, "{other}");
        }
    }
}
