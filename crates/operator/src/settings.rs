//! What an operator is told when it starts.

use std::net::SocketAddr;
use std::time::Duration;

pub use cluster::{AgentSettings, PodSettings};

use crate::multicluster::MultiCluster;

/// Everything that the chart decides. It does not change while the operator runs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The namespace in which the operator runs.
    pub namespace: String,
    /// The Service in front of all replicas, by which the API server knows them.
    pub service: String,
    /// The Secret for certificates, which the chart made.
    pub secret: String,
    /// The Lease by which replicas agree on a leader.
    pub lease: String,
    /// The name of this replica: the pod's.
    pub replica: String,
    /// The Secret with licence data, if there is one.
    pub license_secret: Option<String>,
    /// Where the API server connects to.
    pub listen: SocketAddr,
    /// Where the kubelet and Prometheus connect to.
    pub listen_for_probes: SocketAddr,
    /// The namespace of targets that are named without one.
    pub default_namespace: String,
    pub session: SessionSettings,
    pub agent_mode: AgentMode,
    /// Whether there are sessions without a target, whose agents are pods in the namespaces of users.
    pub targetless: bool,
    /// Whether people who may list sessions see what their filters look for, and not only where.
    pub shows_filter_patterns: bool,
    /// In the operator's namespace, for agents that are pods there.
    pub agent_image_pull_secrets: Vec<String>,
    /// How agents are made. How long they wait for their client is each session's matter.
    pub agent: AgentSettings,
    /// Other clusters, where this operator is the Primary of some.
    pub multi_cluster: Option<MultiCluster>,
    /// Whether sessions that a Primary makes here are also judged by the rules of this cluster.
    pub member_authorization: Option<MemberAuthorization>,
}

/// What a Primary's users and groups are called in this cluster. Without prefixes they have the same names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberAuthorization {
    pub user_prefix: String,
    pub group_prefix: String,
}

/// Where the agents of sessions are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentMode {
    /// In a container of the target's pod.
    Ephemeral,
    /// In a pod of its own on the target's node, in the operator's namespace.
    Pod,
    /// In a process that waits on each node, so that nothing has to be started.
    Node,
}

/// How long sessions live without their client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionSettings {
    /// What a client gets that asks for nothing.
    pub time_to_live: Duration,
    /// What a client gets at most.
    pub most_resume: Duration,
}

impl SessionSettings {
    /// How often a session says that its client is there. Several fit into the time that it waits for one.
    pub(crate) fn heartbeat(&self, usual: Duration) -> Duration {
        usual.min(self.time_to_live / 4)
    }
}

impl Settings {
    /// The name of the APIService, which Kubernetes prescribes.
    pub const API_SERVICE: &str = "v1.operator.metalbear.co";

    /// The names by which the API server knows the operator.
    pub fn host_names(&self) -> Vec<String> {
        let (service, namespace) = (&self.service, &self.namespace);
        vec![
            format!("{service}.{namespace}.svc"),
            format!("{service}.{namespace}.svc.cluster.local"),
        ]
    }
}
