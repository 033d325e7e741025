//! Registers the agent: sends its public key and the registration token to the hub, and stores the certificate.
//!
//! The key is stored before the request is sent. If the response is lost, or the agent ends before it has stored the
//! certificate, the next attempt sends the same key, and the hub responds with a certificate again instead of refusing the
//! token as used.

mod outcome;
mod post;

use std::sync::Arc;

use api::hub::{Registered, Registration};
use authority::{Facts, PrivateKey};
use jiff::Timestamp;

use crate::error::{Error, Result};
use crate::settings::Settings;
use crate::state::{self, Credential, TokenDigest};
use crate::store::Store;
use crate::trust::Trust;

pub use self::outcome::RegistrationError;
use self::post::Post;

/// Registers with a token, and returns the certificate after it was stored.
pub(crate) async fn register(
    settings: &Settings,
    trust: &Trust,
    store: &Store,
    token: &str,
) -> Result<Credential> {
    let key = pending_key(store).await?;
    let endpoint = settings.registration();
    let request = Registration {
        token: token.to_owned(),
        cluster: settings.cluster.clone(),
        csr: key.request_pem(&settings.cluster)?,
    };
    let post = Post {
        endpoint: &endpoint,
        tls: Arc::new(trust.for_registration()?),
        has_pin: trust.has_pin(),
        proxy: &settings.proxy,
    };
    let registered = post.send(&request).await?;
    let credential = verified(registered, &key, &settings.cluster)?;
    let token = TokenDigest::of(token);
    let stored = store
        .change(|secret| state::set_registered(secret, &credential, &token))
        .await;
    stored.map(|_| credential)
}

/// The key of an earlier attempt, or a new one that is stored now.
async fn pending_key(store: &Store) -> Result<PrivateKey> {
    let new = PrivateKey::generate()?;
    let secret = store
        .change(|secret| {
            if state::pending_key(secret).is_none() {
                state::set_pending_key(secret, &new);
            }
        })
        .await?;
    Ok(state::pending_key(&secret).unwrap_or(new))
}

/// Checks what the hub has returned.
fn verified(registered: Registered, key: &PrivateKey, cluster: &str) -> Result<Credential> {
    let unusable = |reason: String| Error::from(RegistrationError::Unusable(reason));
    let facts = Facts::from_pem(&registered.cert).map_err(|error| unusable(error.to_string()))?;
    if let Some(reason) = state::unfit(&facts, &key.key(), cluster, Timestamp::now()) {
        return Err(unusable(reason));
    }
    crate::trust::certificates("ca.crt", &registered.ca_bundle)?;
    Ok(Credential {
        certificate: registered.cert,
        key: key.to_pem().to_owned(),
        authorities: registered.ca_bundle,
    })
}

#[cfg(test)]
mod tests;
