//! Registrations at a hub over TLS, with the state in a Secret of an API server.

use std::sync::Arc;

use api::hub::{Registration, path};
use authority::{Authority, KeyHash, Profile, SigningRequest, Usage};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use serde_json::json;
use tunnel::ProxyRules;

use super::*;
use crate::allow_list::AllowList;
use crate::endpoint::Endpoint;
use crate::settings::ApiServerSettings;
use crate::testing::{FakeServer, Respond, with_secret};

const CLUSTER: &str = "prod-eu";

/// A hub that issues certificates for this name, and remembers the requests.
struct FakeHub {
    server: FakeServer,
    requests: Arc<Mutex<Vec<Registration>>>,
}

impl FakeHub {
    /// `lost` responses are errors although the hub has issued a certificate.
    async fn start(name: &'static str, lost: usize) -> Self {
        let now = Timestamp::now();
        let life = SignedDuration::from_hours(1);
        let authority = Authority::generate("hub", life, now).unwrap();
        let requests: Arc<Mutex<Vec<Registration>>> = Arc::default();
        let seen = Arc::clone(&requests);
        let respond: Respond = Arc::new(move |request, body| {
            assert_eq!(request.uri().path(), path::REGISTER);
            let registration: Registration = serde_json::from_slice(body).unwrap();
            let csr = SigningRequest::from_pem(&registration.csr).unwrap();
            let mut seen = seen.lock();
            seen.push(registration);
            if seen.len() <= lost {
                return (503, json!({ "error": "the response is lost" }));
            }
            let profile = Profile {
                common_name: name.to_owned(),
                names: Vec::new(),
                usage: Usage::Client,
                lifetime: life,
            };
            let issued = authority.sign(&csr, &profile, now).unwrap();
            let registered = json!({
                "cert": issued.certificate_pem,
                "caBundle": authority.certificate_pem(),
                "expiresAt": issued.facts.not_after.to_string(),
            });
            (200, registered)
        });
        Self {
            server: FakeServer::start(&[b"http/1.1"], respond).await,
            requests,
        }
    }

    /// The public keys in the requests.
    fn keys(&self) -> Vec<KeyHash> {
        let requests = self.requests.lock();
        let key = |request: &Registration| SigningRequest::from_pem(&request.csr).unwrap().key();
        requests.iter().map(key).collect()
    }
}

/// An agent with an empty Secret.
struct FakeAgent {
    settings: Settings,
    store: Store,
    _api_server: FakeServer,
}

impl FakeAgent {
    async fn new(hub: &FakeHub, pin: Option<KeyHash>) -> Self {
        let api_server = FakeServer::start(&[b"h2"], with_secret(0)).await;
        let port = hub.server.address.port();
        let settings = Settings {
            cluster: CLUSTER.to_owned(),
            server: format!("wss://127.0.0.1:{port}").parse().unwrap(),
            registration: None,
            server_pin: pin,
            server_ca_file: None,
            registration_token_file: None,
            api_server: ApiServerSettings {
                server: Endpoint::https("127.0.0.1", api_server.address.port()),
                ca_file: api_server.folder.path().join("ca.crt"),
                token_file: api_server.folder.path().join("token"),
                namespace: "tools".to_owned(),
            },
            state_secret: "state".to_owned(),
            allow_list: AllowList::default(),
            proxy: ProxyRules::default(),
            listen_for_probes: ([127, 0, 0, 1], 0).into(),
        };
        Self {
            settings,
            store: Store::new(Arc::new(api_server.client()), "state".to_owned()),
            _api_server: api_server,
        }
    }

    /// Registers with the authorities in a file, if there is one.
    async fn register(&self, ca_file: Option<&std::path::Path>) -> Result<Credential> {
        let trust = Trust::new(self.settings.server_pin, ca_file)?;
        register(&self.settings, &trust, &self.store, "TOKEN").await
    }

    async fn error(&self) -> String {
        error_chain::error_chain(&self.register(None).await.unwrap_err())
    }
}

#[tokio::test]
async fn a_hub_with_its_own_certificate_is_recognized_by_its_pin() {
    let hub = FakeHub::start(CLUSTER, 0).await;
    let agent = FakeAgent::new(&hub, Some(hub.server.pin)).await;
    let credential = agent.register(None).await.unwrap();
    let secret = agent.store.read().await.unwrap();
    assert_eq!(state::credential(&secret), Some(credential));
    let request = hub.requests.lock()[0].clone();
    assert_eq!(request.cluster, CLUSTER);
    assert_eq!(request.token, "TOKEN");
}

#[tokio::test]
async fn a_hub_with_a_certificate_of_a_known_authority_needs_no_pin() {
    let hub = FakeHub::start(CLUSTER, 0).await;
    let agent = FakeAgent::new(&hub, None).await;
    let ca_file = hub.server.folder.path().join("ca.crt");
    agent.register(Some(&ca_file)).await.unwrap();
}

/// The token must not reach a server that may be anyone's.
#[tokio::test]
async fn the_token_is_not_sent_to_a_server_that_is_not_trusted() {
    let hub = FakeHub::start(CLUSTER, 0).await;
    let unknown = FakeAgent::new(&hub, None).await.error().await;
    assert!(
        unknown.contains("the registration token was not sent"),
        "{unknown}"
    );
    assert!(unknown.contains("`agent.serverCAHash`"), "{unknown}");
    assert!(
        unknown.contains("`standin cluster add prod-eu` prints it"),
        "{unknown}"
    );
    let other = PrivateKey::generate().unwrap().key();
    let wrong = FakeAgent::new(&hub, Some(other)).await.error().await;
    assert!(
        wrong.contains("does not have the key with the pin"),
        "{wrong}"
    );
    assert!(hub.requests.lock().is_empty());
}

#[tokio::test]
async fn a_lost_response_is_requested_again_with_the_same_key() {
    let hub = FakeHub::start(CLUSTER, 2).await;
    let agent = FakeAgent::new(&hub, Some(hub.server.pin)).await;
    for _ in 0..2 {
        let error = agent.register(None).await.unwrap_err();
        assert!(
            matches!(&error, Error::Registration(error) if error.is_temporary()),
            "{error}"
        );
    }
    agent.register(None).await.unwrap();
    let keys = hub.keys();
    assert_eq!(keys.len(), 3);
    assert!(keys.iter().all(|key| *key == keys[0]));
}

#[tokio::test]
async fn a_certificate_for_another_cluster_is_not_stored() {
    let hub = FakeHub::start("other", 0).await;
    let agent = FakeAgent::new(&hub, Some(hub.server.pin)).await;
    let error = agent.error().await;
    assert!(error.contains("it is for the cluster `other`"), "{error}");
    let secret = agent.store.read().await.unwrap();
    assert_eq!(state::credential(&secret), None);
}

#[tokio::test]
async fn a_rejected_token_is_reported_with_the_next_step() {
    let respond: Respond = Arc::new(|_, _| (401, json!({ "error": "registration rejected" })));
    let hub = FakeHub {
        server: FakeServer::start(&[b"http/1.1"], respond).await,
        requests: Arc::default(),
    };
    let error = FakeAgent::new(&hub, Some(hub.server.pin))
        .await
        .error()
        .await;
    assert!(error.contains("`standin cluster token prod-eu`"), "{error}");
    assert!(!error.contains("TOKEN"), "{error}");
}
