//! The connection to one peer.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use backoff::Backoff;
use bytes::Bytes;
use error_chain::error_chain;
use http::header::HeaderName;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::BodyExt as _;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tunnel::lines::{LineError, LineReceiver};

use super::message::{PeerMessage, VERSION};
use super::{Peers, trust};
use crate::body::{Body, full};
use crate::proxy::{SendError, Sending, Upstream};

/// The reports of a replica.
pub(super) const REPORTS_PATH: &str = "/.standin/peer/reports";
/// Below it, a request for a cluster: its name, and then the path for its API server.
pub(super) const FORWARD_PATH: &str = "/.standin/peer/clusters/";
/// Names the replica that has forwarded the request.
pub(super) const FORWARDED: HeaderName = HeaderName::from_static("standin-hub-forwarded-by");
/// The response is not one of the agent: nothing was sent to it, and another replica may have a tunnel.
pub(super) const UNSENT: HeaderName = HeaderName::from_static("standin-hub-unsent");

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const MIN_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(5);
/// A peer that is silent for so long is lost. It reports every few seconds.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(12);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(3);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// How far a sender may be ahead of the reader of one stream.
pub(super) const STREAM_WINDOW: u32 = 512 * 1024;
/// The window of the connection is never the limit: a stalled reader must not stop other streams.
pub(super) const CONNECTION_WINDOW: u32 = i32::MAX as u32;

/// A connection to a peer. Clones share it.
#[derive(Clone)]
pub(super) struct PeerConnection {
    replica: Arc<str>,
    /// The name of this replica.
    own: HeaderValue,
    sender: SendRequest<Body>,
}

#[derive(Debug, Error)]
enum ConnectError {
    #[error("the replica does not respond")]
    TimedOut,
    #[error("the replica cannot be reached")]
    Io(#[from] io::Error),
    #[error("the connection to the replica failed")]
    Http(#[from] hyper::Error),
    #[error("the TLS configuration cannot be used")]
    Tls(#[source] Box<crate::error::Error>),
    #[error("the peer at this address is not a replica of the hub")]
    NotReplica,
    #[error("the reports of the replica failed")]
    Reports(#[from] LineError),
    #[error("the replica was silent for too long")]
    Silent,
    #[error("the replica has ended its reports")]
    Ended,
}

/// Why there is no connection to an address, and never will be.
enum NotPeer {
    /// This replica itself, or one that has another address too.
    Known,
}

/// Stays connected to the replica at an address.
pub(super) async fn run(peers: Peers, address: SocketAddr) {
    let mut backoff = Backoff::new(MIN_BACKOFF, MAX_BACKOFF);
    loop {
        let error = match connect(&peers, address).await {
            Ok(Ok((connection, reports))) => {
                backoff.reset();
                let replica = connection.replica().to_owned();
                tracing::info!(replica, %address, "connected to another replica");
                let ended = follow(&peers, connection, reports).await;
                let error = error_chain(&ended);
                tracing::info!(replica, %address, error, "connection to another replica ended");
                ended
            }
            Ok(Err(NotPeer::Known)) => {
                // Its process may end, and another replica get the address.
                sleep(MAX_BACKOFF).await;
                continue;
            }
            Err(error) => error,
        };
        let error = error_chain(&error);
        tracing::debug!(%address, error, "no connection to another replica");
        sleep(backoff.next_delay()).await;
    }
}

type Reports = LineReceiver<hyper::body::Incoming, PeerMessage>;

async fn connect(
    peers: &Peers,
    address: SocketAddr,
) -> Result<Result<(PeerConnection, Reports), NotPeer>, ConnectError> {
    timeout(CONNECT_TIMEOUT, connect_now(peers, address))
        .await
        .map_err(|_| ConnectError::TimedOut)?
}

async fn connect_now(
    peers: &Peers,
    address: SocketAddr,
) -> Result<Result<(PeerConnection, Reports), NotPeer>, ConnectError> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let connector = TlsConnector::from(Arc::clone(&peers.0.tls.borrow().client));
    let name = trust::server_name().map_err(|error| ConnectError::Tls(Box::new(error)))?;
    let stream = connector.connect(name, stream).await?;
    if !trust::is_replica(stream.get_ref().1.peer_certificates()) {
        return Err(ConnectError::NotReplica);
    }
    let handshake = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.await?;
    // It ends with the last sender.
    tokio::spawn(connection);
    let mut request = Request::new(full(Bytes::new()));
    *request.uri_mut() = uri(PathAndQuery::from_static(REPORTS_PATH));
    let response = sender.send_request(request).await?;
    let mut reports = LineReceiver::new(response.into_body());
    let Some(PeerMessage::Hello { replica, version }) = reports.next().await? else {
        return Err(ConnectError::NotReplica);
    };
    if version != VERSION {
        tracing::debug!(replica, version, "another replica has another version");
    }
    let own = &peers.0.replica;
    let connection = PeerConnection {
        replica: replica.into(),
        own: HeaderValue::from_str(own).unwrap_or(HeaderValue::from_static("")),
        sender,
    };
    if *connection.replica == **own || !peers.insert(&connection) {
        return Ok(Err(NotPeer::Known));
    }
    Ok(Ok((connection, reports)))
}

/// Removes the peer at the end, also if the task is stopped.
struct Connected<'a> {
    peers: &'a Peers,
    replica: &'a str,
}

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        self.peers.remove(self.replica);
    }
}

/// Applies the reports of a peer until they end.
async fn follow(peers: &Peers, connection: PeerConnection, mut reports: Reports) -> ConnectError {
    let replica = connection.replica();
    let _connected = Connected { peers, replica };
    loop {
        match timeout(SILENCE_TIMEOUT, reports.next()).await {
            Ok(Ok(Some(message))) => peers.apply(replica, message),
            Ok(Ok(None)) => return ConnectError::Ended,
            Ok(Err(error)) => return error.into(),
            Err(_) => return ConnectError::Silent,
        }
    }
}

impl PeerConnection {
    pub(super) fn replica(&self) -> &str {
        &self.replica
    }

    pub(super) fn to_cluster(&self, cluster: &str) -> PeerUpstream {
        PeerUpstream {
            connection: self.clone(),
            cluster: cluster.to_owned(),
        }
    }
}

/// A cluster with a tunnel to a peer.
pub(super) struct PeerUpstream {
    connection: PeerConnection,
    cluster: String,
}

impl Upstream for PeerUpstream {
    fn send(&self, mut request: Request<Body>) -> Sending {
        let (mut sender, own) = (self.connection.sender.clone(), self.connection.own.clone());
        let target = request
            .uri()
            .path_and_query()
            .map_or("/", PathAndQuery::as_str);
        let target = PathAndQuery::try_from(format!("{FORWARD_PATH}{}{target}", self.cluster));
        Box::pin(async move {
            let failed = |source: Box<dyn std::error::Error + Send + Sync>, is_sent| {
                SendError::Peer { source, is_sent }
            };
            *request.uri_mut() = uri(target.map_err(|error| failed(Box::new(error), false))?);
            request.headers_mut().insert(FORWARDED, own);
            let ready = sender.ready().await;
            ready.map_err(|error| failed(Box::new(error), false))?;
            let sent = sender.try_send_request(request).await;
            let response = sent.map_err(|mut error| {
                let is_sent = error.take_message().is_none();
                failed(Box::new(error.into_error()), is_sent)
            })?;
            check(response)
        })
    }
}

/// The response of the agent, or why the peer has not sent the request to it.
fn check(response: Response<hyper::body::Incoming>) -> Result<Response<Body>, SendError> {
    if response.headers().contains_key(UNSENT) {
        return Err(SendError::Peer {
            source: "the replica has no tunnel to the cluster any more".into(),
            is_sent: false,
        });
    }
    Ok(response.map(|body| body.map_err(Into::into).boxed_unsync()))
}

fn uri(target: PathAndQuery) -> Uri {
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(Scheme::HTTPS);
    parts.authority = Some(Authority::from_static(trust::NAME));
    parts.path_and_query = Some(target);
    Uri::from_parts(parts).unwrap_or_default()
}
