//! The agent's certificate in use. A renewal takes effect with the next connection to the hub.

use std::sync::Arc;

use authority::{Facts, PrivateKey};
use jiff::Timestamp;
use parking_lot::RwLock;
use rustls::ClientConfig;

use crate::error::{Error, Result};
use crate::registration::RegistrationError;
use crate::state::{self, Credential};
use crate::store::Store;
use crate::trust::{self, Trust};

/// The certificate, and where it is stored.
pub(crate) struct Identity {
    cluster: String,
    store: Store,
    trust: Trust,
    current: RwLock<Arc<Current>>,
}

pub(crate) struct Current {
    credential: Credential,
    pub(crate) facts: Facts,
    tls: Arc<ClientConfig>,
}

impl Current {
    fn new(credential: Credential, trust: &Trust) -> Result<Self> {
        let unreadable = |reason: String| Error::unreadable("tls.crt", &reason);
        let facts = state::check(&credential).map_err(unreadable)?;
        let tls = Arc::new(trust.for_tunnel(&credential)?);
        Ok(Self {
            credential,
            facts,
            tls,
        })
    }
}

impl Identity {
    pub(crate) fn new(
        cluster: &str,
        credential: Credential,
        trust: Trust,
        store: Store,
    ) -> Result<Self> {
        let current = RwLock::new(Arc::new(Current::new(credential, &trust)?));
        Ok(Self {
            cluster: cluster.to_owned(),
            store,
            trust,
            current,
        })
    }

    pub(crate) fn current(&self) -> Arc<Current> {
        Arc::clone(&self.current.read())
    }

    /// The configuration for the next connection to the hub.
    pub(crate) fn tls(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.current.read().tls)
    }

    /// Takes over a certificate that the hub has issued for a new key of this agent.
    pub(crate) async fn renew(
        &self,
        certificate: String,
        authorities: String,
        key: &PrivateKey,
    ) -> Result<()> {
        let unusable = |reason: String| Error::from(RegistrationError::Unusable(reason));
        let facts = Facts::from_pem(&certificate).map_err(|error| unusable(error.to_string()))?;
        if let Some(reason) = state::unfit(&facts, &key.key(), &self.cluster, Timestamp::now()) {
            return Err(unusable(reason));
        }
        let credential = Credential {
            certificate,
            key: key.to_pem().to_owned(),
            authorities,
        };
        // Before it is stored: a certificate that cannot be used must not replace one that can.
        let renewed = Current::new(credential, &self.trust)?;
        let stored = renewed.credential.clone();
        self.store
            .change(move |secret| state::set_credential(secret, &stored))
            .await?;
        *self.current.write() = Arc::new(renewed);
        Ok(())
    }

    /// Takes over the authorities that the hub has announced, and returns their fingerprints after they were stored.
    pub(crate) async fn trust(&self, authorities: &str) -> Result<Vec<String>> {
        let fingerprints = fingerprints(authorities)?;
        let current = self.current();
        if current.credential.authorities != authorities {
            let credential = Credential {
                authorities: authorities.to_owned(),
                ..current.credential.clone()
            };
            let changed = Current::new(credential, &self.trust)?;
            let stored = authorities.to_owned();
            self.store
                .change(move |secret| state::set_authorities(secret, &stored))
                .await?;
            *self.current.write() = Arc::new(changed);
        }
        Ok(fingerprints)
    }
}

/// The SHA-256 of each certificate, in hex.
fn fingerprints(pem: &str) -> Result<Vec<String>> {
    let certificates = trust::certificates("ca.crt", pem)?;
    let facts = certificates.iter().map(|der| Facts::from_der(der));
    let fingerprints = facts.map(|facts| facts.map(|facts| facts.fingerprint));
    Ok(fingerprints.collect::<Result<_, _>>()?)
}
