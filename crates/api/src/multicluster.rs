//! A session over several clusters: the parent, which the client knows, of one child in each cluster.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::data::SessionData;
use crate::session::{SessionClosed, SessionId, SessionOwner, SessionPod, SessionPort};

/// Keeps a parent's object until its children are gone.
pub const PARENT_FINALIZER: &str = "operator.metalbear.co/multi-cluster-session-cleanup";
/// The Primary's question for a child's connection has the child's name in this header. Ours.
pub const CHILD_HEADER: &str = "x-multi-cluster-child";
/// Children have this label, with the parent's name. Ours.
pub const PARENT_LABEL: &str = "operator.metalbear.co/multi-cluster-parent";
/// And this one, with the parent's uid: two Primaries may have sessions of one number. Ours.
pub const PARENT_UID_LABEL: &str = "operator.metalbear.co/multi-cluster-parent-uid";

const PREFIX: &str = "mc-";

/// One session of one user with one target in several clusters, as the Primary drives it.
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
#[serde(rename_all = "camelCase")]
pub struct MirrordMultiClusterSessionSpec {
    pub owner: SessionOwner,
    /// The target's namespace, which is the same in all clusters.
    pub namespace: String,
    /// As people write it: `deployment/checkout/container/app`.
    pub target: String,
    /// As it is in addresses: `deployment.checkout.container.app`.
    pub target_alias: String,
    /// The clusters that take part. Their order never changes: places are numbered by it.
    pub clusters: Vec<String>,
    pub primary_cluster: String,
    /// The cluster of what must have one answer.
    pub default_cluster: String,
    /// What becomes of the session without one of its clusters. Ours.
    #[serde(default)]
    pub on_unreachable: OnUnreachable,
    /// The labels of the pods, for the target `label`. Ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_target: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_cli_version: Option<String>,
    /// How long the session and its children wait for the client, in seconds. Ours.
    pub resume_window_secs: u64,
    /// The SHA-256 of the client's certificate, in hexadecimal digits. Ours.
    pub client_certificate: String,
    /// As the client said it. Its parts get what is theirs. Ours.
    #[serde(default, skip_serializing_if = "SessionData::is_empty")]
    pub data: SessionData,
}

impl MirrordMultiClusterSessionSpec {
    /// The data of the session's part in a cluster. A branch is there once, in the Default; each cluster has queues of its
    /// own.
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
    /// Why the phase is what it is, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The children, by cluster. A child is here before it is made, so that none is forgotten.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cluster_sessions: BTreeMap<String, ClusterSession>,
    /// When the client was last seen. Written by the replica that carries the connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connected_timestamp: Option<String>,
    /// When the session failed. It is kept for a while, so that its client and people find the reason. Ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_timestamp: Option<String>,
    /// Set once, when the session is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<SessionClosed>,
}

/// What becomes of a session without one of its clusters. It never goes on without its Default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum OnUnreachable {
    /// It starts with all of them, and ends with the first child that ends.
    #[default]
    Fail,
    /// It starts with the Default. Others join when they can, leave, and join again.
    Continue,
}

/// Where a session is in its life. It is left as its documentation says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MultiClusterPhase {
    /// It is written down which children there will be. Left when they are being made.
    Initializing,
    /// Children are being made. Left when all are ready that must be, or when one of these cannot be.
    Pending,
    /// A client can connect. Left when the client stays away for longer than the resume window, when it says that it is
    /// done, when somebody ends the session or a child without which it does not go on.
    Ready,
    /// Nothing will come of it. The message says why. Left only by deletion.
    Failed,
    /// Children are being removed. Left when they are gone, and the object with them.
    Terminating,
}

/// One child, as the Primary knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterSession {
    /// The name of the child's object.
    pub session_name: String,
    pub ready: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// When the child last had its client, by the clock of its cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heartbeat: Option<String>,
    /// Whether the child has been seen in its cluster. One that has been and is not any more was ended. Ours.
    #[serde(default)]
    pub made: bool,
    /// How many children there were before it, for a cluster that has joined again. Ours.
    #[serde(default)]
    pub generation: u32,
    /// The pods that take part there, as the cluster said last. A client that comes back after a restart of the Primary is
    /// told of them at once, and does not take them for gone. Ours.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<SessionPod>,
    /// The ports whose traffic it has there. Ours.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<SessionPort>,
    /// When the one before it was found to be gone. Ours.
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

/// The number of the session whose parent has this name.
pub fn parent_id(name: &str) -> Option<SessionId> {
    SessionId::from_hexadecimal(name.strip_prefix(PREFIX)?)
}

/// The name of the child in a cluster. EKS allows letters in names that Kubernetes does not.
pub fn child_name(parent: &str, cluster: &str) -> String {
    let cluster = cluster.to_ascii_lowercase().replace('_', "-");
    format!("{parent}-{cluster}")
}

/// The number of the session of which an object of this name is a child.
pub fn child_id(name: &str) -> Option<SessionId> {
    let (id, cluster) = name.strip_prefix(PREFIX)?.split_once('-')?;
    SessionId::from_hexadecimal(id).filter(|_| id.len() == 16 && !cluster.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_childs_name_says_whose_it_is() {
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
