//! `agent`: what is started beside a target in a cluster.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::OrderedMap;

/// The part of a session that is started in a cluster, beside the target
///
/// Targets of this machine do not use these settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AgentSettings {
    /// The container image with `standind`. Required for sessions in a cluster, unless they use the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        with = "String",
        extend("default" = null, "examples" = ["registry.example.com/tools/standind:0.1.0"])
    )]
    pub image: Option<String>,

    /// When a node pulls the image.
    pub image_pull_policy: ImagePullPolicy,

    /// Secrets to pull the image with. Only for an agent that is a pod: an ephemeral container uses those of its pod.
    #[schemars(extend("examples" = [[{"name": "registry"}]]))]
    pub image_pull_secrets: Vec<PullSecret>,

    /// Whether the agent is an ephemeral container of the target's pod (`true`) or a pod on the target's node (`false`).
    ///
    /// Without a value, it is an ephemeral container if the cluster allows it, and otherwise a pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "bool", extend("default" = null, "examples" = [true]))]
    pub ephemeral: Option<bool>,

    /// The namespace of an agent that is a pod. The default is the target's namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("default" = null, "examples" = ["tools"]))]
    pub namespace: Option<String>,

    /// Labels for an agent that is a pod.
    #[schemars(extend("examples" = [{"team": "shop"}]))]
    pub labels: OrderedMap<String>,

    /// Annotations for an agent that is a pod.
    #[schemars(extend("examples" = [{"example.com/owner": "shop"}]))]
    pub annotations: OrderedMap<String>,

    /// Tolerations of an agent that is a pod. By default, it tolerates all taints, because it must run on the target's
    /// node.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        with = "Vec<Toleration>",
        extend("default" = null, "examples" = [[{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}]])
    )]
    pub tolerations: Option<Vec<Toleration>>,

    /// Resource requests and limits of an agent that is a pod.
    pub resources: Resources,

    /// The nodes on which an agent without a target may run.
    #[schemars(extend("examples" = [{"kubernetes.io/arch": "amd64"}]))]
    pub node_selector: OrderedMap<String>,

    /// The service account of an agent that is a pod. It needs no rights, and gets no token.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("default" = null, "examples" = ["standin-agent"]))]
    pub service_account: Option<String>,

    /// The priority class of an agent that is a pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("default" = null, "examples" = ["system-node-critical"]))]
    pub priority_class: Option<String>,

    /// The log level of the agent: off, error, warn, info, debug or trace. `kubectl logs` prints its log.
    pub log_level: String,

    /// The timeout for the start of an agent, in seconds.
    pub startup_timeout: Seconds,

    /// How many seconds the connection to the agent may be lost. Until then, the session resumes and nothing is lost. After
    /// that, the agent ends, and the session starts another one; open connections and files are reset.
    pub communication_timeout: Seconds,
}

/// When a node pulls an image
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ImagePullPolicy {
    /// for every agent
    Always,
    /// if it is not on the node
    IfNotPresent,
    /// never
    Never,
}

/// The name of a Secret
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PullSecret {
    /// The Secret's name.
    pub name: String,
}

/// The same as in a pod spec
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Toleration {
    /// The key of the taint. Without it, all keys match.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("default" = null))]
    pub key: Option<String>,

    /// `Exists` or `Equal`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("default" = null))]
    pub operator: Option<String>,

    /// The value of the taint, for `Equal`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("default" = null))]
    pub value: Option<String>,

    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`. Without it, all effects match.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("default" = null))]
    pub effect: Option<String>,
}

/// The same as in a pod spec
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Resources {
    /// The resource requests of the pod.
    #[schemars(extend("examples" = [{"cpu": "10m", "memory": "16Mi"}]))]
    pub requests: OrderedMap<String>,

    /// The resource limits of the pod.
    #[schemars(extend("examples" = [{"cpu": "1", "memory": "256Mi"}]))]
    pub limits: OrderedMap<String>,
}

/// A number of seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seconds(pub u64);

impl JsonSchema for Seconds {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Seconds".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": 0 })
    }
}

impl Default for AgentSettings {
    fn default() -> Self {
        Self {
            image: None,
            image_pull_policy: ImagePullPolicy::IfNotPresent,
            image_pull_secrets: Vec::new(),
            ephemeral: None,
            namespace: None,
            labels: OrderedMap::default(),
            annotations: OrderedMap::default(),
            tolerations: None,
            resources: Resources::default(),
            node_selector: OrderedMap::default(),
            service_account: None,
            priority_class: None,
            log_level: "info".to_owned(),
            startup_timeout: Seconds(60),
            communication_timeout: Seconds(600),
        }
    }
}

impl Default for Resources {
    fn default() -> Self {
        let requests = [("cpu", "10m"), ("memory", "16Mi")]
            .map(|(name, amount)| (name.to_owned(), amount.to_owned()));
        Self {
            requests: OrderedMap(requests.to_vec()),
            limits: OrderedMap::default(),
        }
    }
}
