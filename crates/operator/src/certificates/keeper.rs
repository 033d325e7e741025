//! Keeps the Secret, the APIService and this replica's server in agreement.

use std::time::Duration;

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

use super::{Certificates, Renewal, needed, renewed};
use crate::error::{Doing as _, Error, Result, chain};
use crate::settings::Settings;

/// Renewals are due in months. This is how long a change by another replica, or by a person, may stay unseen.
const BETWEEN_LOOKS: Duration = Duration::from_secs(20);
const AFTER_A_FAILURE: Duration = Duration::from_secs(5);
/// Two replicas that start at once may both find nothing. The second one to write is told, and looks again.
const CONFLICT: u16 = 409;

pub(crate) struct CertificateKeeper {
    client: Client,
    settings: Settings,
    current: watch::Sender<Certificates>,
}

impl CertificateKeeper {
    /// Makes sure that there are certificates.
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

    /// Who the operator is for agents.
    pub(crate) fn identity(&self) -> Result<Identity> {
        self.current.borrow().identity()
    }

    /// Who the agents on nodes are for the operator.
    pub(crate) fn node(&self) -> Result<Fingerprint> {
        self.current.borrow().node()
    }

    /// Looks after the certificates for ever.
    pub(crate) async fn keep(self) {
        loop {
            let pause = match self.look().await {
                Ok(()) => BETWEEN_LOOKS,
                Err(error) => {
                    tracing::warn!(
                        error = chain(&error),
                        "the certificates could not be looked after"
                    );
                    AFTER_A_FAILURE
                }
            };
            sleep(pause).await;
        }
    }

    async fn look(&self) -> Result<()> {
        let certificates = ensure(&self.client, &self.settings, Timestamp::now()).await?;
        // Whom to trust is said before anybody is shown it; what was trusted before still is.
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

/// What the Secret should hold now; it holds it when this returns.
async fn ensure(client: &Client, settings: &Settings, now: Timestamp) -> Result<Certificates> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &settings.namespace);
    let names = settings.host_names();
    loop {
        let secret = secrets
            .get_opt(&settings.secret)
            .await
            .doing(format!("read the Secret {}", settings.secret))?;
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
        let renewal = needed(found.as_ref(), &names, now);
        let certificates = renewed(found, renewal, &names, now)?;
        if renewal == Renewal::Nothing {
            return Ok(certificates);
        }
        tracing::info!(?renewal, "certificates are made anew");
        let data = certificates.to_secret();
        secret.data = Some(
            data.into_iter()
                .map(|(key, value)| (key, ByteString(value)))
                .collect(),
        );
        // The version that was read goes along, so a change in between is a conflict.
        let written = secrets
            .replace(&settings.secret, &PostParams::default(), &secret)
            .await;
        match written {
            Ok(_) => return Ok(certificates),
            Err(kube::Error::Api(status)) if status.code == CONFLICT => {}
            Err(error) => {
                return Err(error).doing(format!("write the Secret {}", settings.secret));
            }
        }
    }
}

/// Tells the API server whom to trust. The chart leaves this field alone.
async fn register(client: &Client, certificates: &Certificates) -> Result<()> {
    let services: Api<APIService> = Api::all(client.clone());
    let name = Settings::API_SERVICE;
    let service = services
        .get(name)
        .await
        .doing(format!("read the APIService {name}"))?;
    let bundle = ByteString(certificates.bundle().as_bytes().to_vec());
    if service.spec.and_then(|spec| spec.ca_bundle) == Some(bundle.clone()) {
        return Ok(());
    }
    tracing::info!("the API server is told whom to trust");
    let patch = json!({"spec": {"caBundle": bundle}});
    services
        .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .doing(format!("write the APIService {name}"))
        .map(drop)
}
