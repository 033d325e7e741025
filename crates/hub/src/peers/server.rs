//! The listener for peers.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use admission::{Admission, Limits, Permit, accept};
use error_chain::error_chain;
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, interval_at};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tunnel::lines::{LineError, LineSender};

use super::connection::{CONNECTION_WINDOW, FORWARD_PATH, REPORTS_PATH, STREAM_WINDOW, UNSENT};
use super::message::{PeerMessage, VERSION, change};
use super::{Peers, trust};
use crate::body::{Body, BoxError};
use crate::kubernetes_request::{KubernetesRequest, checked, is_cluster_name};
use crate::proxy::{SendError, UpstreamSource, WatchBody, error_status};
use crate::sessions::Connected;
use crate::status::Status;

/// The permits of connections that are not authenticated.
const LIMITS: Limits = Limits {
    total: 64,
    per_source: 16,
};
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const PING_INTERVAL: Duration = Duration::from_secs(4);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// The limit of concurrent requests that one peer forwards.
const MAX_STREAMS: u32 = 65_536;
const MAX_HEAD: u32 = 128 * 1024;

/// Serves until `stop`, and then until forwarded requests have ended.
pub(super) async fn serve(
    peers: Peers,
    listener: TcpListener,
    local: Arc<dyn UpstreamSource>,
    stop: CancellationToken,
) {
    let (admission, connections) = (Admission::new(LIMITS), TaskTracker::new());
    loop {
        let (stream, address) = tokio::select! {
            accepted = accept(&listener) => accepted,
            () = stop.cancelled() => break,
        };
        let permit = admission.admit(address);
        let (peers, local, stop) = (peers.clone(), Arc::clone(&local), stop.clone());
        connections.spawn(async move {
            if let Err(error) = serve_connection(peers, local, stream, permit, stop).await {
                let error = error_chain(error.as_ref());
                tracing::debug!(error, %address, "connection failed");
            }
        });
    }
    connections.close();
    connections.wait().await;
}

async fn serve_connection(
    peers: Peers,
    local: Arc<dyn UpstreamSource>,
    stream: TcpStream,
    mut permit: Permit,
    stop: CancellationToken,
) -> Result<(), BoxError> {
    stream.set_nodelay(true)?;
    let acceptor = TlsAcceptor::from(Arc::clone(&peers.0.tls.borrow().server));
    let stream = permit
        .run(HANDSHAKE_TIMEOUT, acceptor.accept(stream))
        .await??;
    // The authority has signed the certificates of agents, too.
    if !trust::is_replica(stream.get_ref().1.peer_certificates()) {
        return Err("the client is not a replica".into());
    }
    drop(permit);
    // Reports end at a shutdown, so that the connection can end.
    let stopping = stop.clone();
    let service = service_fn(move |request| {
        let (peers, local, stop) = (peers.clone(), Arc::clone(&local), stopping.clone());
        async move { Ok::<_, Infallible>(respond(peers, local.as_ref(), request, stop).await) }
    });
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEAD)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        ended = connection.as_mut() => return Ok(ended?),
        () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    Ok(connection.await?)
}

async fn respond(
    peers: Peers,
    local: &dyn UpstreamSource,
    request: Request<Incoming>,
    stop: CancellationToken,
) -> Response<Body> {
    let path = request.uri().path();
    if path == REPORTS_PATH {
        let (sender, body) = tunnel::lines::channel();
        tokio::spawn(stop.run_until_cancelled_owned(async move {
            if let Err(error) = report(peers, sender).await {
                let error = error_chain(&error);
                tracing::debug!(error, "reports to another replica ended");
            }
        }));
        return Response::new(body.boxed_unsync());
    }
    let forwarded = path
        .strip_prefix(FORWARD_PATH)
        .and_then(|below| below.split_once('/'));
    match forwarded {
        Some((cluster, rest)) if is_cluster_name(cluster) => {
            let (cluster, rest) = (cluster.to_owned(), rest.to_owned());
            forward(local, request, &cluster, &rest, stop).await
        }
        _ => Status::not_found("there is no such path for replicas of the hub").response(),
    }
}

/// Sends a request of a peer over a tunnel of this replica. The peer has authorized it.
async fn forward(
    local: &dyn UpstreamSource,
    request: Request<Incoming>,
    cluster: &str,
    rest: &str,
    stop: CancellationToken,
) -> Response<Body> {
    let query = request.uri().query();
    let path = match checked(rest) {
        Ok(path) => path,
        Err(error) => return Status::bad_request(error.to_string()).response(),
    };
    let is_watch = KubernetesRequest::parse(request.method(), &path, query).verb == "watch";
    let target = match query {
        Some(query) => format!("{path}?{query}"),
        None => path,
    };
    let (mut head, body) = request.into_parts();
    head.uri = Uri::try_from(target).unwrap_or_default();
    head.headers.remove(super::connection::FORWARDED);
    let request = Request::from_parts(head, body.map_err(Into::into).boxed_unsync());
    let sent = match local.upstream(cluster) {
        Ok(upstream) => upstream.send(request).await,
        Err(error) => Err(error),
    };
    let sent = sent.map(|mut response| {
        // Only this replica says that.
        response.headers_mut().remove(UNSENT);
        match is_watch {
            true => response.map(|body| WatchBody::boxed(body, stop)),
            false => response,
        }
    });
    sent.unwrap_or_else(|error| {
        let mut response = error_status(cluster, &error).response();
        let is_elsewhere = match &error {
            SendError::Unavailable(_) => true,
            error => error.is_lost() && error.is_unsent(),
        };
        if is_elsewhere {
            let headers = response.headers_mut();
            headers.insert(UNSENT, HeaderValue::from_static("true"));
        }
        response
    })
}

/// Reports the clusters of this replica until the peer has left.
async fn report(peers: Peers, mut sender: LineSender<PeerMessage>) -> Result<(), LineError> {
    let shared = &peers.0;
    let mut revocations = shared.revocations.subscribe();
    let mut clusters = shared.connected.clone();
    let replica = shared.replica.clone();
    let hello = PeerMessage::Hello {
        replica,
        version: VERSION,
    };
    sender.send(&hello).await?;
    clusters.mark_changed();
    let mut sent = Arc::new(Connected::new());
    let mut pings = interval_at(Instant::now() + PING_INTERVAL, PING_INTERVAL);
    let mut draining = std::pin::pin!(shared.draining.cancelled());
    let mut is_draining = false;
    loop {
        let message = tokio::select! {
            changed = clusters.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
                let now = Arc::clone(&clusters.borrow_and_update());
                let message = change(&sent, &now);
                sent = now;
                message
            }
            revoked = revocations.recv() => match revoked {
                Ok(cluster) => Some(PeerMessage::Revoked { cluster }),
                // The peer sees them in the objects.
                Err(RecvError::Lagged(_)) => None,
                Err(RecvError::Closed) => return Ok(()),
            },
            () = draining.as_mut(), if !is_draining => {
                is_draining = true;
                Some(PeerMessage::Draining)
            }
            _ = pings.tick() => Some(PeerMessage::Ping),
        };
        if let Some(message) = message {
            sender.send(&message).await?;
        }
    }
}
