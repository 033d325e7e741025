//! What can go wrong, and what the user can do about it.

use std::time::Duration;

use kube::config::KubeconfigError;

use crate::refusal::Refusal;
use crate::rights::{Right, role};

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(
        "the kubeconfig cannot be used; `kubectl config view` shows what there is, and --kubeconfig names another file"
    )]
    Kubeconfig(#[source] Box<KubeconfigError>),

    #[error(
        "{}; it has {}. --context names one, --kubeconfig another file",
        no_context(.context),
        .there.join(", ")
    )]
    NoContext {
        /// Empty: none was named, and none is the current one.
        context: String,
        there: Vec<String>,
    },

    #[error("the client of the API server cannot be made from the kubeconfig")]
    Client(#[source] Box<kube::Error>),

    #[error("the API server {server} does not answer; `kubectl version` tries the same")]
    Unreachable {
        server: String,
        #[source]
        source: Box<kube::Error>,
    },

    #[error(
        "the API server does not accept these credentials ({0}); log in again, and try `kubectl auth whoami`"
    )]
    Unauthorized(String),

    #[error(
        "you may not {action} in the namespace {namespace}; ask for this, bound to you with a RoleBinding:\n\n{}",
        role(.namespace, .missing)
    )]
    Forbidden {
        action: String,
        namespace: String,
        missing: Vec<Right>,
    },

    #[error("there is no {target} in the namespace {namespace}. {hint}")]
    NotFound {
        target: String,
        namespace: String,
        hint: String,
    },

    #[error("{target} in the namespace {namespace} has no pod to stand in for: {why}")]
    NoPod {
        target: String,
        namespace: String,
        why: String,
    },

    #[error("{0}")]
    Refused(Refusal),

    #[error("the agent in pod {pod} did not start: {why}")]
    AgentFailed { pod: String, why: String },

    #[error(
        "the agent in pod {pod} did not answer within {} s ({why}); `agent.startup_timeout` allows more",
        .waited.as_secs()
    )]
    Timeout {
        pod: String,
        waited: Duration,
        why: String,
    },

    #[error("the API server would not {action}")]
    Api {
        action: String,
        #[source]
        source: Box<kube::Error>,
    },

    #[error("you may not {action}; ask for this, bound to you with a {binding}:\n\n{role}")]
    MayNot {
        action: String,
        /// The kind of what binds the role to a user.
        binding: &'static str,
        role: String,
    },

    #[error(
        "there is no operator in this cluster; install it as docs/operator.md says, or let the session use your own rights \
         (`operator: false`, --no-operator)"
    )]
    NoOperator,

    #[error(
        "the cluster has an operator that does not answer ({why}). Tell whoever looks after it: `kubectl get apiservice \
         v1.operator.metalbear.co` says more. Without it, a session uses your own rights: `operator: false`, --no-operator"
    )]
    OperatorDown { why: String },

    #[error("the operator cannot do it now: {0}")]
    OperatorBusy(String),

    #[error("the operator refuses: {0}")]
    OperatorRefused(String),

    #[error(
        "another operator answers in this cluster, or another version, which this standin does not understand. Without it, a \
         session uses your own rights: `operator: false`, --no-operator"
    )]
    ForeignOperator,

    #[error("the session is over: {0}")]
    SessionOver(String),

    #[error("the session is over ({0}), and begins anew")]
    SessionExpired(String),

    #[error("the connection to the agent cannot be set up")]
    Link(#[from] link::LinkError),
}

impl Error {
    /// What an answer of the API server means that is no special case.
    pub(crate) fn api(action: impl Into<String>, source: kube::Error) -> Self {
        match &source {
            kube::Error::Api(status) if status.code == 401 => {
                Self::Unauthorized(status.message.clone())
            }
            _ => Self::Api {
                action: action.into(),
                source: Box::new(source),
            },
        }
    }

    /// Whether the API server itself is in trouble, so that nothing is known about what was asked for.
    pub fn is_of_the_api_server(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Api { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => status.code == 429 || status.code >= 500,
                kube::Error::Service(_) | kube::Error::HyperError(_) => true,
                _ => false,
            },
            _ => false,
        }
    }

    /// Whether the same may work a little later.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::NoPod { .. }
            | Self::AgentFailed { .. }
            | Self::Timeout { .. }
            | Self::OperatorDown { .. }
            | Self::OperatorBusy(_)
            | Self::SessionExpired(_)
            | Self::Api { .. } => true,
            Self::Kubeconfig(_)
            | Self::NoContext { .. }
            | Self::Client(_)
            | Self::Unauthorized(_)
            | Self::Forbidden { .. }
            | Self::NotFound { .. }
            | Self::Refused(_)
            | Self::MayNot { .. }
            | Self::NoOperator
            | Self::OperatorRefused(_)
            | Self::ForeignOperator
            | Self::SessionOver(_)
            | Self::Link(_) => false,
        }
    }
}

impl From<KubeconfigError> for Error {
    fn from(error: KubeconfigError) -> Self {
        Self::Kubeconfig(Box::new(error))
    }
}

fn no_context(context: &str) -> String {
    match context {
        "" => "the kubeconfig has no current context".to_owned(),
        context => format!("there is no context `{context}` in the kubeconfig"),
    }
}

/// An error with everything behind it, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        // Some errors repeat what is behind them.
        let behind = error.to_string();
        if !text.contains(&behind) {
            text = format!("{text}: {behind}");
        }
        source = error.source();
    }
    text
}

/// The answer of the API server, when it is one.
pub(crate) fn status(error: &kube::Error) -> Option<&kube::core::Status> {
    match error {
        kube::Error::Api(status) => Some(status),
        _ => None,
    }
}

pub(crate) fn code(error: &kube::Error) -> Option<u16> {
    status(error).map(|status| status.code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(code: u16) -> Error {
        let status = kube::core::Status {
            code,
            ..kube::core::Status::default()
        };
        Error::api("list pods", kube::Error::Api(Box::new(status)))
    }

    #[test]
    fn only_an_api_server_in_trouble_is_asked_the_same_again() {
        for (code, expected) in [
            (400, false),
            (404, false),
            (403, false),
            (401, false),
            (409, false),
            (422, false),
            (429, true),
            (500, true),
            (503, true),
        ] {
            assert_eq!(answered(code).is_of_the_api_server(), expected, "{code}");
        }
        let no_pod = Error::NoPod {
            target: String::new(),
            namespace: String::new(),
            why: String::new(),
        };
        assert!(!no_pod.is_of_the_api_server());
    }
}
