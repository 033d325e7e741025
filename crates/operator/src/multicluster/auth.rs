//! Authentication to members: from Secrets and the pod's environment to a client for a member's API server.
//!
//! Each method has its own module. Their decisions are pure functions without I/O or clock. No credential is ever written into
//! a log, an error or an object other than a Secret.

pub(crate) mod bearer;
pub(crate) mod claims;
pub(crate) mod eks;
pub(crate) mod identity;
pub(crate) mod mtls;
pub(crate) mod presign;
pub(crate) mod token_secrets;
pub(crate) mod tunnel;

use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::Secret;
use kube::config::AuthInfo;
use kube::{Client, Config, ResourceExt as _};
use rustls::RootCertStore;
use secrecy::SecretString;

use super::clusters::Member;
use super::environment;
use crate::error::{KubeResultExt as _, Result};

/// The label by which an administrator marks a Secret as meant for the operator.
pub(crate) const LABEL: &str = "operator.metalbear.co/remote-cluster-credentials";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A credential for a member.
#[derive(Clone)]
pub(crate) enum Credential {
    Token(SecretString),
    /// A file with a token that changes. It is read again whenever its token is about to expire.
    TokenFile(PathBuf),
    /// PEM.
    Certificate {
        chain: Vec<u8>,
        key: SecretString,
    },
}

/// Why there is no credential for a member. The text says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoCredential {
    #[error(
        "the Secret {0} does not exist; create it, or set the credential in the chart's values"
    )]
    NoSecret(String),
    #[error("the Secret {secret} cannot be read: {why}")]
    NotRead { secret: String, why: String },
    #[error(
        "the Secret {0} has no label {LABEL}=true; add it, if the Secret is meant for the operator"
    )]
    NoLabel(String),
    #[error("the Secret {secret} has no `{key}`")]
    NoKey { secret: String, key: &'static str },
    #[error("`{key}` of the Secret {secret} {why}")]
    Unreadable {
        secret: String,
        key: &'static str,
        why: &'static str,
    },
    #[error(
        "the token has expired at {0}; put a new one into the Secret: kubectl create token mirrord-operator-envoy"
    )]
    Expired(String),
    #[error(
        "the operator's account has no role in AWS: the pod has no {}; set the role as `sa.roleArn` in the chart's values, and restart the operator if the pod was started before",
        environment::ROLE_ARN
    )]
    NoRole,
    #[error("cannot get credentials from AWS: {0}")]
    Aws(String),
    #[error(
        "there is no token for a hub at {file}, nor the Secret mirrord-cluster-{0}; install the operator's chart with `authType: tunnel` for {0} in its values, or create the Secret with `tls.crt` and `tls.key` or `bearerToken`",
        file = tunnel::TOKEN_FILE
    )]
    NoHubToken(String),
    #[error("the credential cannot be used: {0}")]
    Unusable(String),
}

/// A client for the member's API server.
pub(crate) fn client(member: &Member, credential: &Credential) -> Result<Client> {
    let mut config = Config::new(member.server.clone());
    config.root_cert.clone_from(&member.authorities);
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.auth_info = match credential {
        Credential::Token(token) => AuthInfo {
            token: Some(token.clone()),
            ..AuthInfo::default()
        },
        Credential::TokenFile(path) => AuthInfo {
            token_file: Some(path.display().to_string()),
            ..AuthInfo::default()
        },
        Credential::Certificate { chain, key } => AuthInfo {
            client_certificate_data: Some(STANDARD.encode(chain)),
            client_key_data: Some(mtls::encoded(key)),
            ..AuthInfo::default()
        },
    };
    let client = match member.authorities {
        Some(_) => cluster::client(config),
        None => cluster::client_with_roots(config, public_roots()),
    };
    client
        .map(cluster::bounded)
        .action(format!("be reached in {}", member.name))
}

/// The public certificate authorities. The image has none, so they are compiled in.
fn public_roots() -> RootCertStore {
    webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect()
}

/// A value of a member's Secret. The label is required, because a Secret of the same name may have another purpose.
fn value(secret: &Secret, key: &'static str) -> Result<Vec<u8>, NoCredential> {
    let name = secret.name_any();
    if secret.labels().get(LABEL).map(String::as_str) != Some("true") {
        return Err(NoCredential::NoLabel(name));
    }
    let data = secret.data.as_ref().and_then(|data| data.get(key));
    match data {
        Some(value) if !value.0.is_empty() => Ok(value.0.clone()),
        _ => Err(NoCredential::NoKey { secret: name, key }),
    }
}

#[cfg(test)]
mod tests;
