//! The errors of the operator.

use std::io;

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
    #[error("cannot inspect the target's pods")]
    Cluster(#[source] Box<cluster::Error>),
    #[error(
        "cannot find the API server: this runs in a pod with a service account, or with a kubeconfig"
    )]
    NoCluster(#[source] Box<kube::config::InferConfigError>),
    #[error(
        "the Secret {name} does not exist; the chart creates it empty, and the operator fills it. Reinstall the chart, or \
         create an empty Secret of that name"
    )]
    NoSecret { name: String },
    #[error(
        "the ConfigMap kube-system/extension-apiserver-authentication has no `{key}`: this cluster has no aggregation \
         layer. Start kube-apiserver with --requestheader-client-ca-file"
    )]
    NoFrontProxy { key: &'static str },
    #[error(
        "`{key}` of the ConfigMap kube-system/extension-apiserver-authentication cannot be read"
    )]
    FrontProxy {
        key: &'static str,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("cannot create a certificate")]
    Certificate(#[from] authority::Error),
    #[error("the certificates cannot be used")]
    Tls(#[from] rustls::Error),
    #[error("the certificates in the Secret cannot be read: {0}")]
    UnreadableCertificate(String),
    #[error("the list of clusters cannot be used: {0}")]
    Clusters(String),
    #[error("cannot check whether this cluster allows the user: {0}")]
    AccessReview(String),
    #[error("the request to {action} returned no token of at most 16 KiB")]
    NoToken { action: String },
    #[error("bug in the operator: {0}")]
    Panicked(String),
    #[error("{0}: this replica needs that task and must be restarted")]
    TaskFailed(String),
    #[error("cannot listen on {address}")]
    Listen {
        address: std::net::SocketAddr,
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// Whether the API server has refused a request because a permission is missing, so that a retry is pointless.
    pub(crate) fn is_forbidden(&self) -> bool {
        let Self::Kubernetes { source, .. } = self else {
            return false;
        };
        matches!(&**source, kube::Error::Api(status) if status.code == 403)
    }
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
