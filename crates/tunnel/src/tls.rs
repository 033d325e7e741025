//! TLS errors, explained. An agent is installed once and runs for years: what stops it then is most often a certificate.

use std::io;
use std::sync::Arc;

use rustls::{AlertDescription, CertificateError, Error as TlsError};

/// Accepts TLS on the hub's side, with the buffers that a tunnel needs.
pub use link::tls::accept_link as accept_tls;

use crate::error::Error;

/// Explains the TLS error inside an I/O error, if there is one.
pub(crate) fn explain(error: &io::Error, host: &str) -> Option<Error> {
    let inner = error.get_ref()?;
    let tls = inner
        .downcast_ref::<TlsError>()
        .or_else(|| inner.source()?.downcast_ref::<TlsError>())?;
    Some(Error::Tls {
        explanation: explanation(tls, host),
        source: Arc::new(tls.clone()),
    })
}

fn explanation(error: &TlsError, host: &str) -> String {
    match error {
        TlsError::InvalidCertificate(error) => hub_certificate(error, host),
        TlsError::AlertReceived(alert) => agent_certificate(*alert),
        TlsError::InvalidMessage(_) | TlsError::PeerIncompatible(_) => {
            format!(
                "`{host}` does not speak TLS 1.2 or later there: check the port of the hub's address"
            )
        }
        _ => format!("TLS with `{host}` failed"),
    }
}

/// Why the agent does not accept the hub's certificate.
fn hub_certificate(error: &CertificateError, host: &str) -> String {
    match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the hub's certificate has expired: renew it, or correct the clock of this machine".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the hub's certificate is not valid yet: correct the clock of this machine or of the hub's".to_owned()
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "the hub's certificate is signed by an authority that this agent does not know. If something between agent and hub terminates TLS, use TCP passthrough; if the hub has another authority now, register this agent again".to_owned()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!("the hub's certificate is not valid for the name `{host}`: add it to `agent.tunnelSANs` of the hub, or use a name that is listed there")
        }
        CertificateError::Revoked => "the hub's certificate is revoked".to_owned(),
        _ => "the hub's certificate cannot be verified".to_owned(),
    }
}

/// Why the hub does not accept the agent's certificate.
fn agent_certificate(alert: AlertDescription) -> String {
    let why = match alert {
        AlertDescription::CertificateExpired => "has expired",
        AlertDescription::CertificateRevoked => "is revoked",
        AlertDescription::UnknownCA => "is signed by an authority that the hub does not know",
        AlertDescription::CertificateRequired => "is missing",
        AlertDescription::BadCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::AccessDenied
        | AlertDescription::DecryptError => "is not accepted by the hub",
        alert => return format!("the hub ended the TLS handshake ({alert:?})"),
    };
    format!("this agent's certificate {why}: register this agent again with a new token")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_errors_say_what_to_do() {
        let check = |error: TlsError, expected: &str| {
            let text = explanation(&error, "hub.example.com");
            assert!(text.contains(expected), "{text}");
        };
        let certificate = TlsError::InvalidCertificate;
        check(certificate(CertificateError::Expired), "renew it");
        check(
            certificate(CertificateError::UnknownIssuer),
            "TCP passthrough",
        );
        check(
            certificate(CertificateError::NotValidForName),
            "not valid for the name `hub.example.com`",
        );
        let alert = TlsError::AlertReceived;
        check(
            alert(AlertDescription::CertificateExpired),
            "has expired: register this agent again",
        );
        check(alert(AlertDescription::UnknownCA), "the hub does not know");
        check(alert(AlertDescription::CertificateRequired), "is missing");
        check(
            alert(AlertDescription::HandshakeFailure),
            "HandshakeFailure",
        );
    }
}
