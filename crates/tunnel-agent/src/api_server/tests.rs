//! The client for the API server, against a server that speaks TLS like a real one.

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use authority::{Authority, PrivateKey, Profile, Usage};
use http::{Method, Request, Response};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use jiff::{SignedDuration, Timestamp};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::secret::Secret;
use super::*;
use crate::endpoint::Endpoint;
use crate::store::Store;

/// A server whose answers are those of `respond`.
struct FakeServer {
    folder: TempDir,
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

type Respond = Arc<dyn Fn(&Request<()>, &[u8]) -> (u16, Value) + Send + Sync>;

impl FakeServer {
    async fn start(protocols: &[&[u8]], respond: Respond) -> Self {
        let now = Timestamp::now();
        let life = SignedDuration::from_hours(1);
        let authority = Authority::generate("cluster", life, now).unwrap();
        let key = PrivateKey::generate().unwrap();
        let profile = Profile {
            common_name: "apiserver".to_owned(),
            names: vec!["127.0.0.1".to_owned()],
            usage: Usage::Server,
            lifetime: life,
        };
        let certificate = authority.issue(&key, &profile, now).unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("ca.crt"), authority.certificate_pem()).unwrap();
        fs::write(folder.path().join("token"), "TOKEN").unwrap();
        let chain = crate::trust::certificates("tls.crt", &certificate.certificate_pem).unwrap();
        let key = PrivateKeyDer::from_pem_slice(key.to_pem().as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&connections);
        tokio::spawn(async move {
            let acceptor = TlsAcceptor::from(Arc::new(config));
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                counter.fetch_add(1, Ordering::AcqRel);
                tokio::spawn(serve(acceptor.clone(), stream, Arc::clone(&respond)));
            }
        });
        Self {
            folder,
            address,
            connections,
        }
    }

    fn client(&self) -> ApiServer {
        let settings = ApiServerSettings {
            server: Endpoint::https("127.0.0.1", self.address.port()),
            ca_file: self.folder.path().join("ca.crt"),
            token_file: self.folder.path().join("token"),
            namespace: "tools".to_owned(),
        };
        ApiServer::new(&settings).unwrap()
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::Acquire)
    }
}

async fn serve(acceptor: TlsAcceptor, stream: TcpStream, respond: Respond) {
    let Ok(stream) = acceptor.accept(stream).await else {
        return;
    };
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let service = service_fn(move |request: Request<Incoming>| {
        let respond = Arc::clone(&respond);
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            let (status, value) = respond(&Request::from_parts(head, ()), &body);
            let mut response = Response::new(Full::new(Bytes::from(value.to_string())));
            *response.status_mut() = StatusCode::from_u16(status).unwrap();
            Ok::<_, hyper::Error>(response)
        }
    });
    let io = TokioIo::new(stream);
    // A client that closes the connection ends it with an error.
    let _ = match is_http2 {
        true => {
            http2::Builder::new(TokioExecutor::new())
                .max_concurrent_streams(10)
                .serve_connection(io, service)
                .await
        }
        false => http1::Builder::new().serve_connection(io, service).await,
    };
}

fn version(request: &Request<()>) -> (u16, Value) {
    let token = request.headers().get("authorization").unwrap();
    assert_eq!(token, "Bearer TOKEN");
    assert_eq!(request.uri().path(), "/version");
    (200, json!({ "gitVersion": "v1.34.0", "major": "1" }))
}

#[tokio::test]
async fn requests_share_a_connection_over_http2() {
    let server = FakeServer::start(&[b"h2", b"http/1.1"], Arc::new(|it, _| version(it))).await;
    let client = server.client();
    for _ in 0..20 {
        assert_eq!(client.version().await.unwrap(), "v1.34.0");
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_server_without_http2_is_served_as_well() {
    let server = FakeServer::start(&[b"http/1.1"], Arc::new(|it, _| version(it))).await;
    let client = server.client();
    for _ in 0..3 {
        assert_eq!(client.version().await.unwrap(), "v1.34.0");
    }
}

#[tokio::test]
async fn more_requests_than_a_connection_allows_do_not_wait_for_one_another() {
    let server = FakeServer::start(&[b"h2"], Arc::new(|it, _| version(it))).await;
    let client = server.client();
    client.version().await.unwrap();
    // Each response is kept and not read, like that of a watch.
    let mut watches = Vec::new();
    for _ in 0..25 {
        let request = Request::get("/version")
            .body(body::of(Empty::new()))
            .unwrap();
        watches.push(client.send(request).await.unwrap());
    }
    assert!(server.connections() >= 3, "{}", server.connections());
    drop(watches);
    let before = server.connections();
    client.version().await.unwrap();
    assert_eq!(server.connections(), before);
}

#[tokio::test]
async fn a_connection_for_an_upgrade_has_the_credential_and_the_path() {
    let server = FakeServer::start(&[b"h2", b"http/1.1"], Arc::new(|it, _| version(it))).await;
    let client = server.client();
    let mut request = Request::get("http://link/api/v1/pods/a/exec?command=sh")
        .header("authorization", "Bearer other")
        .body(())
        .unwrap();
    let stream = client.connect_for_upgrade(&mut request).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    assert_eq!(request.uri(), "/api/v1/pods/a/exec?command=sh");
    assert_eq!(request.headers()["authorization"], "Bearer TOKEN");
    let host = format!("127.0.0.1:{}", server.address.port());
    assert_eq!(request.headers()["host"], host.as_str());
}

#[tokio::test]
async fn servers_of_other_authorities_are_refused() {
    let server = FakeServer::start(&[b"h2"], Arc::new(|it, _| version(it))).await;
    let now = Timestamp::now();
    let other = Authority::generate("other", SignedDuration::from_hours(1), now).unwrap();
    fs::write(server.folder.path().join("ca.crt"), other.certificate_pem()).unwrap();
    let error = server.client().version().await.unwrap_err();
    let text = error_chain::error_chain(&error);
    assert!(text.contains("UnknownIssuer"), "{text}");
}

/// A server with one Secret, whose version has to fit. `conflicts` changes of others come first.
fn with_secret(conflicts: usize) -> Respond {
    let state = parking_lot::Mutex::new((1_u32, Value::Null, conflicts));
    Arc::new(move |request, body| {
        assert_eq!(
            request.uri().path(),
            "/api/v1/namespaces/tools/secrets/state"
        );
        let mut state = state.lock();
        let (version, data, conflicts) = &mut *state;
        if request.method() == Method::PUT {
            let object: Value = serde_json::from_slice(body).unwrap();
            if *conflicts > 0 {
                *conflicts -= 1;
                *version += 1;
                return (409, json!({ "kind": "Status" }));
            }
            let read = object["metadata"]["resourceVersion"].as_str().unwrap();
            assert_eq!(read, version.to_string());
            *version += 1;
            *data = object["data"].clone();
        }
        let metadata = json!({ "name": "state", "resourceVersion": version.to_string() });
        (200, json!({ "metadata": metadata, "data": data }))
    })
}

async fn changed(conflicts: usize) -> Result<Secret> {
    let server = FakeServer::start(&[b"h2"], with_secret(conflicts)).await;
    let store = Store::new(Arc::new(server.client()), "state".to_owned());
    store.change(|secret| secret.set("tls.key", "A")).await?;
    store.read().await
}

#[tokio::test]
async fn a_change_is_repeated_after_changes_of_others() {
    for conflicts in [0, 1, 3] {
        let secret = changed(conflicts).await.unwrap();
        assert_eq!(secret.text("tls.key"), Some("A"));
    }
    assert!(matches!(changed(100).await, Err(Error::Contention)));
}

#[tokio::test]
async fn missing_and_forbidden_secrets_are_explained() {
    for (status, expected) in [
        (404, "the Secret tools/state does not exist"),
        (
            403,
            "403 Forbidden when the agent tried to get the Secret tools/state",
        ),
    ] {
        let respond: Respond = Arc::new(move |_, _| (status, json!({ "kind": "Status" })));
        let server = FakeServer::start(&[b"h2"], respond).await;
        let error = server.client().secret("state").await.map(drop).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}
