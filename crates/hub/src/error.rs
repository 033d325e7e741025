//! The errors of the hub.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The result type of the crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the API server refused to {action}")]
    Kubernetes {
        action: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error(
        "cannot find the API server: this runs in a pod with a service account, or with a kubeconfig"
    )]
    NoCluster(#[source] Box<kube::config::InferConfigError>),
    #[error(
        "the Secret {name} does not exist; the chart creates it empty, and the hub fills it. Reinstall the chart, or create \
         an empty Secret of that name"
    )]
    NoSecret { name: String },
    #[error("{name} was changed by others too often; try again")]
    Conflict { name: String },
    #[error("`{key}` in the Secret {name} cannot be used; {hint}")]
    InvalidSecret {
        name: String,
        key: &'static str,
        hint: &'static str,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("the Secret {name} has `{present}` and no `{missing}`; add it, or remove both")]
    IncompleteSecret {
        name: String,
        present: &'static str,
        missing: &'static str,
    },
    #[error("cannot read {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the configuration {} is invalid: {reason}", path.display())]
    Configuration { path: PathBuf, reason: String },
    #[error("cannot create or read a certificate")]
    Certificate(#[from] authority::Error),
    #[error("the certificates cannot be used")]
    Tls(#[from] rustls::Error),
    #[error("the certificates cannot be read: {0}")]
    UnreadableCertificate(String),
    #[error("the cluster {name} is not registered; add it with `standin cluster add {name}`")]
    NotRegistered { name: String },
    #[error(
        "the certificates of the cluster {name} are revoked; register its agent with a new token"
    )]
    Revoked { name: String },
    #[error(
        "the certificate of the cluster {name} has expired; register its agent with a new token"
    )]
    Expired { name: String },
    #[error("`authentication` of the configuration cannot be used")]
    Authentication(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the system has no random numbers")]
    NoRandomness,
    #[error("{0}: this replica needs that task and must be restarted")]
    TaskFailed(String),
    #[error("cannot listen on {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
}

/// Adds the attempted action to an error of the Kubernetes client.
pub(crate) trait KubeResultExt<T> {
    fn action(self, action: impl Into<String>) -> Result<T>;
}

impl<T> KubeResultExt<T> for std::result::Result<T, kube::Error> {
    fn action(self, action: impl Into<String>) -> Result<T> {
        self.map_err(|source| Error::Kubernetes {
            action: action.into(),
            source: Box::new(source),
        })
    }
}
