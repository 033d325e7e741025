//! `mirrordoperators/operator`: what an operator is and what it is doing. It is served live and stored nowhere.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::GROUP_VERSION;
use crate::session::SessionPort;

/// The only object of its kind.
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

/// What an operator is. One of another version may say less.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MirrordOperatorSpec {
    /// Whether copies of targets can be made.
    #[serde(default)]
    pub copy_target_enabled: bool,
    /// The namespace of targets that are named without one.
    #[serde(default)]
    pub default_namespace: String,
    /// The features that the oldest clients look for.
    #[serde(default)]
    pub features: Vec<String>,
    /// Absent where no licence was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub license: Option<License>,
    /// The part of this cluster among those that the operator coordinates. Absent in an operator for one cluster. Ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multi_cluster: Option<MultiClusterRoles>,
    /// The namespace in which the operator runs.
    #[serde(default)]
    pub operator_namespace: String,
    pub operator_version: String,
    /// The version of what agents and clients speak with one another.
    #[serde(default)]
    pub protocol_version: String,
    /// All features that work.
    #[serde(default)]
    pub supported_features: Vec<String>,
}

/// Which cluster has which part in a session over several.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MultiClusterRoles {
    /// What this cluster, the Primary, is called.
    pub cluster_name: String,
    /// The cluster of which environment, files, names and outgoing connections are.
    pub default_cluster: String,
    /// Whether this cluster has no targets.
    pub management_only: bool,
}

/// Whose operator it is, from a Secret of the administrator.
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

/// What an operator is doing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MirrordOperatorStatus {
    /// Other clusters, where there are some. Empty in an operator for one cluster.
    #[serde(default)]
    pub connected_clusters: Vec<ConnectedCluster>,
    #[serde(default)]
    pub copy_targets: Vec<String>,
    #[serde(default)]
    pub sessions: Vec<RunningSession>,
    /// Absent where nobody counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statistics: Option<Statistics>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ConnectedCluster {
    pub name: String,
    /// When it was last asked.
    #[serde(rename = "lastCheck")]
    pub last_check: String,
    /// The operator there, if it answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connected: Option<ConnectedOperator>,
    /// What will go wrong if nobody does anything, such as a credential that ends. Ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The operator of another cluster, as it says of itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ConnectedOperator {
    /// Absent where that operator has no licence data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub license_fingerprint: Option<String>,
    pub operator_version: String,
}

/// One session, in a line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunningSession {
    /// The session's number, in hexadecimal digits.
    pub id: String,
    pub user: String,
    pub target: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    pub duration_secs: u64,
    /// The ports whose traffic it has. Ours.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<SessionPort>,
}

/// How many different users have had sessions, on this day and in thirty with it. Days are those of UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Statistics {
    pub dau: u32,
    pub mau: u32,
}
