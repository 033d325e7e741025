//! The hub's certificates: the authority for agents, and the certificate that listeners serve.
//!
//! The authority and the server's key are in Secrets that all replicas share, so a pin of the key survives restarts,
//! renewals and more replicas. The certificate for the key is in memory: each replica has its own, and issues another one
//! when it is due, when the names in the configuration change, or when another authority signs.

mod authorities;
mod public;

use std::sync::Arc;
use std::time::Duration;

use authority::rotation::Policy;
use authority::{Facts, KeyHash, PrivateKey, Profile, Usage};
use error_chain::error_chain;
use jiff::Timestamp;
use kube::Client;
use rustls::server::danger::ClientCertVerifier;
use tokio::sync::watch;
use tokio::time::sleep;

pub(crate) use self::authorities::Authorities;
use self::authorities::AuthorityStore;
use self::public::PublicFiles;
use crate::configuration::Configuration;
use crate::error::Result;
use crate::registry::Registry;
use crate::secrets::{SharedSecret, text};
use crate::settings::Settings;
use crate::tls::{self, ServedCertificates};

/// This is also the longest time until a change of a Secret or a file takes effect.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
const RETRY_DELAY: Duration = Duration::from_secs(5);
/// The key in the server's Secret.
const SERVER_KEY: &str = "tls.key";
/// The beginning of the common name of generated authorities.
const AUTHORITY_NAME: &str = "standin-hub";
/// The common name of the hub's certificate. Clients verify its alternative names.
const SERVER_NAME: &str = "standin-hub";

/// The certificates of a moment.
#[derive(Clone)]
pub(crate) struct Certificates {
    pub(crate) authorities: Arc<Authorities>,
    /// Verifies certificates of agents.
    pub(crate) verifier: Arc<dyn ClientCertVerifier>,
    /// The pin of the server's key, if agents see the hub's own certificate.
    pub(crate) server_pin: Option<KeyHash>,
}

/// Rotates the certificates.
pub(crate) struct CertificateRotator {
    authorities: AuthorityStore,
    registry: Registry,
    key: PrivateKey,
    public: Option<PublicFiles>,
    own_names: Vec<String>,
    configuration: watch::Receiver<Configuration>,
    /// The server's certificate, and what it was made from.
    served: Served,
    current: watch::Sender<Certificates>,
    serving: watch::Sender<Arc<ServedCertificates>>,
}

#[derive(Clone, PartialEq, Eq)]
struct Served {
    certificate: Facts,
    names: Vec<String>,
    /// The fingerprint of the authority that signed it.
    authority: String,
    public: Option<String>,
}

impl CertificateRotator {
    /// Creates what does not exist yet.
    pub(crate) async fn start(
        client: &Client,
        settings: &Settings,
        configuration: watch::Receiver<Configuration>,
        registry: Registry,
    ) -> Result<Self> {
        let now = Timestamp::now();
        let secret = |name| SharedSecret::new(client.clone(), &settings.namespace, name);
        let authorities = AuthorityStore::new(secret(&settings.authority_secret));
        let key = server_key(&secret(&settings.server_secret)).await?;
        let public = settings.public_certificate.clone().map(PublicFiles::new);
        let own_names = settings.host_names();
        let read = configuration.borrow().clone();
        let current = authorities.ensure(&policy(&read)?, None, now).await?;
        let (served, serving) =
            issue(&current, &key, &read, &own_names, public.as_ref(), now).await?;
        let certificates = Certificates {
            verifier: tls::client_verifier(current.bundle())?,
            server_pin: public.is_none().then(|| key.key()),
            authorities: Arc::new(current),
        };
        Ok(Self {
            authorities,
            registry,
            key,
            public,
            own_names,
            configuration,
            served,
            current: watch::Sender::new(certificates),
            serving: watch::Sender::new(Arc::new(serving)),
        })
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Certificates> {
        self.current.subscribe()
    }

    pub(crate) fn serving(&self) -> watch::Receiver<Arc<ServedCertificates>> {
        self.serving.subscribe()
    }

    /// Rotates the certificates. Never returns.
    pub(crate) async fn run(mut self) {
        let mut delay = POLL_INTERVAL;
        loop {
            tokio::select! {
                () = sleep(delay) => {}
                changed = self.configuration.changed() => if changed.is_err() {
                    // Without a sender, the configuration never changes again.
                    sleep(delay).await;
                }
            }
            delay = match self.reconcile(Timestamp::now()).await {
                Ok(()) => POLL_INTERVAL,
                Err(error) => {
                    tracing::warn!(error = error_chain(&error), "certificate rotation failed");
                    RETRY_DELAY
                }
            };
        }
    }

    async fn reconcile(&mut self, now: Timestamp) -> Result<()> {
        let configuration = self.configuration.borrow_and_update().clone();
        let policy = policy(&configuration)?;
        let peers = self.registry.peers(now);
        let ensured = self.authorities.ensure(&policy, peers.as_deref(), now);
        let authorities = ensured.await?;
        let names = server_names(&configuration, &self.own_names);
        let public = match &self.public {
            Some(public) => Some(public.read().await?.fingerprint),
            None => None,
        };
        let is_current = self.served.names == names
            && self.served.authority == authorities.trust().signing().facts().fingerprint
            && self.served.public == public
            && !self.served.certificate.is_renewal_due(now);
        if !is_current {
            let public = self.public.as_ref();
            let issued = issue(
                &authorities,
                &self.key,
                &configuration,
                &self.own_names,
                public,
                now,
            );
            let (served, serving) = issued.await?;
            self.served = served;
            self.serving.send_replace(Arc::new(serving));
            tracing::info!(names = ?self.served.names, expires_at = %self.served.certificate.not_after, "serving new certificate");
        }
        if *self.current.borrow().authorities != authorities {
            let verifier = tls::client_verifier(authorities.bundle())?;
            self.current.send_modify(|current| {
                current.verifier = verifier;
                current.authorities = Arc::new(authorities);
            });
            tracing::info!("certificate authorities changed");
        }
        Ok(())
    }
}

fn policy(configuration: &Configuration) -> Result<Policy> {
    Ok(Policy::new(
        AUTHORITY_NAME,
        configuration.agent.durations(),
    )?)
}

fn server_names(configuration: &Configuration, own_names: &[String]) -> Vec<String> {
    let mut names = own_names.to_vec();
    for name in configuration.server_names() {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Issues the server's certificate, and reads the administrator's.
async fn issue(
    authorities: &Authorities,
    key: &PrivateKey,
    configuration: &Configuration,
    own_names: &[String],
    public: Option<&PublicFiles>,
    now: Timestamp,
) -> Result<(Served, ServedCertificates)> {
    let names = server_names(configuration, own_names);
    let trust = authorities.trust();
    let profile = Profile {
        common_name: SERVER_NAME.to_owned(),
        names: names.clone(),
        usage: Usage::Server,
        lifetime: configuration.agent.certificate_lifetime(),
    };
    let issued = trust.issue(key, &profile, now)?;
    let chain = format!(
        "{}{}",
        issued.certificate_pem,
        trust.signing().certificate_pem()
    );
    let own = tls::certified_key(&chain, key.to_pem())?;
    let (public, fingerprint) = match public {
        Some(files) => {
            let read = files.read().await?;
            (Some(read.certified), Some(read.fingerprint))
        }
        None => (None, None),
    };
    let served = Served {
        certificate: issued.facts,
        names,
        authority: trust.signing().facts().fingerprint.clone(),
        public: fingerprint,
    };
    let serving = ServedCertificates {
        own,
        public,
        own_names: own_names.to_vec(),
    };
    Ok((served, serving))
}

/// The key that all replicas serve with. The first replica creates it.
async fn server_key(secret: &SharedSecret) -> Result<PrivateKey> {
    secret
        .update(|data| match text(data, SERVER_KEY) {
            Some(found) => PrivateKey::from_pem(found)
                .map_err(|error| secret.invalid(SERVER_KEY, KEY_HINT, error)),
            None => {
                let key = PrivateKey::generate()?;
                data.insert(SERVER_KEY.to_owned(), key.to_pem().as_bytes().to_vec());
                Ok(key)
            }
        })
        .await
}

const KEY_HINT: &str =
    "restore it from a backup; if agents pin no key, remove it, and the hub makes another one";
