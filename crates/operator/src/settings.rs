//! The settings of the operator.

use std::net::SocketAddr;
use std::time::Duration;

pub use cluster::{AgentSettings, PodSettings};

use crate::multicluster::MultiCluster;

/// The longest retention of a failed session, which has no client that could resume it.
const MAX_FAILED_RETENTION: Duration = Duration::from_secs(60);

/// The settings that the chart passes. They do not change at run time.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The namespace in which the operator runs.
    pub namespace: String,
    /// The Service of all replicas, through which the API server reaches them.
    pub service: String,
    /// The Secret for certificates, which the chart creates.
    pub secret: String,
    /// The Lease for leader election.
    pub lease: String,
    /// The name of this replica: the pod's.
    pub replica: String,
    /// The Secret with licence data, if there is one.
    pub license_secret: Option<String>,
    /// The listen address for the API server.
    pub listen: SocketAddr,
    /// The listen address for the kubelet.
    pub listen_for_probes: SocketAddr,
    /// The listen address for Prometheus.
    pub listen_for_metrics: SocketAddr,
    /// The namespace of targets that are named without one.
    pub default_namespace: String,
    pub session: SessionSettings,
    pub agent_mode: AgentMode,
    /// Whether sessions without a target are allowed. Their agents are pods in the namespaces of users.
    pub targetless: bool,
    /// Whether users who may list sessions see the patterns of filters, and not only what the filters apply to.
    pub shows_filter_patterns: bool,
    /// Image pull secrets in the operator's namespace, for agents that are pods there.
    pub agent_image_pull_secrets: Vec<String>,
    /// The settings of agents. How long an agent waits for its client depends on the session.
    pub agent: AgentSettings,
    /// The member clusters, if this operator is a Primary.
    pub multi_cluster: Option<MultiCluster>,
    /// If set, sessions that a Primary creates here also need the permission of this cluster's own rules.
    pub member_authorization: Option<MemberAuthorization>,
}

/// The mapping of a Primary's users and groups to names of this cluster. Without prefixes the names are the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberAuthorization {
    pub user_prefix: String,
    pub group_prefix: String,
}

/// Where the agents of sessions run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentMode {
    /// In an ephemeral container of the target's pod.
    Ephemeral,
    /// In a separate pod on the target's node, in the operator's namespace.
    Pod,
    /// In the node agent that runs on each node, so that nothing has to be started.
    Node,
}

/// How long sessions wait for their client to reconnect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionSettings {
    /// The default resume window.
    pub time_to_live: Duration,
    /// The maximum resume window.
    pub max_resume: Duration,
}

impl SessionSettings {
    /// The heartbeat interval of a session. Several heartbeats fit into the time that the session waits for its client.
    pub(crate) fn heartbeat(&self, default: Duration) -> Duration {
        default.min(self.time_to_live / 4)
    }

    /// How long the object of a failed session is kept, so that users can read the reason.
    pub(crate) fn failed_retention(&self) -> Duration {
        self.time_to_live.min(MAX_FAILED_RETENTION)
    }
}

impl Settings {
    /// The name of the APIService, which its group and version determine.
    pub const API_SERVICE: &str = "v1.operator.metalbear.co";

    /// The DNS names with which the API server verifies the operator's certificate.
    pub fn host_names(&self) -> Vec<String> {
        let (service, namespace) = (&self.service, &self.namespace);
        vec![
            format!("{service}.{namespace}.svc"),
            format!("{service}.{namespace}.svc.cluster.local"),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_sessions_are_kept_no_longer_than_others() {
        for (time_to_live, expected) in [(15, 15), (60, 60), (86_400, 60)] {
            let settings = SessionSettings {
                time_to_live: Duration::from_secs(time_to_live),
                max_resume: Duration::from_secs(86_400),
            };
            let retention = settings.failed_retention();
            assert_eq!(retention, Duration::from_secs(expected));
        }
    }
}
