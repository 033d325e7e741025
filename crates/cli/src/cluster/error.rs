//! What went wrong between this machine and a hub, each with the next step.

use std::io;

use axum::http::StatusCode;
use tokio_rustls::rustls::{self, CertificateError};

use super::address::HubAddress;
use super::trust::Pin;

/// What a request does, and the right that it needs in the hub's cluster.
#[derive(Debug, Clone, Copy)]
pub(super) struct Operation {
    /// As in "you may not list clusters".
    pub(super) action: &'static str,
    pub(super) verb: &'static str,
    /// With the subresource, in the format of RBAC rules.
    pub(super) resource: &'static str,
}

const fn operation(action: &'static str, verb: &'static str, resource: &'static str) -> Operation {
    Operation {
        action,
        verb,
        resource,
    }
}

pub(super) const DESCRIBE: Operation = operation("see this hub", "list", "managedclusters");
pub(super) const LIST: Operation = operation("list clusters", "list", "managedclusters");
pub(super) const GET: Operation = operation("see this cluster", "get", "managedclusters");
pub(super) const ADD: Operation = operation("register clusters", "create", "managedclusters");
pub(super) const TOKEN: Operation = operation(
    "create registration tokens",
    "create",
    "managedclusters/token",
);
pub(super) const REVOKE: Operation = operation("revoke certificates", "update", "managedclusters");
pub(super) const REMOVE: Operation = operation("remove clusters", "delete", "managedclusters");

#[derive(Debug, thiserror::Error)]
pub(super) enum HubError {
    #[error(
        "the hub {0} cannot be reached; check its address, and that port {port} is open from this machine",
        port = .0.port
    )]
    Unreachable(HubAddress, #[source] io::Error),

    #[error(
        "the hub {0} does not respond; something on the path drops the packets, or the hub is overloaded: try again, and ask its administrator"
    )]
    NoResponse(HubAddress),

    #[error(
        "port {port} of {host} does not speak TLS, so it is not a hub's port for Kubernetes clients, which is 6443 by default",
        port = .0.port,
        host = .0.host
    )]
    NotTls(HubAddress),

    #[error("the certificate of the hub {0} is not trusted: {why}", why = untrusted(.0, .1, *.2, *.3))]
    Untrusted(HubAddress, Box<CertificateError>, Option<Pin>, Option<Pin>),

    #[error(
        "the hub {0} closed the connection; something else may listen there, or a proxy on the path interferes"
    )]
    Connection(
        HubAddress,
        #[source] Box<dyn std::error::Error + Send + Sync>,
    ),

    #[error(
        "{message}; get a new token, and log in again: `standin cluster login {url} --kube-context CONTEXT`, with a context of the hub's own cluster",
        message = unauthorized(.0, .1),
        url = .0.url()
    )]
    Unauthorized(HubAddress, String),

    #[error("{}", forbidden(.0, .1, .2))]
    Forbidden(HubAddress, &'static Operation, String),

    #[error("{}", refused(.0, *.1, .2))]
    Refused(HubAddress, StatusCode, String),

    #[error(
        "{0} responds, and not like a hub ({1}); check the address. The port for Kubernetes clients is 6443 by default"
    )]
    NotAHub(HubAddress, String),
}

impl HubError {
    pub(super) fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Refused(_, status, _) => Some(*status),
            Self::Unauthorized(..) => Some(StatusCode::UNAUTHORIZED),
            Self::Forbidden(..) => Some(StatusCode::FORBIDDEN),
            _ => None,
        }
    }

    /// Whether the same request may succeed later.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable(..) | Self::NoResponse(_) | Self::Connection(..) => true,
            Self::Refused(_, status, _) => {
                status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS
            }
            _ => false,
        }
    }

    /// The error of a TLS handshake. `expected` is the pin of the login, `shown` the one of the server.
    pub(super) fn of_handshake(
        hub: &HubAddress,
        error: io::Error,
        expected: Option<Pin>,
        shown: Option<Pin>,
    ) -> Self {
        let tls = error.get_ref().and_then(|error| error.downcast_ref());
        match tls {
            Some(rustls::Error::InvalidCertificate(problem)) => {
                Self::Untrusted(hub.clone(), Box::new(problem.clone()), expected, shown)
            }
            Some(rustls::Error::InvalidMessage(_)) => Self::NotTls(hub.clone()),
            _ => Self::Connection(hub.clone(), error.into()),
        }
    }
}

fn unauthorized(hub: &HubAddress, message: &str) -> String {
    match message {
        "" => format!("the hub {hub} does not accept your token"),
        message => format!("the hub {hub} does not accept your token ({message})"),
    }
}

fn untrusted(
    hub: &HubAddress,
    problem: &CertificateError,
    expected: Option<Pin>,
    shown: Option<Pin>,
) -> String {
    let shown = shown.map_or_else(|| "unknown".to_owned(), |pin| pin.to_string());
    let url = hub.url();
    match (problem, expected) {
        (CertificateError::ApplicationVerificationFailure, Some(expected)) => format!(
            "its key is {shown}, and not {expected}. The hub has a new key, or something on the path intercepts the connection. \
             Ask the hub's administrator for the pin before you log in again"
        ),
        (CertificateError::UnknownIssuer, Some(expected)) => format!(
            "an unknown authority has signed it, and its key is {shown}, and not {expected}. The hub was installed anew, or \
             something on the path intercepts the connection. Ask the hub's administrator before you log in again"
        ),
        (
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            _,
        ) => format!(
            "it is not for {}; use a name of the hub that is in its certificate, or ask its administrator to add this name to \
             `agent.tunnelSANs`",
            hub.host
        ),
        (CertificateError::Expired | CertificateError::ExpiredContext { .. }, _) => {
            "it has expired; check this machine's clock, and ask the hub's administrator".to_owned()
        }
        _ => format!(
            "an unknown authority has signed it ({problem}). Ask the hub's administrator for its authority or for the pin of its \
             key: `standin cluster login {url} --ca-file FILE`, or --pin sha256:…"
        ),
    }
}

/// Names the missing right, and the rule that grants it.
fn forbidden(hub: &HubAddress, operation: &Operation, message: &str) -> String {
    let Operation {
        action,
        verb,
        resource,
    } = operation;
    let message = match message {
        "" => String::new(),
        message => format!(" ({message})"),
    };
    format!(
        "you may not {action} at the hub {hub}{message}; ask its administrator for the right `{verb}` on `{resource}`, in a Role of \
         the hub's namespace that is bound to you:\n\n\
         rules:\n- apiGroups: [standin.dev]\n  resources: [{resource}]\n  verbs: [{verb}]"
    )
}

fn refused(hub: &HubAddress, status: StatusCode, message: &str) -> String {
    match message {
        "" => format!("the hub {hub} responded {status}; its log has the reason"),
        message => format!("the hub {hub} refused: {message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub() -> HubAddress {
        "hub.example.com".parse().unwrap()
    }

    #[test]
    fn a_missing_right_is_named_with_its_rule() {
        let error = HubError::Forbidden(hub(), &TOKEN, "anna has no such right".to_owned());
        assert_eq!(
            error.to_string(),
            "you may not create registration tokens at the hub hub.example.com (anna has no such right); ask its administrator for the \
             right `create` on `managedclusters/token`, in a Role of the hub's namespace that is bound to you:

rules:
- apiGroups: [standin.dev]
  resources: [managedclusters/token]
  verbs: [create]"
        );
    }

    #[test]
    fn problems_of_certificates_have_a_next_step() {
        let pin: Pin = format!("sha256:{}", "0a".repeat(32)).parse().unwrap();
        let other: Pin = format!("sha256:{}", "0b".repeat(32)).parse().unwrap();
        for (problem, expected_pin, expected) in [
            (
                CertificateError::UnknownIssuer,
                None,
                "--ca-file FILE`, or --pin",
            ),
            (
                CertificateError::UnknownIssuer,
                Some(other),
                "installed anew",
            ),
            (
                CertificateError::ApplicationVerificationFailure,
                Some(other),
                "and not sha256:0b0b",
            ),
            (CertificateError::NotValidForName, None, "agent.tunnelSANs"),
            (CertificateError::Expired, None, "clock"),
        ] {
            let source = io::Error::other(rustls::Error::InvalidCertificate(problem));
            let error = HubError::of_handshake(&hub(), source, expected_pin, Some(pin));
            assert!(error.to_string().contains(expected), "{error}");
        }
        let error = io::Error::other(rustls::Error::InvalidMessage(
            rustls::InvalidMessage::InvalidContentType,
        ));
        let error = HubError::of_handshake(&hub(), error, None, None).to_string();
        assert!(error.contains("does not speak TLS"), "{error}");
    }
}
