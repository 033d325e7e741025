//! The settings of the operator.

use std::net::SocketAddr;
use std::time::Duration;

use api::session::SessionClosed;
pub use cluster::{AgentSettings, PodSettings};

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
    /// How long an agent may take to confirm changed policies before its session's traffic to it is stopped.
    pub policy_confirmation_timeout: Duration,
    pub agent_mode: AgentMode,
    /// Whether sessions without a target are allowed. Their agents are pods in the namespaces of users.
    pub targetless: bool,
    /// Whether users who may list sessions see the patterns of filters, and not only what the filters apply to.
    pub shows_filter_patterns: bool,
    /// Image pull secrets in the operator's namespace, for agents that are pods there.
    pub agent_image_pull_secrets: Vec<String>,
    /// The settings of agents. How long an agent waits for its client depends on the session.
    pub agent: AgentSettings,
    /// The settings of a Primary, if this operator is one.
    pub primary: Option<PrimarySettings>,
    /// If set, sessions that a Primary creates here also need the permission of this cluster's own rules.
    pub member_authorization: Option<MemberAuthorization>,
}

/// The settings of an operator that coordinates member clusters.
#[derive(Clone, Debug)]
pub struct PrimarySettings {
    /// The ConfigMap in the operator's namespace with the list of clusters.
    pub config_map: String,
    /// How long sessions over several clusters wait for their client.
    pub session: SessionSettings,
    /// How long the children of a session may take to become ready.
    pub startup_timeout: Duration,
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

/// How long sessions last, and how long they wait for their client to reconnect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionSettings {
    /// The default resume window.
    pub time_to_live: Duration,
    /// The maximum resume window.
    pub max_resume: Duration,
    /// The maximum age of a session, if there is one.
    pub max_age: Option<Duration>,
    /// The interval at which the rights of connected users are reviewed.
    pub review_interval: Duration,
}

impl SessionSettings {
    /// The heartbeat interval of a session. Several heartbeats fit into the time that the session waits for its client.
    pub(crate) fn heartbeat(&self, default: Duration) -> Duration {
        default.min(self.time_to_live / 4)
    }

    /// How long a session of this age may still last. `None` without a maximum.
    pub(crate) fn remaining(&self, age: Duration) -> Option<Duration> {
        self.max_age.map(|max_age| max_age.saturating_sub(age))
    }

    /// The end of a session that has reached the maximum age.
    pub(crate) fn end_of_age(&self, age: Duration) -> Option<SessionClosed> {
        let max_age = self.max_age.filter(|max_age| age >= *max_age)?;
        Some(SessionClosed {
            reason: "MaxAge".to_owned(),
            message: format!(
                "the session has reached the maximum age of {} s, which the administrator has set \
                 (`operator.session.maxSecs`); start a new one",
                max_age.as_secs()
            ),
        })
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
                max_age: None,
                review_interval: Duration::from_secs(300),
            };
            let retention = settings.failed_retention();
            assert_eq!(retention, Duration::from_secs(expected));
        }
    }
}
