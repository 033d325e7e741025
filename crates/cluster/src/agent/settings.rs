//! The settings of agents that users can change.

use std::collections::BTreeMap;
use std::time::Duration;

/// How agents are created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentSettings {
    pub image: String,
    /// `Always`, `IfNotPresent` or `Never`.
    pub image_pull_policy: String,
    /// Names of Secrets. An ephemeral container can only use those of its pod.
    pub image_pull_secrets: Vec<String>,
    pub log_level: String,
    /// Whether the agent is an ephemeral container of the target's pod, or a pod on its node. `None`: an ephemeral container
    /// if the cluster allows it, else a pod.
    pub ephemeral: Option<bool>,
    /// How long an agent may take until it accepts connections.
    pub startup_timeout: Duration,
    /// How long a client may be disconnected before its session ends.
    pub resume_window: Duration,
    pub pod: PodSettings,
}

/// How the pod of an agent is created, if it has its own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodSettings {
    /// Overrides the target's namespace.
    pub namespace: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// `None`: all taints are tolerated, since the agent must run on the target's node.
    pub tolerations: Option<Vec<Toleration>>,
    /// As in a manifest: `cpu` and `memory`.
    pub requests: BTreeMap<String, String>,
    pub limits: BTreeMap<String, String>,
    /// The nodes on which an agent without a target may run.
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
