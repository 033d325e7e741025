//! Rotates the certificates, and keeps the Secret, the APIService and this replica's server consistent.

use std::time::Duration;

use error_chain::error_chain;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use link::tls::{Fingerprint, Identity};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::sleep;

use super::{Certificates, Renewal, renew, required_renewal};
use crate::error::{Error, KubeResultExt as _, Result};
use crate::settings::Settings;

/// Renewals are due after months. This is the longest time until a change by another replica or a user is noticed.
const POLL_INTERVAL: Duration = Duration::from_secs(20);
const RETRY_DELAY: Duration = Duration::from_secs(5);
/// Two replicas that start at the same time may both find an empty Secret. The second one to write gets a conflict and
/// reads the Secret again.
const CONFLICT: u16 = 409;

pub(crate) struct CertificateRotator {
    client: Client,
    settings: Settings,
    current: watch::Sender<Certificates>,
}

impl CertificateRotator {
    /// Creates the certificates if they do not exist.
    pub(crate) async fn start(client: Client, settings: Settings) -> Result<Self> {
        let certificates = ensure(&client, &settings, Timestamp::now()).await?;
        Ok(Self {
            client,
            settings,
            current: watch::Sender::new(certificates),
        })
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Certificates> {
        self.current.subscribe()
    }

    /// The operator's identity for agents.
    pub(crate) fn identity(&self) -> Result<Identity> {
        self.current.borrow().identity()
    }

    /// The fingerprint of the node agents' certificate.
    pub(crate) fn node(&self) -> Result<Fingerprint> {
        self.current.borrow().node()
    }

    /// Rotates the certificates. Never returns.
    pub(crate) async fn run(self) {
        loop {
            let delay = match self.reconcile().await {
                Ok(()) => POLL_INTERVAL,
                Err(error) => {
                    tracing::warn!(error = error_chain(&error), "certificate rotation failed");
                    RETRY_DELAY
                }
            };
            sleep(delay).await;
        }
    }

    async fn reconcile(&self) -> Result<()> {
        let certificates = ensure(&self.client, &self.settings, Timestamp::now()).await?;
        // The API server learns of a new authority before this replica serves its certificates. The previous authority
        // stays in the bundle.
        let registered = register(&self.client, &certificates).await;
        if registered.is_ok() {
            self.current.send_if_modified(|current| {
                let changed = *current != certificates;
                *current = certificates;
                changed
            });
        }
        registered
    }
}

/// Writes the certificates that the Secret should contain now, and returns them.
async fn ensure(client: &Client, settings: &Settings, now: Timestamp) -> Result<Certificates> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &settings.namespace);
    let names = settings.host_names();
    loop {
        let secret = secrets
            .get_opt(&settings.secret)
            .await
            .action(format!("read the Secret {}", settings.secret))?;
        let mut secret = secret.ok_or_else(|| Error::NoSecret {
            name: settings.secret.clone(),
        })?;
        let data = secret.data.clone().unwrap_or_default();
        let found = Certificates::from_secret(
            &data
                .into_iter()
                .map(|(key, value)| (key, value.0))
                .collect(),
        );
        let renewal = required_renewal(found.as_ref(), &names, now);
        let certificates = renew(found, renewal, &names, now)?;
        if renewal == Renewal::Nothing {
            return Ok(certificates);
        }
        tracing::info!(?renewal, "renewing certificates");
        let data = certificates.to_secret();
        secret.data = Some(
            data.into_iter()
                .map(|(key, value)| (key, ByteString(value)))
                .collect(),
        );
        // The write contains the resource version that was read, so a change in between is a conflict.
        let written = secrets
            .replace(&settings.secret, &PostParams::default(), &secret)
            .await;
        match written {
            Ok(_) => return Ok(certificates),
            Err(kube::Error::Api(status)) if status.code == CONFLICT => {}
            Err(error) => {
                return Err(error).action(format!("write the Secret {}", settings.secret));
            }
        }
    }
}

/// Writes the authorities into the APIService. The chart does not set this field.
async fn register(client: &Client, certificates: &Certificates) -> Result<()> {
    let services: Api<APIService> = Api::all(client.clone());
    let name = Settings::API_SERVICE;
    let service = services
        .get(name)
        .await
        .action(format!("read the APIService {name}"))?;
    let bundle = ByteString(certificates.bundle().as_bytes().to_vec());
    if service.spec.and_then(|spec| spec.ca_bundle) == Some(bundle.clone()) {
        return Ok(());
    }
    tracing::info!(name, "updating APIService CA bundle");
    let patch = json!({"spec": {"caBundle": bundle}});
    services
        .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .action(format!("write the APIService {name}"))
        .map(drop)
}
