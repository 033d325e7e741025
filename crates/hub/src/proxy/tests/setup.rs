//! A hub's proxy with real parts: a client, the proxy, a tunnel over TLS, and an HTTP server in place of an API server.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, UPGRADE};
use http::{Request, Response, StatusCode, Version};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use kube::Client;
use parking_lot::Mutex;
use rustls::pki_types::PrivateKeyDer;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tunnel::{Accepted, Acceptor, AcceptorSettings, Session};

use super::super::*;
use crate::audit::AuditQuery;
use crate::body::full;
use crate::sessions::Unavailable;

/// The cluster that is connected.
pub(crate) const CLUSTER: &str = "prod";

pub(crate) type Sender = http2::SendRequest<Body>;

/// The tunnels of this hub, by cluster.
#[derive(Clone, Default)]
pub(crate) struct Tunnels(Arc<Mutex<HashMap<String, Vec<Session>>>>);

impl UpstreamSource for Tunnels {
    fn upstream(&self, cluster: &str) -> Result<Box<dyn Upstream>, SendError> {
        let tunnels = self.0.lock();
        let newest = tunnels.get(cluster).and_then(|tunnels| tunnels.last());
        match newest {
            Some(session) => Ok(Box::new(session.clone())),
            None if cluster == "other" => Err(SendError::Unavailable(Unavailable::NotRegistered)),
            None => Err(SendError::Unavailable(Unavailable::NotConnected {
                since: None,
                message: "no agent".to_owned(),
            })),
        }
    }
}

impl Tunnels {
    pub(crate) fn insert(&self, cluster: &str, session: Session) {
        self.0
            .lock()
            .entry(cluster.to_owned())
            .or_default()
            .push(session);
    }

    pub(crate) fn remove(&self, cluster: &str) {
        self.0.lock().remove(cluster);
    }

    pub(crate) fn newest(&self, cluster: &str) -> Session {
        self.0.lock()[cluster].last().unwrap().clone()
    }
}

pub(crate) struct Setup {
    pub(crate) address: SocketAddr,
    pub(crate) audit: Audit,
    pub(crate) stopping: CancellationToken,
    pub(crate) tunnels: Tunnels,
    pub(crate) api_server: Arc<ApiServer>,
    _stop: tokio_util::sync::DropGuard,
}

impl Setup {
    pub(crate) async fn start() -> Self {
        Self::with(ProxySettings::default(), AcceptorSettings::default()).await
    }

    pub(crate) async fn with(settings: ProxySettings, tunnel: AcceptorSettings) -> Self {
        let (stop, tunnels) = (CancellationToken::new(), Tunnels::default());
        let api_server = ApiServer::start().await;
        let session = tunnel_to(&api_server, tunnel, &stop).await;
        tunnels.insert(CLUSTER, session);
        let upstreams = Arc::new(tunnels.clone());
        Self::replica(settings, upstreams, tunnels, api_server, stop).await
    }

    /// A replica of a hub.
    pub(crate) async fn replica(
        settings: ProxySettings,
        upstreams: Arc<dyn UpstreamSource>,
        tunnels: Tunnels,
        api_server: Arc<ApiServer>,
        stop: CancellationToken,
    ) -> Self {
        let (audit, stopping) = (Audit::new(100), CancellationToken::new());
        let authorizer = Arc::new(Authorizer::new(rights(), "standin".to_owned()));
        let proxy = Proxy::new(
            authorizer,
            upstreams,
            audit.clone(),
            settings,
            stopping.clone(),
        );
        let address = serve_hub(Arc::new(proxy)).await;
        Self {
            address,
            audit,
            stopping,
            tunnels,
            api_server,
            _stop: stop.drop_guard(),
        }
    }

    /// A connection of a client that speaks HTTP/2.
    pub(crate) async fn connect(&self) -> Sender {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        sender
    }

    /// A connection of a client that speaks HTTP/1.1.
    pub(crate) async fn connect_http1(&self) -> http1::SendRequest<Body> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection.with_upgrades());
        sender
    }

    /// The status and the JSON of a response without a body in the request.
    pub(crate) async fn get(&self, path: &str) -> (u16, Value) {
        self.send(request("GET", path).body(full(Bytes::new())).unwrap())
            .await
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> (u16, Value) {
        let response = self
            .connect_http1()
            .await
            .send_request(request)
            .await
            .unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }

    /// Waits for this number of audit rows, and returns the newest.
    pub(crate) async fn audited(&self, number: usize) -> api::hub::AuditRow {
        loop {
            let rows = self.audit.list(&AuditQuery::default()).rows;
            if rows.len() >= number {
                return rows[0].clone();
            }
            tokio::task::yield_now().await;
        }
    }
}

pub(crate) fn request(method: &str, path: &str) -> http::request::Builder {
    Request::builder()
        .method(method)
        .uri(path)
        .header("host", "hub")
}

/// An API server of the hub's cluster that allows everything except for the cluster `forbidden`.
fn rights() -> Client {
    let service = tower::service_fn(|request: Request<kube::client::Body>| async {
        let body = request.into_body().collect_bytes().await.unwrap();
        let review: Value = serde_json::from_slice(&body).unwrap();
        let is_allowed = review["spec"]["resourceAttributes"]["name"] != "forbidden";
        let response = json!({"spec": {}, "status": {"allowed": is_allowed}}).to_string();
        Ok::<_, Infallible>(Response::new(kube::client::Body::from(
            response.into_bytes(),
        )))
    });
    Client::new(service, "standin")
}

/// The user of all requests, unless the test names another one in a header.
fn user(request: &Request<Incoming>) -> User {
    let name = request.headers().get("test-user");
    User {
        name: name
            .map_or("anna", |name| name.to_str().unwrap())
            .to_owned(),
        groups: vec!["developers".to_owned(), "system:authenticated".to_owned()],
        ..User::default()
    }
}

async fn serve_hub(proxy: Arc<Proxy>) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let proxy = Arc::clone(&proxy);
            let service = service_fn(move |mut request: Request<Incoming>| {
                let proxy = Arc::clone(&proxy);
                async move {
                    let path = request.uri().path().to_owned();
                    let below = path.strip_prefix("/clusters/").unwrap();
                    let (cluster, rest) = below.split_at(below.find('/').unwrap_or(below.len()));
                    let user = user(&request);
                    request.headers_mut().remove("test-user");
                    Ok::<_, Infallible>(proxy.respond(user, request, cluster, rest).await)
                }
            });
            tokio::spawn(async move {
                let builder = auto::Builder::new(TokioExecutor::new());
                let serving = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
                let _ = serving.await;
            });
        }
    });
    address
}

/// What stands in place of an API server.
pub(crate) struct ApiServer {
    address: SocketAddr,
    /// Requests whose responses have not ended.
    pub(crate) open: watch::Sender<usize>,
    /// How the bodies of requests have ended: the number of bytes, or `None` for a failure.
    pub(crate) uploads: watch::Sender<Vec<Option<usize>>>,
    /// Sends the parts of streamed responses.
    pub(crate) parts: watch::Sender<&'static str>,
}

/// Counts a request for as long as its response.
struct Open(Arc<ApiServer>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.send_modify(|open| *open -= 1);
    }
}

impl ApiServer {
    pub(crate) async fn start() -> Arc<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let server = Arc::new(Self {
            address: listener.local_addr().unwrap(),
            open: watch::Sender::new(0),
            uploads: watch::Sender::default(),
            parts: watch::Sender::new(""),
        });
        let serving = Arc::clone(&server);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let server = Arc::clone(&serving);
                let service = service_fn(move |request| {
                    let server = Arc::clone(&server);
                    async move { Ok::<_, Infallible>(server.respond(request).await) }
                });
                tokio::spawn(async move {
                    let builder = hyper::server::conn::http1::Builder::new();
                    let connection = builder.serve_connection(TokioIo::new(stream), service);
                    let _ = connection.with_upgrades().await;
                });
            }
        });
        server
    }

    async fn respond(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        self.open.send_modify(|open| *open += 1);
        let open = Open(Arc::clone(&self));
        let path = request.uri().path().to_owned();
        match path.as_str() {
            // As long as the test wants
            "/api/v1/pods" | "/api/v1/namespaces/shop/pods/web/log" => {
                let stream = futures_util::stream::unfold(
                    (self.parts.subscribe(), open),
                    async |(mut parts, open)| {
                        parts.changed().await.ok()?;
                        let part = Bytes::from_static(parts.borrow_and_update().as_bytes());
                        Some((
                            Ok::<_, BoxError>(http_body::Frame::data(part)),
                            (parts, open),
                        ))
                    },
                );
                Response::new(http_body_util::StreamBody::new(stream).boxed_unsync())
            }
            // Returns what it gets, while it gets it
            "/api/v1/namespaces/shop/services/web/proxy/echo" => {
                Response::new(request.into_body().map_err(Into::into).boxed_unsync())
            }
            "/api/v1/namespaces/shop/pods/web/exec" => upgrade(request),
            "/slow" => {
                let _open = open;
                std::future::pending().await
            }
            "/upload" => {
                let body = request.into_body().collect().await;
                let size = body.ok().map(|body| body.to_bytes().len());
                self.uploads.send_modify(|uploads| uploads.push(size));
                Response::new(full("{}"))
            }
            _ => describe(&request),
        }
    }
}

/// Describes the request.
fn describe(request: &Request<Incoming>) -> Response<Body> {
    let mut headers: Vec<String> = request
        .headers()
        .iter()
        .map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value.as_bytes())))
        .collect();
    headers.sort();
    let text = json!({
        "method": request.method().as_str(),
        "target": request.uri().to_string(),
        "headers": headers,
    });
    Response::builder()
        .header(CONTENT_TYPE, "application/json")
        .header("set-cookie", "a=b")
        .header("audit-id", "1")
        .body(full(text.to_string()))
        .unwrap()
}

/// Returns the bytes of the upgraded connection, and `bye` at its end.
fn upgrade(mut request: Request<Incoming>) -> Response<Body> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let Some(protocol) = request.headers().get(UPGRADE).cloned() else {
        return Response::builder()
            .status(400)
            .body(full("upgrade needed"))
            .unwrap();
    };
    if request.uri().query() == Some("refuse") {
        return Response::builder()
            .status(403)
            .body(full("{\"kind\":\"Status\"}"))
            .unwrap();
    }
    let upgraded = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let mut stream = TokioIo::new(upgraded.await.unwrap());
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = stream.read(&mut buffer).await {
            stream.write_all(&buffer[..count]).await.unwrap();
        }
        let _ = stream.write_all(b"bye").await;
        let _ = stream.shutdown().await;
    });
    Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header("connection", "Upgrade")
        .header(UPGRADE, protocol)
        .header("sec-websocket-protocol", "v5.channel.k8s.io")
        .body(full(Bytes::new()))
        .unwrap()
}

/// The agent: forwards to the API server over a connection of its own for each request.
async fn forward(
    server: Arc<ApiServer>,
    mut request: Request<tunnel::Body>,
) -> Result<Response<Body>, BoxError> {
    let stream = TcpStream::connect(server.address).await?;
    if request
        .headers()
        .contains_key(tunnel::upgrade::UPGRADE_HEADER)
    {
        return Ok(tunnel::upgrade::serve(request, stream).await?);
    }
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    *request.uri_mut() = Uri::from(request.uri().path_and_query().unwrap().clone());
    *request.version_mut() = Version::HTTP_11;
    request.headers_mut().insert("host", "kubernetes".parse()?);
    let response = sender.send_request(request).await?;
    Ok(response.map(|body| body.map_err(Into::into).boxed_unsync()))
}

struct Trust(Arc<ClientConfig>);

impl tunnel::Credentials for Trust {
    fn tls(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.0)
    }
}

/// A real tunnel over TLS on this machine, whose agent forwards to the server.
pub(crate) async fn tunnel_to(
    server: &Arc<ApiServer>,
    settings: AcceptorSettings,
    stop: &CancellationToken,
) -> Session {
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(certified.cert.der().clone()).unwrap();
    let trust = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let key = PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key)
        .unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let url = format!("wss://localhost:{}", listener.local_addr().unwrap().port());
    let accepting = tokio::spawn(accept(
        listener,
        TlsAcceptor::from(Arc::new(config)),
        settings,
    ));
    let server = Arc::clone(server);
    let service = tower::service_fn(move |request| forward(Arc::clone(&server), request));
    tokio::spawn(tunnel::run(
        tunnel::Settings::new(url, CLUSTER),
        Arc::new(Trust(Arc::new(trust))),
        service,
        watch::Sender::new(tunnel::Status::Connecting),
        stop.clone(),
    ));
    accepting.await.unwrap()
}

async fn accept(listener: TcpListener, tls: TlsAcceptor, settings: AcceptorSettings) -> Session {
    let (sender, mut sessions) = tokio::sync::mpsc::unbounded_channel();
    let acceptor = Acceptor::new(settings);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(stream) = tls.accept(stream).await else {
                continue;
            };
            let (acceptor, sender) = (acceptor.clone(), sender.clone());
            let service = service_fn(move |mut request: Request<Incoming>| {
                let (response, accepting) = acceptor.accept(CLUSTER, &mut request).unwrap();
                let sender = sender.clone();
                tokio::spawn(async move {
                    if let Ok(Accepted::New(session)) = accepting.await {
                        let _ = sender.send(session);
                    }
                });
                let response = response.map(|body| body.map_err(|never| match never {}));
                async { Ok::<_, BoxError>(response) }
            });
            let builder = hyper::server::conn::http1::Builder::new();
            let connection = builder.serve_connection(TokioIo::new(stream), service);
            tokio::spawn(connection.with_upgrades());
        }
    });
    sessions.recv().await.unwrap()
}

/// A body whose parts the test sends.
pub(crate) fn streamed() -> (tunnel::BodySender, Body) {
    let (sender, body) = tunnel::body(1);
    (sender, body.boxed_unsync())
}
