//! Credentials for a hub, behind which a member is that dials out itself. The hub authenticates the operator, and speaks to the
//! member's API server as a user and a group that the member's administrator has allowed. So the operator never has a
//! credential of such a member, and renews none.

use std::path::Path;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use secrecy::SecretString;

use super::{Credential, NoCredential, bearer, mtls};

/// The token of the operator's service account for hubs. The chart mounts it, and Kubernetes refreshes it.
pub(crate) const TOKEN_FILE: &str = "/var/run/secrets/standin-hub/token";

/// The credential of a member's Secret: a certificate or a token. Without a Secret, the operator's own token is used, which a
/// hub in the same cluster accepts. Also returns when a certificate expires.
pub(crate) fn choose(
    member: &str,
    secret: Option<&Secret>,
) -> Result<(Credential, Option<Timestamp>), NoCredential> {
    let Some(secret) = secret else {
        return match Path::new(TOKEN_FILE).exists() {
            true => Ok((Credential::TokenFile(TOKEN_FILE.into()), None)),
            false => Err(NoCredential::NoHubToken(member.to_owned())),
        };
    };
    let data = secret.data.as_ref();
    let has = |key: &str| data.is_some_and(|data| data.contains_key(key));
    if has(mtls::CHAIN) {
        let (credential, expires) = mtls::choose(secret)?;
        return Ok((credential, Some(expires)));
    }
    let token = String::from_utf8(super::value(secret, bearer::KEY)?);
    let token = token.map_err(|_| NoCredential::Unreadable {
        secret: secret.name_any(),
        key: bearer::KEY,
        why: "is no token",
    })?;
    let token = SecretString::from(token.trim().replace(['\r', '\n'], ""));
    Ok((Credential::Token(token), None))
}
