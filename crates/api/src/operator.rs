//! The object `mirrordoperators/operator`: version, features and running sessions of an operator. It is served live and
//! not stored.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::GROUP_VERSION;
use crate::session::SessionPort;

/// The name of the only object of its kind.
pub const NAME: &str = "operator";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MirrordOperator {
    pub api_version: String,
    pub kind: String,
    #[schemars(with = "crate::target::AnyObject")]
    pub metadata: ObjectMeta,
    pub spec: MirrordOperatorSpec,
    #[serde(default)]
    pub status: MirrordOperatorStatus,
}

impl MirrordOperator {
    pub const KIND: &str = "MirrordOperator";

    pub fn new(spec: MirrordOperatorSpec, status: MirrordOperatorStatus) -> Self {
        Self {
            api_version: GROUP_VERSION.to_owned(),
            kind: Self::KIND.to_owned(),
            metadata: ObjectMeta {
                name: Some(NAME.to_owned()),
                ..ObjectMeta::default()
            },
            spec,
            status,
        }
    }
}

/// Version, features and settings of an operator. An operator of another version may set fewer fields.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MirrordOperatorSpec {
    /// Whether copies of targets can be created.
    #[serde(default)]
    pub copy_target_enabled: bool,
    /// The namespace of targets that are named without one.
    #[serde(default)]
    pub default_namespace: String,
    /// The features in the form that the oldest clients read.
    #[serde(default)]
    pub features: Vec<String>,
    /// Absent without a licence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub license: Option<License>,
    /// The roles of the clusters that the operator coordinates. Absent in an operator for one cluster. Ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multi_cluster: Option<MultiClusterRoles>,
    /// The namespace in which the operator runs.
    #[serde(default)]
    pub operator_namespace: String,
    pub operator_version: String,
    /// The version of the protocol between agents and clients.
    #[serde(default)]
    pub protocol_version: String,
    /// All features that work.
    #[serde(default)]
    pub supported_features: Vec<String>,
}

/// The roles of clusters in sessions over several clusters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MultiClusterRoles {
    /// The name of this cluster, the Primary.
    pub cluster_name: String,
    /// The cluster that environment, files, DNS names and outgoing connections come from.
    pub default_cluster: String,
    /// Whether this cluster has no targets.
    pub management_only: bool,
}

/// The licensee of the operator, from a Secret of the administrator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct License {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expire_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    pub name: String,
    pub organization: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subscription_id: Option<String>,
}

/// Running sessions and connected clusters of an operator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MirrordOperatorStatus {
    /// The member clusters. Empty in an operator for one cluster.
    #[serde(default)]
    pub connected_clusters: Vec<ConnectedCluster>,
    #[serde(default)]
    pub copy_targets: Vec<String>,
    #[serde(default)]
    pub sessions: Vec<RunningSession>,
    /// Absent where users are not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statistics: Option<Statistics>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ConnectedCluster {
    pub name: String,
    /// When its health was last checked. Absent before the first check.
    #[serde(rename = "lastCheck", default, skip_serializing_if = "Option::is_none")]
    pub last_check: Option<String>,
    /// The operator there, if it responded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connected: Option<ConnectedOperator>,
    /// What will fail without intervention, such as a credential that expires. Ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The operator of another cluster, as it describes itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ConnectedOperator {
    /// Absent where that operator has no licence data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub license_fingerprint: Option<String>,
    pub operator_version: String,
}

/// A summary of one session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunningSession {
    /// The session's number, in hexadecimal digits.
    pub id: String,
    pub user: String,
    pub target: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    pub duration_secs: u64,
    /// The ports that the session steals from or mirrors. Ours.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<SessionPort>,
}

/// Daily and monthly active users: how many different users had sessions on this day, and on the last thirty days
/// including this one. Days are those of UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Statistics {
    pub dau: u32,
    pub mau: u32,
}
