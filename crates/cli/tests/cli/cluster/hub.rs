//! A hub's API for clients, without tunnels: a TLS server on localhost that keeps its clusters in memory.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;

use api::hub::{Cluster, ErrorBody, HubDescription, NewCluster, RegistrationToken, TokenRequest};
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, PublicKeyData as _};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::server::TlsStream;

pub(super) const GOOD_TOKEN: &str = "hunter2";
/// The token of a user without any right.
pub(super) const POWERLESS_TOKEN: &str = "hunter3";

/// A running hub. It ends with the test.
pub(super) struct Hub {
    pub(super) url: String,
    pub(super) port: u16,
    /// In PEM.
    pub(super) authority: String,
    pub(super) pin: String,
    memory: Arc<Mutex<Memory>>,
    _stop: oneshot::Sender<()>,
}

#[derive(Default)]
struct Memory {
    clusters: BTreeMap<String, Value>,
    /// After how many requests for them clusters become connected.
    connecting: BTreeMap<String, usize>,
    tokens: usize,
    /// How many requests for a token of a cluster do not find it.
    unknown_for: usize,
    requests: Vec<String>,
    description: Value,
}

type Shared = State<Arc<Mutex<Memory>>>;

struct TlsListener {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl axum::serve::Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let Ok((stream, address)) = self.listener.accept().await else {
                continue;
            };
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

/// The certificate of the server, signed by an authority of its own.
struct Identity {
    authority: String,
    pin: String,
    acceptor: TlsAcceptor,
}

fn identity() -> Identity {
    let key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let pem = authority.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(authority, key);
    let key = KeyPair::generate().unwrap();
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let certificate = CertificateParams::new(names).unwrap();
    let certificate = certificate.signed_by(&key, &issuer).unwrap();
    let digest = Sha256::digest(key.subject_public_key_info());
    let digits: Vec<String> = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let private = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(
        tokio_rustls::rustls::crypto::ring::default_provider(),
    ))
    .with_safe_default_protocol_versions()
    .unwrap()
    .with_no_client_auth()
    .with_single_cert(vec![certificate.der().clone()], private)
    .unwrap();
    Identity {
        authority: pem,
        pin: format!("sha256:{}", digits.concat()),
        acceptor: TlsAcceptor::from(Arc::new(config)),
    }
}

fn ago(hours: i64) -> String {
    (Timestamp::now() - SignedDuration::from_hours(hours)).to_string()
}

fn clusters() -> BTreeMap<String, Value> {
    let half_a_day = -12;
    let clusters = [
        json!({
            "name": "prod-eu", "backend": "agent", "state": "connected", "fromValues": false,
            "labels": { "region": "eu" }, "connectedSince": ago(3), "lastSeen": ago(0),
            "agentVersion": "0.1.0", "kubernetesVersion": "v1.34.1",
            "certificateExpiresAt": ago(-59 * 24 + half_a_day), "replicas": ["standin-hub-0"],
        }),
        json!({
            "name": "prod-us", "backend": "agent", "state": "disconnected", "fromValues": true,
            "agentVersion": "0.1.0", "certificateExpiresAt": ago(-29 * 24 + half_a_day),
            "message": "its agent was last seen 5 minutes ago",
        }),
        json!({ "name": "new", "backend": "agent", "state": "pending", "fromValues": false }),
    ];
    let named = |cluster: Value| (cluster["name"].as_str().unwrap().to_owned(), cluster);
    clusters.into_iter().map(named).collect()
}

impl Hub {
    /// A hub that names its authority.
    pub(super) fn start() -> Self {
        Self::with_description(&json!({}))
    }

    /// These fields of the description differ.
    pub(super) fn with_description(changes: &Value) -> Self {
        let identity = identity();
        let mut description = json!({
            "version": "0.1.0", "agentUrl": "wss://hub.example.com:8443", "registrationUrl": null,
            "apiUrl": null, "serverCAHash": identity.pin, "caBundle": identity.authority,
            "agentChart": "oci://charts.example.com/standin-tunnel-agent",
        });
        for (key, value) in changes.as_object().unwrap() {
            description[key] = value.clone();
        }
        // The type is the interface.
        serde_json::from_value::<HubDescription>(description.clone()).unwrap();
        let memory = Arc::new(Mutex::new(Memory {
            clusters: clusters(),
            description,
            ..Memory::default()
        }));
        let (stop, stopped) = oneshot::channel();
        let port = serve(router(memory.clone()), identity.acceptor, stopped);
        Self {
            url: format!("https://localhost:{port}"),
            port,
            authority: identity.authority,
            pin: identity.pin,
            memory,
            _stop: stop,
        }
    }

    /// As kubeconfigs and messages name it.
    pub(super) fn name(&self) -> String {
        format!("localhost:{}", self.port)
    }

    pub(super) fn cluster(&self, name: &str) -> Option<Value> {
        self.memory.lock().clusters.get(name).cloned()
    }

    pub(super) fn set_state(&self, name: &str, state: &str) {
        let mut memory = self.memory.lock();
        memory.clusters.get_mut(name).unwrap()["state"] = json!(state);
    }

    pub(super) fn connect_after(&self, name: &str, requests: usize) {
        let mut memory = self.memory.lock();
        memory.connecting.insert(name.to_owned(), requests);
    }

    /// As a replica that knows new clusters a moment later.
    pub(super) fn delay_tokens(&self, requests: usize) {
        self.memory.lock().unknown_for = requests + 1;
    }

    pub(super) fn tokens(&self) -> usize {
        self.memory.lock().tokens
    }

    /// All requests so far, as `GET /api/hub`.
    pub(super) fn requests(&self) -> Vec<String> {
        self.memory.lock().requests.clone()
    }

    pub(super) fn rotate_authority(&self, pem: &str) {
        self.memory.lock().description["caBundle"] = json!(pem);
    }
}

/// Serves until the sender is dropped. Returns the port.
fn serve(router: Router, acceptor: TlsAcceptor, stopped: oneshot::Receiver<()>) -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap().block_on(async {
            let listener = TlsListener {
                listener: TcpListener::from_std(listener).unwrap(),
                acceptor,
            };
            tokio::select! {
                _ = axum::serve(listener, router) => {}
                _ = stopped => {}
            }
        });
    });
    port
}

fn router(memory: Arc<Mutex<Memory>>) -> Router {
    Router::new()
        .route("/api/hub", get(describe))
        .route("/api/clusters", get(list).post(add))
        .route("/api/clusters/{name}", get(one).delete(remove))
        .route("/api/clusters/{name}/revoke", post(revoke))
        .route("/api/agents/tokens", post(token))
        .route("/clusters/{name}/version", get(version))
        .layer(middleware::from_fn_with_state(memory.clone(), authenticate))
        .with_state(memory)
}

fn refused(status: StatusCode, error: &str) -> Response {
    let body = ErrorBody {
        error: error.to_owned(),
        hint: None,
    };
    (status, Json(body)).into_response()
}

async fn authenticate(
    State(memory): Shared,
    headers: HeaderMap,
    request: Request,
    next: Next,
) -> Response {
    let line = format!("{} {}", request.method(), request.uri().path());
    memory.lock().requests.push(line);
    let value = headers.get(header::AUTHORIZATION);
    let token = value.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    match token {
        Some(GOOD_TOKEN) => next.run(request).await,
        Some(POWERLESS_TOKEN) if request.uri().path() == "/api/hub" => next.run(request).await,
        Some(POWERLESS_TOKEN) => refused(StatusCode::FORBIDDEN, "max has no such right"),
        Some(_) => refused(StatusCode::UNAUTHORIZED, "the token is unknown"),
        None => refused(StatusCode::UNAUTHORIZED, "there is no token"),
    }
}

async fn describe(State(memory): Shared) -> Json<Value> {
    Json(memory.lock().description.clone())
}

async fn list(State(memory): Shared) -> Json<Value> {
    let clusters: Vec<Value> = memory.lock().clusters.values().cloned().collect();
    for cluster in &clusters {
        serde_json::from_value::<Cluster>(cluster.clone()).unwrap();
    }
    Json(json!({ "clusters": clusters }))
}

async fn add(State(memory): Shared, Json(new): Json<NewCluster>) -> Response {
    let mut memory = memory.lock();
    if memory.clusters.contains_key(&new.name) {
        return refused(StatusCode::CONFLICT, "it exists");
    }
    let cluster = json!({
        "name": new.name, "backend": "agent", "state": "pending", "fromValues": false,
        "labels": new.labels,
    });
    memory.clusters.insert(new.name, cluster.clone());
    (StatusCode::CREATED, Json(cluster)).into_response()
}

async fn one(State(memory): Shared, Path(name): Path<String>) -> Response {
    let mut memory = memory.lock();
    let is_connected = memory.connecting.get_mut(&name).is_some_and(|requests| {
        *requests = requests.saturating_sub(1);
        *requests == 0
    });
    match memory.clusters.get_mut(&name) {
        None => refused(StatusCode::NOT_FOUND, "there is no such cluster"),
        Some(cluster) => {
            if is_connected {
                cluster["state"] = json!("connected");
            }
            Json(cluster.clone()).into_response()
        }
    }
}

async fn remove(State(memory): Shared, Path(name): Path<String>) -> Response {
    match memory.lock().clusters.remove(&name) {
        None => refused(StatusCode::NOT_FOUND, "there is no such cluster"),
        Some(_) => StatusCode::NO_CONTENT.into_response(),
    }
}

async fn revoke(State(memory): Shared, Path(name): Path<String>) -> Response {
    match memory.lock().clusters.get_mut(&name) {
        None => refused(StatusCode::NOT_FOUND, "there is no such cluster"),
        Some(cluster) => {
            cluster["state"] = json!("revoked");
            Json(cluster.clone()).into_response()
        }
    }
}

async fn token(State(memory): Shared, Json(request): Json<TokenRequest>) -> Response {
    let mut memory = memory.lock();
    memory.unknown_for = memory.unknown_for.saturating_sub(1);
    if !memory.clusters.contains_key(&request.cluster) || memory.unknown_for > 0 {
        return refused(StatusCode::NOT_FOUND, "there is no such cluster");
    }
    memory.tokens += 1;
    let expires_at = json!(ago(-1));
    let token = RegistrationToken {
        token: format!("registration-token-of-{}", request.cluster),
        cluster: request.cluster,
        expires_at: serde_json::from_value(expires_at).unwrap(),
    };
    Json(token).into_response()
}

/// The API server of a cluster, as a Kubernetes client asks for its version.
async fn version(Path(name): Path<String>) -> Json<Value> {
    Json(json!({
        "major": "1", "minor": "34", "gitVersion": name, "gitCommit": "", "gitTreeState": "",
        "buildDate": "", "goVersion": "", "compiler": "", "platform": "",
    }))
}
