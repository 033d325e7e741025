//! What users can say about agents.

use std::collections::BTreeMap;
use std::time::Duration;

/// How agents are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentSettings {
    pub image: String,
    /// `Always`, `IfNotPresent` or `Never`.
    pub image_pull_policy: String,
    /// Names of Secrets. An ephemeral container can only use those of its pod.
    pub image_pull_secrets: Vec<String>,
    /// How much the agent says in its log.
    pub log_level: String,
    /// In a container of the target's pod, or in a pod on its node. None: what the cluster allows, in this order.
    pub ephemeral: Option<bool>,
    /// How long an agent may take to answer.
    pub startup_timeout: Duration,
    /// How long a client may be away before its session is over.
    pub resume_window: Duration,
    pub pod: PodSettings,
}

/// How an agent is made that is a pod of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodSettings {
    /// In place of the target's.
    pub namespace: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// None: all taints are tolerated, since the agent has to be where the target is.
    pub tolerations: Option<Vec<Toleration>>,
    /// As in a manifest: `cpu` and `memory`.
    pub requests: BTreeMap<String, String>,
    pub limits: BTreeMap<String, String>,
    /// Where an agent without a target may be.
    pub node_selector: BTreeMap<String, String>,
    pub service_account: Option<String>,
    pub priority_class: Option<String>,
}

/// As in a manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Toleration {
    pub key: Option<String>,
    pub operator: Option<String>,
    pub value: Option<String>,
    pub effect: Option<String>,
}
