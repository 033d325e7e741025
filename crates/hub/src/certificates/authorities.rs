//! The certificate authority in its Secret. The hub creates it once; an administrator may bring one.

use authority::Authority;
use jiff::Timestamp;

use crate::configuration::Configuration;
use crate::error::{Error, Result};
use crate::secrets::{SharedSecret, text};

/// The keys in the Secret.
const CERTIFICATE: &str = "ca.crt";
const KEY: &str = "ca.key";
/// The common name of a generated authority.
const NAME: &str = "standin-hub";
const HINT: &str = "restore the Secret from a backup, or correct the value that you have written";

/// The authorities of a moment.
#[derive(Debug)]
pub(crate) struct Authorities {
    signing: Authority,
    bundle: String,
}

impl PartialEq for Authorities {
    fn eq(&self, other: &Self) -> bool {
        self.bundle == other.bundle && self.signing.facts() == other.signing.facts()
    }
}

impl Authorities {
    /// The one that signs.
    pub(crate) fn signing(&self) -> &Authority {
        &self.signing
    }

    /// All that agents have to trust, in PEM.
    pub(crate) fn bundle(&self) -> &str {
        &self.bundle
    }
}

pub(super) struct AuthorityStore {
    secret: SharedSecret,
}

impl AuthorityStore {
    pub(super) fn new(secret: SharedSecret) -> Self {
        Self { secret }
    }

    /// Reads the authorities, and creates one if there is none.
    pub(super) async fn ensure(
        &self,
        configuration: &Configuration,
        now: Timestamp,
    ) -> Result<Authorities> {
        let lifetime = configuration.agent.authority_lifetime();
        let signing = self
            .secret
            .update(|data| match (text(data, CERTIFICATE), text(data, KEY)) {
                (Some(certificate), Some(key)) => Authority::from_pem(certificate, key)
                    .map_err(|error| self.secret.invalid(CERTIFICATE, HINT, error)),
                (Some(_), None) => Err(self.incomplete(CERTIFICATE, KEY)),
                (None, Some(_)) => Err(self.incomplete(KEY, CERTIFICATE)),
                (None, None) => {
                    let authority = Authority::generate(NAME, lifetime, now)?;
                    let certificate = authority.certificate_pem().as_bytes().to_vec();
                    data.insert(CERTIFICATE.to_owned(), certificate);
                    data.insert(KEY.to_owned(), authority.key_pem().as_bytes().to_vec());
                    tracing::info!("creating certificate authority");
                    Ok(authority)
                }
            })
            .await?;
        Ok(Authorities {
            bundle: signing.certificate_pem().to_owned(),
            signing,
        })
    }

    fn incomplete(&self, present: &'static str, missing: &'static str) -> Error {
        Error::IncompleteSecret {
            name: self.secret.name().to_owned(),
            present,
            missing,
        }
    }
}
