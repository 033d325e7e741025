//! A server for tests, which speaks TLS like an API server or a hub.

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use authority::{Authority, KeyHash, PrivateKey, Profile, Usage};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use jiff::{SignedDuration, Timestamp};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::api_server::ApiServer;
use crate::endpoint::Endpoint;
use crate::settings::ApiServerSettings;

/// A server whose answers are those of `respond`.
pub(crate) struct FakeServer {
    /// It has the authority in `ca.crt`, and the token of the client in `token`.
    pub(crate) folder: TempDir,
    pub(crate) address: SocketAddr,
    /// The hash of its key.
    pub(crate) pin: KeyHash,
    connections: Arc<AtomicUsize>,
}

pub(crate) type Respond = Arc<dyn Fn(&Request<()>, &[u8]) -> (u16, Value) + Send + Sync>;

impl FakeServer {
    pub(crate) async fn start(protocols: &[&[u8]], respond: Respond) -> Self {
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
        let pin = key.key();
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
            pin,
            connections,
        }
    }

    pub(crate) fn client(&self) -> ApiServer {
        let settings = ApiServerSettings {
            server: Endpoint::https("127.0.0.1", self.address.port()),
            ca_file: self.folder.path().join("ca.crt"),
            token_file: self.folder.path().join("token"),
            namespace: "tools".to_owned(),
        };
        ApiServer::new(&settings).unwrap()
    }

    pub(crate) fn connections(&self) -> usize {
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

/// A server with one Secret, whose version has to fit. `conflicts` changes of others come first.
pub(crate) fn with_secret(conflicts: usize) -> Respond {
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
