//! The errors of this crate. Their texts include what the user can do.

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
        .available.join(", ")
    )]
    NoContext {
        /// Empty if none was named and there is no current context.
        context: String,
        available: Vec<String>,
    },

    #[error(
        "the context {context} has no token that could be passed on: {why}. `kubectl --context {context} create token \
         SERVICEACCOUNT` prints one for a service account"
    )]
    NoToken { context: String, why: String },

    #[error("cannot create a client for the API server from the kubeconfig")]
    Client(#[source] Box<kube::Error>),

    #[error("the API server {server} does not respond; `kubectl version` tries the same")]
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
        "the agent in pod {pod} did not respond within {} s ({why}); `agent.startup_timeout` allows more",
        .waited.as_secs()
    )]
    Timeout {
        pod: String,
        waited: Duration,
        why: String,
    },

    #[error("the API server refused to {action}")]
    Api {
        action: String,
        #[source]
        source: Box<kube::Error>,
    },

    #[error("you may not {action}; ask for this, bound to you with a {binding}:\n\n{role}")]
    AccessDenied {
        action: String,
        /// The kind of the object that binds the role to a user.
        binding: &'static str,
        role: String,
    },

    #[error(
        "there is no operator in this cluster; install it as docs/operator.md says, or let the session use your own rights \
         (`operator: false`, --no-operator)"
    )]
    NoOperator,

    #[error(
        "the cluster has an operator that does not respond ({why}). Inform its administrator: `kubectl get apiservice \
         v1.operator.metalbear.co` shows more. Without it, a session uses your own rights: `operator: false`, --no-operator"
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
    IncompatibleOperator,

    #[error("the session has ended: {0}")]
    SessionOver(String),

    #[error("the session has ended ({0}) and is restarted")]
    SessionExpired(String),

    #[error("the connection to the agent cannot be set up")]
    Link(#[from] link::LinkError),
}

impl Error {
    /// The error for an error response of the API server that needs no special handling.
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

    /// Whether the API server itself failed, so that the state of the requested object is unknown.
    pub fn is_api_server_failure(&self) -> bool {
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

    /// Whether a later retry may succeed.
    pub fn is_transient(&self) -> bool {
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
            | Self::NoToken { .. }
            | Self::Client(_)
            | Self::Unauthorized(_)
            | Self::Forbidden { .. }
            | Self::NotFound { .. }
            | Self::Refused(_)
            | Self::AccessDenied { .. }
            | Self::NoOperator
            | Self::OperatorRefused(_)
            | Self::IncompatibleOperator
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

/// The status that the API server responded with, if it is an error response.
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

    fn response(code: u16) -> Error {
        let status = kube::core::Status {
            code,
            ..kube::core::Status::default()
        };
        Error::api("list pods", kube::Error::Api(Box::new(status)))
    }

    #[test]
    fn only_overload_and_server_errors_are_api_server_failures() {
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
            assert_eq!(response(code).is_api_server_failure(), expected, "{code}");
        }
        let no_pod = Error::NoPod {
            target: String::new(),
            namespace: String::new(),
            why: String::new(),
        };
        assert!(!no_pod.is_api_server_failure());
    }
}
