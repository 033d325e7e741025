//! The listeners for administrators (plain HTTP, behind an ingress) and for Kubernetes clients (TLS). Both serve the API and
//! the clusters' API servers.
//!
//! A connection needs a permit until one of its requests is authenticated. Without one, it ends after a while.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use admission::{Admission, Limits, Permit, accept};
use error_chain::error_chain;
use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::Hub;
use crate::http_api::{self, Client};

/// The permits of connections without an authenticated request. All connections of an ingress are from few addresses.
pub(crate) const LIMITS: Limits = Limits {
    total: 1024,
    per_source: 768,
};
const TLS_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a connection lasts without an authenticated request.
const UNAUTHENTICATED_TIMEOUT: Duration = Duration::from_secs(60);
/// The limit of a request's head. Users may be in many groups, and their tokens long.
const MAX_HEAD: usize = 64 * 1024;
/// The limit of concurrent requests over one connection.
const MAX_CONCURRENT_STREAMS: u32 = 250;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A listener, and what to do with its connections.
pub(crate) struct ClientListener {
    pub(crate) listener: TcpListener,
    pub(crate) admission: Admission,
    /// `None` for plain HTTP.
    pub(crate) tls: Option<TlsAcceptor>,
}

/// Accepts connections until `stop`, and then closes those that are idle and waits for the others.
pub(crate) async fn serve(hub: Arc<Hub>, listener: ClientListener, stop: CancellationToken) {
    let ClientListener {
        listener,
        admission,
        tls,
    } = listener;
    let graceful = GracefulShutdown::new();
    loop {
        let (connection, peer) = tokio::select! {
            accepted = accept(&listener) => accepted,
            () = stop.cancelled() => break,
        };
        let (permit, watcher) = (admission.admit(peer), graceful.watcher());
        let (hub, tls) = (Arc::clone(&hub), tls.clone());
        tokio::spawn(async move {
            let serving = serve_connection(hub, connection, peer, permit, tls, watcher);
            if let Err(error) = serving.await {
                tracing::debug!(error = error_chain(error.as_ref()), %peer, "connection failed");
            }
        });
    }
    drop(listener);
    graceful.shutdown().await;
}

async fn serve_connection(
    hub: Arc<Hub>,
    connection: TcpStream,
    peer: SocketAddr,
    mut permit: Permit,
    tls: Option<TlsAcceptor>,
    watcher: Watcher,
) -> Result<(), BoxError> {
    connection.set_nodelay(true)?;
    let mut client = Client {
        source: peer.ip(),
        certificates: [].into(),
        authenticated: Arc::new(Notify::new()),
    };
    let Some(tls) = tls else {
        return serve_stream(hub, connection, client, permit, watcher).await;
    };
    let handshake = tls.accept(connection);
    let stream = permit.run(TLS_HANDSHAKE_TIMEOUT, handshake).await??;
    client.certificates = stream
        .get_ref()
        .1
        .peer_certificates()
        .unwrap_or_default()
        .into();
    serve_stream(hub, stream, client, permit, watcher).await
}

async fn serve_stream(
    hub: Arc<Hub>,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    client: Client,
    mut permit: Permit,
    watcher: Watcher,
) -> Result<(), BoxError> {
    let authenticated = Arc::clone(&client.authenticated);
    let service = service_fn(move |request: Request<Incoming>| {
        let (hub, client) = (Arc::clone(&hub), client.clone());
        async move { Ok::<_, Infallible>(http_api::respond(&hub, &client, request).await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_READ_TIMEOUT)
        .max_buf_size(MAX_HEAD);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_CONCURRENT_STREAMS)
        .max_header_list_size(u32::try_from(MAX_HEAD).unwrap_or(u32::MAX))
        .keep_alive_interval(HEADER_READ_TIMEOUT)
        .keep_alive_timeout(HEADER_READ_TIMEOUT);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    let mut connection = pin!(watcher.watch(connection.into_owned()));
    let until_authenticated = async {
        tokio::select! {
            ended = connection.as_mut() => Some(ended),
            () = authenticated.notified() => None,
        }
    };
    match permit
        .run(UNAUTHENTICATED_TIMEOUT, until_authenticated)
        .await
    {
        Ok(Some(ended)) => return ended,
        Ok(None) => {}
        Err(rejection) => return Err(rejection.into()),
    }
    drop(permit);
    connection.await
}
