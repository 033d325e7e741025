//! The listener for tunnel agents: registration, and the beginning of a tunnel. It serves nothing else.
//!
//! A connection is unauthenticated until its client certificate is verified, and gets one response.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use admission::{Admission, Limits, Permit, accept};
use api::hub::path;
use error_chain::error_chain;
use http::header::UPGRADE;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use jiff::Timestamp;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tunnel::{Accepted, Refused};

use crate::Hub;
use crate::identity::{self, AgentIdentity, Refusal};
use crate::responses::{ApiResponse, Failure};
use crate::{registration, tunnels};

/// The permits of connections whose agents are not authenticated. All agents of a hub that restarts may connect at the same
/// moment and through one address.
pub(crate) const LIMITS: Limits = Limits {
    total: 4096,
    per_source: 2048,
};
/// Handshakes at the same time. The others wait, so that each of them is fast.
pub(crate) const MAX_HANDSHAKES: usize = 64;
const TLS_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(10);
/// The request, its body and its response.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// The limit of a request's head.
const MAX_HEAD: usize = 16 * 1024;

/// The headers that only a proxy for HTTP adds.
const PROXY_HEADERS: [&str; 4] = ["x-forwarded-for", "x-forwarded-proto", "forwarded", "via"];

/// The response to a request for a tunnel that is no upgrade, as a browser or a proxy for HTTP sends it.
const NO_UPGRADE: &str = "this address is for tunnel agents, which open a WebSocket here; if an agent gets this, something \
    between it and the hub terminates HTTP: this port needs a load balancer for TCP, or TLS passthrough";

/// Accepts connections until `stop`.
pub(crate) async fn serve(
    hub: Arc<Hub>,
    listener: TcpListener,
    admission: Admission,
    tls: TlsAcceptor,
    stop: CancellationToken,
) {
    loop {
        let (connection, peer) = tokio::select! {
            accepted = accept(&listener) => accepted,
            () = stop.cancelled() => return,
        };
        let permit = admission.admit(peer);
        let (hub, tls) = (Arc::clone(&hub), tls.clone());
        tokio::spawn(async move {
            if let Err(error) = serve_connection(hub, connection, peer, permit, tls).await {
                tracing::debug!(error = error_chain(error.as_ref()), %peer, "connection failed");
            }
        });
    }
}

async fn serve_connection(
    hub: Arc<Hub>,
    connection: TcpStream,
    peer: SocketAddr,
    mut permit: Permit,
    tls: TlsAcceptor,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    connection.set_nodelay(true)?;
    let handshake = async {
        let _turn = hub.handshakes.acquire().await;
        tls.accept(connection).await
    };
    let stream = match permit.run(TLS_HANDSHAKE_TIMEOUT, handshake).await? {
        Ok(stream) => stream,
        Err(error) => {
            report_failed_handshake(&hub, peer, &error);
            return Err(error.into());
        }
    };
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let verifier = hub.certificates.borrow().verifier.clone();
    let identity = identity::verify(certificates, verifier.as_ref(), Timestamp::now());
    let is_authenticated = identity.is_ok();
    let serving = serve_request(hub, stream, peer, identity);
    if is_authenticated {
        drop(permit);
        timeout(CONNECTION_TIMEOUT, serving).await??;
    } else {
        permit.run(CONNECTION_TIMEOUT, serving).await??;
    }
    Ok(())
}

/// A connection that ends without a word, as those of health checks, is not worth an event.
fn report_failed_handshake(hub: &Hub, peer: SocketAddr, error: &std::io::Error) {
    let error = error
        .get_ref()
        .and_then(|error| error.downcast_ref::<rustls::Error>());
    let Some(error) = error else { return };
    hub.metrics.handshake_refused("tls");
    if let rustls::Error::AlertReceived(alert) = error {
        let alert = format!("{alert:?}");
        tracing::warn!(%peer, alert, "agent does not accept the hub's certificate");
    }
}

/// Serves the one request of a connection.
async fn serve_request(
    hub: Arc<Hub>,
    stream: TlsStream<TcpStream>,
    peer: SocketAddr,
    identity: Result<AgentIdentity, Refusal>,
) -> hyper::Result<()> {
    let service = service_fn(move |request| {
        let (hub, identity) = (Arc::clone(&hub), identity.clone());
        async move { Ok::<_, Infallible>(respond(&hub, peer, identity, request).await) }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_READ_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await
}

async fn respond(
    hub: &Arc<Hub>,
    peer: SocketAddr,
    identity: Result<AgentIdentity, Refusal>,
    request: Request<Incoming>,
) -> ApiResponse {
    match (request.uri().path(), request.method()) {
        (path::REGISTER, &Method::POST) => registration::register(hub, peer.ip(), request).await,
        (path::CONNECT, &Method::GET) => connect(hub, peer, identity, request),
        (path::REGISTER | path::CONNECT, _) => Failure::method_not_allowed().response(),
        _ => {
            let hint = "the API is on the hub's other ports";
            Failure::not_found("this port is for tunnel agents")
                .hint(hint)
                .response()
        }
    }
}

/// Opens a tunnel.
fn connect(
    hub: &Arc<Hub>,
    peer: SocketAddr,
    identity: Result<AgentIdentity, Refusal>,
    mut request: Request<Incoming>,
) -> ApiResponse {
    if !request.headers().contains_key(UPGRADE) {
        tracing::debug!(%peer, "no upgrade to a tunnel");
        return refused(&Refused::new(StatusCode::UPGRADE_REQUIRED, NO_UPGRADE));
    }
    let identity = match identity {
        Ok(identity) => identity,
        Err(refusal) => return refuse(hub, peer, &through_proxy(refusal, &request)),
    };
    if hub.ending.is_cancelled() {
        let text = "this replica of the hub shuts down; connect again";
        return refused(&Refused::new(StatusCode::SERVICE_UNAVAILABLE, text));
    }
    let claimed = request.headers().get(tunnel::CLUSTER_HEADER);
    let claimed = claimed.map(|name| String::from_utf8_lossy(name.as_bytes()).into_owned());
    if let Err(refusal) = identity.admit(claimed.as_deref(), &hub.registry.clusters()) {
        return refuse(hub, peer, &refusal);
    }
    match hub.acceptor.accept(&identity.cluster, &mut request) {
        Ok((response, accepting)) => {
            let hub = Arc::clone(hub);
            let tunnels = hub.tunnels.clone();
            tunnels.spawn(async move {
                match accepting.await {
                    Ok(Accepted::New(session)) => tunnels::run(hub, identity, session, peer).await,
                    Ok(Accepted::Resumed) => {
                        let cluster = identity.cluster;
                        tracing::debug!(cluster, %peer, "tunnel resumed");
                    }
                    Err(error) => {
                        let (cluster, error) = (identity.cluster, error_chain(&error));
                        tracing::warn!(cluster, %peer, error, "tunnel not established");
                    }
                }
            });
            response.map(|body| body.map_err(|never| match never {}).boxed_unsync())
        }
        Err(refusal) => {
            hub.metrics.handshake_refused("no_tunnel");
            let (cluster, reason) = (&identity.cluster, refusal.to_string());
            tracing::warn!(cluster, %peer, reason, "agent refused");
            refused(&refusal)
        }
    }
}

fn refuse(hub: &Hub, peer: SocketAddr, refusal: &Refusal) -> ApiResponse {
    hub.metrics.handshake_refused(refusal.reason());
    let (cluster, reason) = (refusal.cluster().unwrap_or_default(), refusal.to_string());
    tracing::warn!(cluster, %peer, reason, "agent refused");
    let failure = refusal.failure();
    let hint = failure.hint.unwrap_or_default();
    refused(&Refused::new(
        failure.code,
        format!("{}: {hint}", failure.error),
    ))
}

fn refused(refused: &Refused) -> ApiResponse {
    let response = refused.response();
    response.map(|body| body.map_err(|never| match never {}).boxed_unsync())
}

/// Says in a refusal that a proxy for HTTP is in between, if it is known.
fn through_proxy<B>(refusal: Refusal, request: &Request<B>) -> Refusal {
    match refusal {
        Refusal::NoCertificate { .. } => Refusal::NoCertificate {
            through_proxy: PROXY_HEADERS
                .iter()
                .any(|name| request.headers().contains_key(*name)),
        },
        refusal => refusal,
    }
}
