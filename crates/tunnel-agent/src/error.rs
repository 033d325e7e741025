//! The errors of the tunnel agent. Their texts are in its log, which is the first thing that an administrator reads.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use http::StatusCode;

use crate::body::BoxError;

/// The result type of the crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the address of the API server `{0}` cannot be used")]
    ApiServerAddress(String),
    #[error("the authorities of the API server in {path} cannot be used: {reason}")]
    ApiServerAuthorities { path: PathBuf, reason: String },
    #[error("the token of the service account in {path} cannot be read: {reason}")]
    Token { path: PathBuf, reason: String },
    #[error("cannot connect to the API server of this cluster")]
    ConnectApiServer(#[source] Arc<io::Error>),
    #[error("the API server of this cluster did not respond")]
    RequestApiServer(#[source] hyper::Error),
    #[error("the response of the API server could not be read")]
    ReadResponse(#[source] BoxError),
    #[error("the response of the API server is larger than any that the agent expects")]
    LargeResponse,
    #[error("cannot {action}: the API server responded with {status}")]
    UnexpectedResponse {
        action: &'static str,
        status: StatusCode,
    },
    #[error(
        "the Secret {namespace}/{name} does not exist; the chart creates it empty, and the agent fills it. Run `helm upgrade` \
         of the chart standin-tunnel-agent again, or create an empty Secret of that name"
    )]
    NoSecret { name: String, namespace: String },
    #[error(
        "the API server responded with {status} when the agent tried to {verb} the Secret {namespace}/{name}: check the Role \
         of the chart standin-tunnel-agent"
    )]
    Secret {
        name: String,
        namespace: String,
        verb: &'static str,
        status: StatusCode,
    },
    #[error("the Secret with the agent's certificate was changed by others again and again")]
    Contention,
    #[error("`{key}` cannot be used: {reason}")]
    Unreadable { key: &'static str, reason: String },
    #[error("the authorities in {path} cannot be used: {reason}")]
    ServerAuthorities { path: PathBuf, reason: String },
    #[error("TLS cannot be set up")]
    Tls(#[source] Arc<rustls::Error>),
    #[error("a key or a certificate cannot be made")]
    Authority(#[from] authority::Error),
    #[error(transparent)]
    Registration(#[from] crate::registration::RegistrationError),
    /// A setting of the tunnel cannot be used.
    #[error("the connection to the hub cannot be set up")]
    Tunnel(#[source] Box<tunnel::Error>),
    #[error("cannot listen on {address}")]
    Listen {
        address: std::net::SocketAddr,
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// A value of the state that others have written, and that is malformed.
    pub(crate) fn unreadable(key: &'static str, reason: &impl fmt::Display) -> Self {
        Self::Unreadable {
            key,
            reason: reason.to_string(),
        }
    }
}
