//! Both ends of a tunnel as programs, for the bench: a hub that forwards TCP connections through its agent, and agents.
//!
//! ```text
//! carry hub FOLDER ADDRESS FORWARD       accepts agents, and forwards connections to FORWARD through the last one
//! carry agent FOLDER URL TO [COUNT]      COUNT agents in one process, which connect streams to TO
//! ```
//!
//! The folder has `ca.crt`, and `hub` and `agent` with `.crt` and `.key`. Each program ends with its standard input. A hub
//! answers each line with a number of agents with the seconds from its start to the connection of each of them, when they are
//! all connected.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program: stdout carries results, stderr carries diagnostics"
)]

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http::header::{HeaderValue, UPGRADE};
use http::{Request, Response};
use http_body_util::BodyExt as _;
use http_body_util::combinators::BoxBody;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tunnel::upgrade::{self, Outcome};
use tunnel::{
    Accepted, Acceptor, AcceptorSettings, Body, Credentials, Session, Settings, Status,
    VERSION_HEADER, accept_tls, body,
};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(link::worker_threads())
        .enable_all()
        .build()?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    runtime.block_on(async {
        match *arguments {
            ["hub", folder, address, forward] => hub(folder, address, forward).await,
            ["agent", folder, url, to] => agents(folder, url, to, 1).await,
            ["agent", folder, url, to, count] => agents(folder, url, to, count.parse()?).await,
            _ => Err("the arguments are `hub` or `agent` and what belongs to them".into()),
        }
    })
}

/// The sessions of the hub: how long after its start each began, and the last one.
#[derive(Default)]
struct Sessions {
    seconds: Vec<f64>,
    all: Vec<Session>,
}

async fn hub(folder: &str, address: &str, forward: &str) -> Result<()> {
    let tls = TlsAcceptor::from(Arc::new(hub_tls(folder)?));
    let acceptor = Acceptor::new(AcceptorSettings::default());
    let sessions = Arc::new(watch::Sender::new(Sessions::default()));
    let agents = TcpListener::bind(address).await?;
    let start = Instant::now();
    let accepting = Arc::clone(&sessions);
    tokio::spawn(async move {
        while let Ok((tcp, _)) = agents.accept().await {
            let (tls, acceptor) = (tls.clone(), acceptor.clone());
            let sessions = Arc::clone(&accepting);
            tokio::spawn(async move {
                tcp.set_nodelay(true)?;
                let stream = accept_tls(&tls, tcp).await?;
                let service = service_fn(move |request| {
                    let response = connect(&acceptor, &sessions, start, request);
                    async move { Ok::<_, Infallible>(response) }
                });
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                connection.with_upgrades().await?;
                Result::Ok(())
            });
        }
    });
    let clients = TcpListener::bind(forward).await?;
    let current = Arc::clone(&sessions);
    tokio::spawn(async move {
        while let Ok((client, _)) = clients.accept().await {
            let session = current.borrow().all.last().cloned();
            if let Some(session) = session {
                tokio::spawn(forward_client(session, client));
            }
        }
    });
    println!("ready");
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let count: usize = line.trim().parse()?;
        let mut sessions = sessions.subscribe();
        let connected = sessions.wait_for(|sessions| sessions.all.len() >= count);
        let seconds = connected.await?.seconds.clone();
        println!("{}", serde_json::json!({ "done": { "seconds": seconds } }));
    }
    Ok(())
}

fn connect(
    acceptor: &Acceptor,
    sessions: &Arc<watch::Sender<Sessions>>,
    start: Instant,
    mut request: Request<Incoming>,
) -> Response<BoxBody<Bytes, Infallible>> {
    let claimed = request.headers().get(tunnel::CLUSTER_HEADER).cloned();
    let peer = claimed.as_ref().and_then(|name| name.to_str().ok());
    match acceptor.accept(peer.unwrap_or_default(), &mut request) {
        Ok((response, accepting)) => {
            let sessions = Arc::clone(sessions);
            tokio::spawn(async move {
                if let Ok(Accepted::New(session)) = accepting.await {
                    sessions.send_modify(|sessions| {
                        sessions.seconds.push(start.elapsed().as_secs_f64());
                        sessions.all.retain(Session::is_connected);
                        sessions.all.push(session);
                    });
                }
            });
            response.map(BoxBody::new)
        }
        Err(refused) => refused.response().map(BoxBody::new),
    }
}

async fn forward_client(session: Session, client: TcpStream) -> Result<()> {
    client.set_nodelay(true)?;
    let request = Request::get("/").header(UPGRADE, "tcp").body(())?;
    if let Outcome::Upgraded(upgraded) = session.upgrade(request).await? {
        upgrade::copy(client, upgraded.reader, upgraded.writer).await?;
    }
    Ok(())
}

async fn agents(folder: &str, url: &str, to: &str, count: usize) -> Result<()> {
    let credentials: Arc<dyn Credentials> = Arc::new(Fixed(Arc::new(agent_tls(folder)?)));
    let mut statuses = Vec::new();
    for number in 0..count {
        let (sender, status) = watch::channel(Status::Connecting);
        let settings = Settings::new(url, format!("cluster-{number}"));
        tokio::spawn(tunnel::run(
            settings,
            Arc::clone(&credentials),
            Connect(to.into()),
            sender,
            CancellationToken::new(),
        ));
        statuses.push(status);
    }
    for status in &mut statuses {
        let is_connected = |status: &Status| matches!(status, Status::Connected { .. });
        drop(status.wait_for(is_connected).await?);
    }
    println!("ready");
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while lines.next_line().await?.is_some() {}
    Ok(())
}

/// Connects each stream to one address.
#[derive(Clone)]
struct Connect(Arc<str>);

impl tower_service::Service<Request<Body>> for Connect {
    type Response = Response<tunnel::BoxBody>;
    type Error = tunnel::BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let to = Arc::clone(&self.0);
        Box::pin(async move {
            let upstream = TcpStream::connect(&*to).await?;
            upstream.set_nodelay(true)?;
            let (writer, response) = body(1);
            tokio::spawn(upgrade::copy(upstream, request.into_body(), writer));
            let mut response = Response::new(response.boxed_unsync());
            let protocol = HeaderValue::from_static("tcp");
            let headers = response.headers_mut();
            headers.insert(upgrade::UPGRADED_HEADER, protocol);
            headers.remove(VERSION_HEADER);
            Ok(response)
        })
    }
}

struct Fixed(Arc<ClientConfig>);

impl Credentials for Fixed {
    fn tls(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.0)
    }
}

fn hub_tls(folder: &str) -> Result<ServerConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let roots = Arc::new(roots(folder)?);
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider));
    let (certificates, key) = identity(folder, "hub")?;
    Ok(ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier.build()?)
        .with_single_cert(certificates, key)?)
}

fn agent_tls(folder: &str) -> Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let (certificates, key) = identity(folder, "agent")?;
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots(folder)?)
        .with_client_auth_cert(certificates, key)?)
}

fn roots(folder: &str) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let file = Path::new(folder).join("ca.crt");
    for certificate in CertificateDer::pem_file_iter(file)? {
        roots.add(certificate?)?;
    }
    Ok(roots)
}

fn identity(
    folder: &str,
    name: &str,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
    let path = |suffix: &str| Path::new(folder).join(format!("{name}.{suffix}"));
    let certificates = CertificateDer::pem_file_iter(path("crt"))?;
    let certificates = certificates.collect::<std::result::Result<Vec<_>, _>>()?;
    Ok((certificates, PrivateKeyDer::from_pem_file(path("key"))?))
}
