//! What stops an operator, or one of its steps.

use std::io;

/// What the crate's functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the API server refused to {doing}")]
    Kubernetes {
        doing: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("the target's pods cannot be looked at")]
    Cluster(#[source] Box<cluster::Error>),
    #[error(
        "cannot find the API server: this runs in a pod with a service account, or with a kubeconfig"
    )]
    NoCluster(#[source] Box<kube::config::InferConfigError>),
    #[error(
        "the Secret {name} is not there; the chart makes it empty, and the operator fills it. Reinstall the chart, or \
         make an empty Secret of that name"
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
    #[error("no certificate could be made")]
    Certificate(#[from] rcgen::Error),
    #[error("the certificates cannot be used")]
    Tls(#[from] rustls::Error),
    #[error("the certificates in the Secret cannot be read: {0}")]
    UnreadableCertificate(String),
    #[error(
        "the member {cluster} has `authType: eks`, and the operator's account has no role in AWS: set `sa.roleArn`, and \
         see that the cluster's webhook for roles of accounts runs"
    )]
    NoRole { cluster: String },
    #[error("the rules of this cluster cannot be asked about a user: {0}")]
    NotJudged(String),
    #[error("a member was asked to {doing}, and gave none")]
    NoToken { doing: String },
    #[error("the operator has a mistake: {0}")]
    Panicked(String),
    #[error("{0}: this replica cannot go on without it, and is to be started again")]
    TaskFailed(String),
    #[error("cannot listen on {address}")]
    Listen {
        address: std::net::SocketAddr,
        #[source]
        source: io::Error,
    },
}

/// Adds what was being done to an error of the Kubernetes client.
pub(crate) trait Doing<T> {
    fn doing(self, doing: impl Into<String>) -> Result<T>;
}

impl<T> Doing<T> for std::result::Result<T, kube::Error> {
    fn doing(self, doing: impl Into<String>) -> Result<T> {
        self.map_err(|source| Error::Kubernetes {
            doing: doing.into(),
            source: Box::new(source),
        })
    }
}

/// An error with everything behind it, for logs.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
