//! Why a session cannot start.

use std::path::PathBuf;

use link::LinkError;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("the connection to the agent could not be used")]
    Link(#[from] LinkError),

    #[error(transparent)]
    Connect(Box<dyn std::error::Error + Send + Sync>),

    #[error("no agent of the target became available")]
    NoAgent,

    #[error("the agent refused the session: {0}")]
    Refused(String),

    #[error(
        "this program speaks version {ours} of the protocol and the agent ({agent}) version {theirs}: install the same release on both sides"
    )]
    OtherVersion {
        agent: String,
        theirs: u32,
        ours: u32,
    },

    #[error("the target's files cannot be served on this machine")]
    Files(#[source] interceptor::Errno),

    #[error(
        "`{0}` is not a valid server name: correct `feature.network.incoming.tls_delivery.server_name`"
    )]
    ServerName(String),

    #[error("the certificates in {path} cannot be used")]
    Certificate {
        path: PathBuf,
        source: Box<dyn std::error::Error + Send + Sync>,
    },

    #[error("there is no certificate in {0}: see `feature.network.incoming.tls_delivery`")]
    NoCertificate(PathBuf),

    #[error("TLS cannot be used")]
    Tls(#[source] Box<dyn std::error::Error + Send + Sync>),

    #[error("the configuration has a rule that cannot be used")]
    Rule(#[from] config::RuleError),
}
