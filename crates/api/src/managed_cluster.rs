//! The registry of a hub: one object per cluster that may dial in, in the hub's namespace.
//!
//! The hub writes objects for the clusters in its chart's values, and marks them. Others are created at run time, by
//! `standin cluster add`, `kubectl` or GitOps. Every replica of a hub watches them, so a change takes effect everywhere at once.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// The label of objects that the hub writes for its chart's values.
pub const FROM_VALUES: &str = "standin.dev/from-values";

/// A cluster that a tunnel agent may connect to the hub. Its name is the cluster's.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "standin.dev",
    version = "v1alpha1",
    kind = "ManagedCluster",
    plural = "managedclusters",
    namespaced,
    status = "ManagedClusterStatus",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct ManagedClusterSpec {
    /// Certificates that the hub no longer accepts. An entry can be removed when its certificate has expired.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub revoked: Vec<RevokedCertificate>,
    /// Certificates that were issued before this time are no longer accepted.
    #[schemars(schema_with = "optional_time")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_before: Option<Time>,
    /// For people and tools.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// A certificate that is no longer accepted, nor is another one for the same key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RevokedCertificate {
    /// In hex.
    pub serial: String,
    /// The SHA-256 of the public key, in hex.
    pub key: String,
    /// When the certificate expires.
    #[schemars(schema_with = "time")]
    pub expires_at: Time,
}

/// What the hub has seen of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ManagedClusterStatus {
    /// The certificates that were issued and have not expired, the newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub certificates: Vec<IssuedCertificate>,
    #[schemars(schema_with = "optional_time")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connected_since: Option<Time>,
    #[schemars(schema_with = "optional_time")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes_version: Option<String>,
    /// The SHA-256 fingerprints, in hex, of the certificate authorities that the agent has stored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trusted_authorities: Vec<String>,
}

/// A certificate that the hub has issued for an agent of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IssuedCertificate {
    /// In hex.
    pub serial: String,
    /// The SHA-256 of the public key, in hex.
    pub key: String,
    #[schemars(schema_with = "time")]
    pub issued_at: Time,
    #[schemars(schema_with = "time")]
    pub expires_at: Time,
}

fn time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "date-time" })
}

fn optional_time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "date-time", "nullable": true })
}
