//! The server over real connections: the API server, and unauthenticated peers that are idle or slow.

use std::net::SocketAddr;

use admission::{Admission, Limits, accept};
use bytes::Bytes;
use http::StatusCode;
use http_body_util::Full;
use hyper::client::conn::{http1, http2};
use hyper_util::server::graceful::GracefulShutdown;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::{PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream as ClientStream;

use super::*;
use crate::certificates::{Renewal, renew};
use crate::front_proxy::FrontProxy;

const NAME: &str = "operator.standin.svc";
const LIMITS: Limits = Limits {
    total: 16,
    per_source: 16,
};
/// A test that hangs fails. It is shorter than the time after which an idle connection is closed.
const HANG: Duration = Duration::from_secs(4);

/// A server that responds with the authentication of its client.
struct Server {
    address: SocketAddr,
    admission: Admission,
    unauthenticated: ClientConfig,
    api_server: ClientConfig,
}

impl Server {
    async fn start() -> Self {
        let (trust, unauthenticated, api_server) = trust();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let admission = Admission::new(LIMITS);
        tokio::spawn(accept_connections(listener, admission.clone(), trust));
        Self {
            address,
            admission,
            unauthenticated,
            api_server,
        }
    }

    async fn connect(&self, config: &ClientConfig, protocol: &str) -> ClientStream<TcpStream> {
        let mut config = config.clone();
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let connection = TcpStream::connect(self.address).await.unwrap();
        let name = ServerName::try_from(NAME).unwrap();
        let connecting = TlsConnector::from(Arc::new(config)).connect(name, connection);
        timeout(HANG, connecting).await.unwrap().unwrap()
    }

    async fn connect_http2(&self, config: &ClientConfig) -> http2::SendRequest<Full<Bytes>> {
        let stream = TokioIo::new(self.connect(config, "h2").await);
        let handshake = http2::handshake(TokioExecutor::new(), stream);
        let (sender, connection) = timeout(HANG, handshake).await.unwrap().unwrap();
        tokio::spawn(connection);
        sender
    }
}

async fn accept_connections(listener: TcpListener, admission: Admission, trust: Arc<Trust>) {
    let graceful = GracefulShutdown::new();
    loop {
        let (connection, peer) = accept(&listener).await;
        let (permit, watcher, trust) = (
            admission.admit(peer),
            graceful.watcher(),
            Arc::clone(&trust),
        );
        tokio::spawn(async move {
            let respond = async |authentication, _| {
                let text = format!("{authentication:?}");
                ApiResponse::new(Full::new(Bytes::from(text)))
            };
            let respond = move |authentication, request| respond(authentication, request);
            let _ = serve(&trust, watcher, permit, connection, respond).await;
        });
    }
}

/// The server's TLS configuration, and those of an unauthenticated peer and of the API server.
fn trust() -> (Arc<Trust>, ClientConfig, ClientConfig) {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_key = KeyPair::generate().unwrap();
    let authority_certificate = authority.self_signed(&authority_key).unwrap();
    let mut client = CertificateParams::default();
    client
        .distinguished_name
        .push(DnType::CommonName, "front-proxy");
    let client_key = KeyPair::generate().unwrap();
    let issuer = Issuer::new(authority, authority_key);
    let client = client.signed_by(&client_key, &issuer).unwrap();

    let data = [(
        "requestheader-client-ca-file".to_owned(),
        authority_certificate.pem(),
    )];
    let config_map = ConfigMap {
        data: Some(data.into()),
        ..ConfigMap::default()
    };
    let front_proxy = FrontProxy::from_config_map(&config_map).unwrap();
    let names = [NAME.to_owned()];
    let certificates = renew(None, Renewal::Authority, &names, Timestamp::now()).unwrap();
    let trust = Trust::new(front_proxy, &certificates).unwrap();

    let (chain, _) = certificates.for_server().unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(chain.last().unwrap().clone()).unwrap();
    let builder = || {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        builder.with_root_certificates(roots.clone())
    };
    let key = PrivatePkcs8KeyDer::from(client_key.serialize_der());
    let api_server = builder().with_client_auth_cert(vec![client.der().clone()], key.into());
    (
        Arc::new(trust),
        builder().with_no_client_auth(),
        api_server.unwrap(),
    )
}

fn request() -> Request<Full<Bytes>> {
    let request = Request::get(format!("https://{NAME}/apis"));
    request.body(Full::default()).unwrap()
}

async fn body(response: http::Response<Incoming>) -> String {
    use http_body_util::BodyExt as _;
    assert_eq!(response.status(), StatusCode::OK);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

#[tokio::test]
async fn idle_peers_do_not_keep_the_api_server_out() {
    let server = Server::start().await;
    let mut idle = Vec::new();
    let mut established = server.connect_http2(&server.api_server).await;
    for _ in 0..LIMITS.total * 4 {
        idle.push(server.connect_http2(&server.unauthenticated).await);
    }
    let mut slow = Vec::new();
    for _ in 0..LIMITS.total * 4 {
        slow.push(TcpStream::connect(server.address).await.unwrap());
    }
    for _ in 0..3 {
        let mut sender = server.connect_http2(&server.api_server).await;
        let response = timeout(HANG, sender.send_request(request())).await;
        assert_eq!(body(response.unwrap().unwrap()).await, "FrontProxy");
    }
    // A connection of the API server never needs a permit after its handshake.
    let response = established.send_request(request()).await.unwrap();
    assert_eq!(body(response).await, "FrontProxy");
    assert!(server.admission.unauthenticated() <= LIMITS.total);
    assert!(server.admission.evicted() > 0);
}

#[tokio::test]
async fn an_unauthenticated_client_gets_one_response_over_http2() {
    let server = Server::start().await;
    let mut sender = server.connect_http2(&server.unauthenticated).await;
    let (first, second) = (
        sender.send_request(request()),
        sender.send_request(request()),
    );
    let (first, second) = tokio::join!(timeout(HANG, first), timeout(HANG, second));
    assert_eq!(body(first.unwrap().unwrap()).await, "None");
    assert!(second.unwrap().is_err(), "two responses");
    timeout(HANG, async {
        while sender.ready().await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn an_unauthenticated_client_gets_one_response_over_http1() {
    let server = Server::start().await;
    let stream = TokioIo::new(server.connect(&server.unauthenticated, "http/1.1").await);
    let (mut sender, connection) = http1::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection.without_shutdown());
    let response = timeout(HANG, sender.send_request(request())).await.unwrap();
    assert_eq!(body(response.unwrap()).await, "None");
    let parts = timeout(HANG, connection).await.unwrap().unwrap().unwrap();
    let mut stream = parts.io.into_inner();
    let end = timeout(HANG, stream.read(&mut [0; 1])).await.unwrap();
    assert!(matches!(end, Ok(0) | Err(_)), "the connection is open");
}
