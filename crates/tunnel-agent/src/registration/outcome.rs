//! What the hub's response to a registration means, and what an administrator has to do about it. Pure.

use std::io;

use api::hub::{ErrorBody, Registered};
use http::StatusCode;

use crate::endpoint::Endpoint;

/// Why a registration has failed.
#[derive(Debug, thiserror::Error)]
pub enum RegistrationError {
    #[error("cannot connect to {endpoint} for the registration")]
    Connect {
        endpoint: String,
        #[source]
        source: io::Error,
    },
    #[error(
        "the certificate of {endpoint} is not signed by an authority that this agent trusts ({reason}), so the registration \
         token was not sent. If the hub serves its own certificate, set `agent.serverCAHash` to the hub's pin: \
         `standin cluster add {cluster}` prints it. If the certificate is of your company's \
         authority, set `agent.serverCA`. If a load balancer has the certificate for another name, correct \
         `agent.serverURL` or `agent.registrationURL`"
    )]
    Untrusted {
        endpoint: String,
        cluster: String,
        reason: String,
    },
    #[error(
        "the server at {endpoint} does not have the key with the pin `agent.serverCAHash`, so the registration token was not \
         sent. Compare the pin with the one that `standin cluster add {cluster}` prints. If they are equal, another server \
         responds at this address, such as a load balancer that terminates TLS: let TLS pass through to the hub, or set \
         `agent.registrationURL`"
    )]
    WrongPin { endpoint: String, cluster: String },
    #[error(
        "{endpoint} is not encrypted, so the registration token was not sent. Set `agent.registrationURL` to an address with \
         `https`, or `agent.serverURL` to one with `wss`"
    )]
    NotEncrypted { endpoint: String },
    #[error("TLS with {endpoint} failed: {reason}")]
    Tls { endpoint: String, reason: String },
    #[error("the response of {endpoint} could not be read")]
    Read {
        endpoint: String,
        #[source]
        source: hyper::Error,
    },
    #[error("the response of {endpoint} did not arrive in time")]
    Timeout { endpoint: String },
    #[error(
        "the hub rejected the registration: the token is unknown, expired, used already, or for a cluster with another name \
         than `{cluster}`. The hub's log has the reason. Make a new token with `standin cluster token {cluster}`, and set \
         `agent.registrationToken`"
    )]
    Rejected { cluster: String },
    #[error("{endpoint} responded with {status}: {message}")]
    Refused {
        endpoint: String,
        status: StatusCode,
        message: String,
    },
    #[error(
        "{endpoint} redirects to {location}. A registration follows no redirect, because it contains a token: set \
         `agent.registrationURL` to the hub's own address"
    )]
    Redirected { endpoint: String, location: String },
    #[error(
        "{endpoint} responded with {status}, but not as a hub does: set `agent.registrationURL` to the address of the hub's \
         API, if it is not the agents' address"
    )]
    NoHub {
        endpoint: String,
        status: StatusCode,
    },
    #[error("the certificate that the hub has issued cannot be used: {0}")]
    Unusable(String),
}

impl RegistrationError {
    /// Whether the same request could succeed later without anyone's help.
    pub(crate) const fn is_temporary(&self) -> bool {
        matches!(
            self,
            Self::Connect { .. } | Self::Read { .. } | Self::Timeout { .. }
        ) || matches!(self, Self::Refused { status, .. } if matches!(status.as_u16(), 429 | 500..=599))
    }
}

/// A response, read completely.
#[derive(Debug)]
pub(super) struct Response<'a> {
    pub(super) status: StatusCode,
    pub(super) location: Option<&'a str>,
    pub(super) body: &'a [u8],
}

/// What a response means.
pub(super) fn outcome(
    response: &Response<'_>,
    endpoint: &Endpoint,
    cluster: &str,
) -> Result<Registered, RegistrationError> {
    let endpoint = endpoint.to_string();
    let status = response.status;
    let error: Option<ErrorBody> = serde_json::from_slice(response.body).ok();
    match (status.as_u16(), error) {
        (200 | 201, _) => serde_json::from_slice(response.body)
            .map_err(|_| RegistrationError::NoHub { endpoint, status }),
        (401, Some(_)) => Err(RegistrationError::Rejected {
            cluster: cluster.to_owned(),
        }),
        (300..=399, _) => Err(RegistrationError::Redirected {
            endpoint,
            location: response.location.unwrap_or("another address").to_owned(),
        }),
        (_, Some(ErrorBody { error, hint })) => Err(RegistrationError::Refused {
            endpoint,
            status,
            message: match hint {
                Some(hint) => format!("{error}. {hint}"),
                None => error,
            },
        }),
        (429 | 502..=504, None) => Err(RegistrationError::Refused {
            endpoint,
            status,
            message: "a proxy or load balancer in front of the hub".to_owned(),
        }),
        (_, None) => Err(RegistrationError::NoHub { endpoint, status }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(
        status: u16,
        location: Option<&str>,
        body: &str,
    ) -> Result<Registered, RegistrationError> {
        let response = Response {
            status: StatusCode::from_u16(status).unwrap(),
            location,
            body: body.as_bytes(),
        };
        let endpoint = "https://hub.example.com:8443".parse().unwrap();
        outcome(&response, &endpoint, "prod-eu")
    }

    #[test]
    fn a_certificate_is_a_success() {
        let body = r#"{"cert":"C","caBundle":"B","expiresAt":"2026-01-02T03:04:05Z"}"#;
        let registered = check(200, None, body).unwrap();
        assert_eq!(registered.cert, "C");
        assert_eq!(registered.ca_bundle, "B");
    }

    #[test]
    fn failures_are_explained() {
        for (status, location, body, is_temporary, reason) in [
            (
                401,
                None,
                r#"{"error":"registration rejected"}"#,
                false,
                "`standin cluster token prod-eu`",
            ),
            (401, None, "<html>", false, "not as a hub does"),
            (200, None, "<html>", false, "not as a hub does"),
            (404, None, "not found", false, "agent.registrationURL"),
            (
                302,
                Some("https://sign-in.example.com/"),
                "",
                false,
                "redirects to https://sign-in.example.com/",
            ),
            (308, None, "", false, "redirects to another address"),
            (
                400,
                None,
                r#"{"error":"no CSR","hint":"Send one"}"#,
                false,
                "400 Bad Request: no CSR. Send one",
            ),
            (
                429,
                None,
                r#"{"error":"too many registrations"}"#,
                true,
                "too many registrations",
            ),
            (503, None, "upstream", true, "load balancer"),
        ] {
            let error = check(status, location, body).unwrap_err();
            assert_eq!(error.is_temporary(), is_temporary, "{error}");
            let text = error.to_string();
            assert!(text.contains(reason), "{text}");
        }
    }
}
