//! The observed state of a session, from which the next steps are planned.

use cluster::{AgentInstance, AgentInstanceState, Replica};

/// The observed state of a session's pods and agents.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Observed {
    /// Pods that can have an agent, sorted by name.
    pub(crate) pods: Vec<ObservedPod>,
    /// Pods that cannot have an agent, with the reason.
    pub(crate) unfit: Vec<String>,
    /// Why the session has no target at all.
    pub(crate) missing: Option<String>,
}

impl Observed {
    /// The state of a session without a target.
    pub(crate) fn missing(reason: String) -> Self {
        Self {
            missing: Some(reason),
            ..Self::default()
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ObservedPod {
    pub(crate) replica: Replica,
    /// The session's agents for this pod, the oldest first.
    pub(crate) agents: Vec<ObservedAgent>,
    /// A digest of the cached policies. They are read again before the agent's grant is changed.
    pub(crate) policies: String,
    /// The grant that the agent received in this reconciliation.
    pub(crate) new_grant: Option<GrantDigests>,
    /// Why an agent could not be started in this reconciliation.
    pub(crate) start_failure: Option<StartFailure>,
    /// Why the pod is not part of the session, although it belongs to its target.
    pub(crate) refused: Option<String>,
    /// Why the agent has not confirmed its new grant in this reconciliation.
    pub(crate) grant_failure: Option<String>,
}

/// Digests of an agent's grant and of the policies that it was computed from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GrantDigests {
    pub(crate) policies: String,
    pub(crate) grant: String,
}

/// An agent of a session, in any agent mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObservedAgent {
    pub(crate) instance: AgentInstance,
    /// The address of the pod in which it runs.
    pub(crate) host: Option<String>,
    /// The SHA-256 of its certificate, if a trusted node agent reported it.
    pub(crate) certificate: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StartFailure {
    pub(crate) reason: String,
    /// Whether a retry is pointless.
    pub(crate) is_final: bool,
}

impl ObservedAgent {
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.instance.state, AgentInstanceState::Ended(_))
    }

    /// The address at which the operator reaches the agent.
    pub(crate) fn address(&self) -> Option<String> {
        let host = self.host.as_ref()?;
        let port = self.instance.port;
        Some(match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        })
    }
}
