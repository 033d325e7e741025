//! The administrators' policies: what sessions must not do, whatever the client requests. Agents enforce them.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A policy for the targets of its namespace.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "policies.mirrord.metalbear.co",
    version = "v1alpha",
    kind = "MirrordPolicy",
    plural = "mirrordpolicies",
    namespaced,
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct MirrordPolicySpec {
    #[serde(flatten)]
    pub rules: PolicyRules,
}

/// A policy for the targets of all namespaces.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "policies.mirrord.metalbear.co",
    version = "v1alpha",
    kind = "MirrordClusterPolicy",
    plural = "mirrordclusterpolicies",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct MirrordClusterPolicySpec {
    #[serde(flatten)]
    pub rules: PolicyRules,
}

/// Which targets a policy selects, and what it forbids there. A policy without `targetPath` and `selector` selects all
/// targets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyRules {
    /// A pattern of targets in the form for users, with `*` for any characters: `deployment/check*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_path: Option<String>,
    /// A selector of the labels of a target's pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<PolicySelector>,
    /// What sessions must not do with the target's traffic.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub block: Vec<BlockedFeature>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<EnvironmentRules>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fs: Option<FileRules>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkRules>,
}

/// A Kubernetes label selector.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicySelector {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<SelectorExpression>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SelectorExpression {
    pub key: String,
    pub operator: SelectorOperator,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SelectorOperator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum BlockedFeature {
    Steal,
    StealWithoutFilter,
    Mirror,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EnvironmentRules {
    /// Patterns of variables that no session gets, with `*` for any characters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
}

/// Regular expressions of paths without symbolic links, which are not anchored. They take precedence over the client's
/// configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileRules {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub read_only: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub local: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_found: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkRules {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incoming: Option<IncomingRules>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outgoing: Option<OutgoingRules>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IncomingRules {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_filter: Option<HttpFilterRule>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HttpFilterRule {
    /// A regular expression. Sessions steal only requests of which a header line, `name: value`, matches it. It is not anchored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
}

/// Addresses, networks, DNS names and ports, as in a session's own outgoing filter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OutgoingRules {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub block: Vec<String>,
}
