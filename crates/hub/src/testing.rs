//! A hub with real listeners on localhost, over a stubbed API server, for tests.

mod agent;
mod api_server;
mod http_client;

use std::net::SocketAddr;
use std::path::PathBuf;

use authority::{Authority, PrivateKey, Profile, Usage};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(crate) use self::agent::{TestAgent, TestCredentials};
pub(crate) use self::api_server::StubApiServer;
pub(crate) use self::http_client::{Identity, Reply, TestClient};
use crate::error::Result;
use crate::settings::{PublicCertificate, Settings};
use crate::{Listeners, serve};

/// A test that hangs fails.
pub(crate) const HANG: std::time::Duration = std::time::Duration::from_secs(60);
pub(crate) const NAMESPACE: &str = "standin-hub";
/// The token of a user who may do everything.
pub(crate) const ADMIN: &str = "token-of-admin";

/// A replica among others.
struct TestPeers {
    replica: String,
    listener: TcpListener,
    /// The addresses of all replicas.
    all: Vec<SocketAddr>,
}

/// A replica of a hub.
pub(crate) struct TestHub {
    pub(crate) api_server: StubApiServer,
    pub(crate) http: SocketAddr,
    pub(crate) agents: SocketAddr,
    pub(crate) clients: SocketAddr,
    pub(crate) metrics: SocketAddr,
    pub(crate) shutdown: CancellationToken,
    pub(crate) configuration: PathBuf,
    pub(crate) running: JoinHandle<Result<()>>,
    pub(crate) folder: TempDir,
}

impl Drop for TestHub {
    fn drop(&mut self) {
        self.running.abort();
    }
}

async fn bind() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

impl TestHub {
    /// A hub with the cluster `a`, which is in its values.
    pub(crate) async fn start() -> Self {
        Self::with("clusters: [{name: a}]\nagent: {tunnelSANs: [127.0.0.1]}\n").await
    }

    pub(crate) async fn with(configuration: &str) -> Self {
        Self::replica(&StubApiServer::new(), configuration).await
    }

    /// Another replica over the same API server.
    pub(crate) async fn replica(api_server: &StubApiServer, configuration: &str) -> Self {
        Self::build(api_server, configuration, None, Self::alone().await).await
    }

    /// Replicas that know each other, over the same API server.
    pub(crate) async fn replicas(number: usize, configuration: &str) -> Vec<Self> {
        let api_server = StubApiServer::new();
        let mut listeners = Vec::new();
        for _ in 0..number {
            listeners.push(bind().await);
        }
        let all: Vec<SocketAddr> = listeners.iter().map(|(_, address)| *address).collect();
        let mut hubs = Vec::new();
        for (index, (listener, _)) in listeners.into_iter().enumerate() {
            let peers = TestPeers {
                replica: format!("hub-{index}"),
                listener,
                all: all.clone(),
            };
            hubs.push(Self::build(&api_server, configuration, None, peers).await);
        }
        hubs
    }

    /// A replica without peers.
    async fn alone() -> TestPeers {
        let (listener, address) = bind().await;
        TestPeers {
            replica: "hub-0".to_owned(),
            listener,
            all: vec![address],
        }
    }

    /// A hub with a certificate for agents that a public authority has signed.
    pub(crate) async fn with_public_certificate(certificate: &str, key: &str) -> Self {
        let configuration = "clusters: [{name: a}]";
        let public = Some((certificate, key));
        Self::build(
            &StubApiServer::new(),
            configuration,
            public,
            Self::alone().await,
        )
        .await
    }

    /// A hub with an authority that the administrator has brought.
    pub(crate) async fn with_authority(authority: &Authority) -> Self {
        let api_server = StubApiServer::new();
        api_server.add_to_secret("standin-hub-ca", "ca.crt", authority.certificate_pem());
        api_server.add_to_secret("standin-hub-ca", "ca.key", authority.key_pem());
        Self::replica(&api_server, "clusters: [{name: a}]").await
    }

    async fn build(
        api_server: &StubApiServer,
        text: &str,
        public: Option<(&str, &str)>,
        peers: TestPeers,
    ) -> Self {
        let folder = TempDir::new().unwrap();
        let configuration = folder.path().join("hub.yaml");
        let listed: Vec<String> = peers
            .all
            .iter()
            .map(|address| format!("'{address}'"))
            .collect();
        let text = format!("{text}\npeers: [{}]\n", listed.join(", "));
        std::fs::write(&configuration, text).unwrap();
        let public_certificate = public.map(|(certificate, key)| {
            let files = PublicCertificate {
                certificate: folder.path().join("tls.crt"),
                key: folder.path().join("tls.key"),
            };
            std::fs::write(&files.certificate, certificate).unwrap();
            std::fs::write(&files.key, key).unwrap();
            files
        });
        let (http_listener, http) = bind().await;
        let (agents_listener, agents) = bind().await;
        let (clients_listener, clients) = bind().await;
        let (probes_listener, probes) = bind().await;
        let (metrics_listener, metrics) = bind().await;
        let settings = Settings {
            namespace: NAMESPACE.to_owned(),
            replica: peers.replica,
            service: "standin-hub".to_owned(),
            configuration: configuration.clone(),
            authority_secret: "standin-hub-ca".to_owned(),
            server_secret: "standin-hub-server".to_owned(),
            tokens_secret: "standin-hub-tokens".to_owned(),
            public_certificate,
            listen: http,
            listen_for_agents: agents,
            listen_for_clients: clients,
            listen_for_peers: peers.listener.local_addr().unwrap(),
            listen_for_probes: probes,
            listen_for_metrics: metrics,
        };
        let listeners = Listeners {
            http: http_listener,
            agents: agents_listener,
            clients: clients_listener,
            peers: peers.listener,
            probes: probes_listener,
            metrics: metrics_listener,
        };
        let shutdown = CancellationToken::new();
        let serving = serve(api_server.client(), settings, listeners, shutdown.clone());
        let hub = Self {
            api_server: api_server.clone(),
            http,
            agents,
            clients,
            metrics,
            shutdown,
            configuration,
            running: tokio::spawn(serving),
            folder,
        };
        hub.until("the values are written", async || {
            let clusters = hub.get("/api/clusters").await;
            clusters.code == 200 && !clusters.body["clusters"].as_array().unwrap().is_empty()
        })
        .await;
        hub
    }

    /// Waits for a condition.
    pub(crate) async fn until(&self, what: &str, condition: impl AsyncFn() -> bool) {
        let waiting = async {
            while !condition().await {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        };
        let waited = tokio::time::timeout(HANG, waiting).await;
        assert!(waited.is_ok(), "not in time: {what}");
    }

    /// A request of the administrator at the port without TLS.
    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.request("GET", path, None).await
    }

    pub(crate) async fn request(&self, method: &str, path: &str, body: Option<Value>) -> Reply {
        let client = TestClient::plain(self.http).token(ADMIN);
        client.send(method, path, body).await
    }

    /// A new registration token.
    pub(crate) async fn token(&self, cluster: &str) -> String {
        let body = json!({ "cluster": cluster });
        let created = self.request("POST", "/api/agents/tokens", Some(body)).await;
        assert_eq!(created.code, 201, "{:?}", created.body);
        created.body["token"].as_str().unwrap().to_owned()
    }

    /// A client of the port for agents that trusts the hub's authorities.
    pub(crate) fn agents_client(&self) -> TestClient {
        TestClient::tls(self.agents, &self.authorities())
    }

    pub(crate) async fn register(&self, token: &str, cluster: &str, key: &PrivateKey) -> Reply {
        let csr = key.request_pem(cluster).unwrap();
        let body = json!({ "token": token, "cluster": cluster, "csr": csr });
        let client = self.agents_client();
        client
            .send("POST", "/api/agents/register", Some(body))
            .await
    }

    /// Registers an agent, which then has a certificate.
    pub(crate) async fn registered(&self, cluster: &str) -> TestCredentials {
        let key = PrivateKey::generate().unwrap();
        let token = self.token(cluster).await;
        let registered = self.register(&token, cluster, &key).await;
        assert_eq!(registered.code, 200, "{:?}", registered.body);
        TestCredentials::new(
            registered.body["cert"].as_str().unwrap(),
            key.to_pem(),
            registered.body["caBundle"].as_str().unwrap(),
        )
    }

    /// The hub's authority, with which a test can sign any certificate.
    pub(crate) fn authority(&self) -> Authority {
        let text = |key| self.api_server.secret_text("standin-hub-ca", key).unwrap();
        Authority::from_pem(&text("ca.crt"), &text("ca.key")).unwrap()
    }

    pub(crate) fn authorities(&self) -> String {
        self.authority().certificate_pem().to_owned()
    }

    /// The state of a cluster in the API.
    pub(crate) async fn state(&self, cluster: &str) -> String {
        let found = self.get(&format!("/api/clusters/{cluster}")).await;
        found.body["state"].as_str().unwrap_or("none").to_owned()
    }

    pub(crate) async fn until_state(&self, cluster: &str, state: &str) {
        let what = format!("{cluster} is {state}");
        self.until(&what, async || self.state(cluster).await == state)
            .await;
    }
}

/// A client certificate for a new key.
pub(crate) fn certificate(
    authority: &Authority,
    name: &str,
    usage: Usage,
    issued: Timestamp,
    days: i64,
) -> Identity {
    let key = PrivateKey::generate().unwrap();
    let profile = Profile {
        common_name: name.to_owned(),
        names: Vec::new(),
        usage,
        lifetime: SignedDuration::from_hours(24 * days),
    };
    let issued = authority.issue(&key, &profile, issued).unwrap();
    Identity {
        certificate: issued.certificate_pem,
        key: key.to_pem().to_owned(),
    }
}
