//! Peer agents: the agents of one network share its ports.
//!
//! Each session on a process or a pod may have its own agent, and only one agent can redirect a port. That agent listens for
//! the others on its [`PeerEndpoint`], a Unix socket whose name and secret the kernel stores with the claim of the port.
//! After both sides have proved that they know the secret, they use the part of the session protocol that is about incoming
//! traffic: subscriptions and `incoming/accept` requests are forwarded unchanged.

use std::io;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net as std_unix;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::TokioIo;
use link::http2::ConnectionPolledLast;
use protocol::control::VERSION;
use protocol::failure::{Failure, Reason};
use protocol::incoming::Accept;
use protocol::rpc::control_client::ControlClient;
use protocol::rpc::incoming_client::IncomingClient;
use protocol::rpc::subscribe_event::Event;
use protocol::rpc::{
    HelloRequest, ReportRequest, SubscribeEvent, SubscribeRequest, Subscribed, UnsubscribeRequest,
};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::{Status, Streaming};

use super::reachability::ReachabilityWatch;
use super::reclaimable::BorrowedBody;
use super::redirect::{Handshake, PROOF_LEN, PeerEndpoint, Role};
use crate::agent::Agent;
use crate::connection::{self, Connection, MAX_FRAME, MAX_RESETS, MAX_STREAMS, SEND_BUFFER};
use crate::{Error, Result};

/// The timeout of the handshake that authenticates a peer.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);
/// The flow-control windows of responses. Peers are on the same machine, where a small window is as fast as a large one, and
/// stalled streams cost less.
const PEER_STREAM_WINDOW: u32 = 256 * 1024;
const PEER_CONNECTION_WINDOW: u32 = 32 * 1024 * 1024;
/// The delay after a failed accept.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_secs(2);
/// The maximum number of concurrent handshakes.
const MAX_UNAUTHENTICATED: usize = 64;

/// Opens the listener for other agents of the target's network.
pub(super) async fn listen(agent: &Agent, endpoint: &PeerEndpoint) -> Result<UnixListener> {
    let name = endpoint.socket_name();
    let make = move || {
        let address = std_unix::SocketAddr::from_abstract_name(name);
        let listener = address.and_then(|address| std_unix::UnixListener::bind_addr(&address));
        let listener = listener.and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        listener.map_err(Error::io("listen for other agents"))
    };
    let listener = agent.sockets().run(make).await?;
    UnixListener::from_std(listener).map_err(Error::io("listen for other agents"))
}

/// Accepts and serves other agents.
pub(super) async fn serve_all(agent: Agent, listener: UnixListener, endpoint: PeerEndpoint) {
    let handshakes = Arc::new(Semaphore::new(MAX_UNAUTHENTICATED));
    while let Ok(permit) = Arc::clone(&handshakes).acquire_owned().await {
        let Ok((mut stream, _)) = listener.accept().await else {
            // The process is out of file descriptors. Sessions continue, and may release some.
            tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            continue;
        };
        let agent = agent.clone();
        tokio::spawn(async move {
            let authenticated =
                timeout(HANDSHAKE_TIMEOUT, authenticate(&mut stream, &endpoint)).await;
            drop(permit);
            if !matches!(authenticated, Ok(Ok(()))) {
                return tracing::warn!(role = "joiner", "unauthenticated peer rejected");
            }
            let connection = Arc::new(Connection::of_peer(agent));
            if let Err(error) = connection::serve(connection, stream).await {
                tracing::debug!(%error, "peer agent disconnected");
            }
        });
    }
}

/// The handshake of the agent that redirects the port. Both sides prove that they know the secret, the listening side first.
async fn authenticate(stream: &mut UnixStream, endpoint: &PeerEndpoint) -> io::Result<()> {
    let mut handshake = Handshake {
        holder_nonce: rand::random(),
        ..Handshake::default()
    };
    stream.read_exact(&mut handshake.joiner_nonce).await?;
    let proof = endpoint.proof(Role::Holder, &handshake);
    let response = [&handshake.holder_nonce[..], &proof].concat();
    stream.write_all(&response).await?;
    let mut proof = [0; PROOF_LEN];
    stream.read_exact(&mut proof).await?;
    if endpoint.verify(Role::Joiner, &handshake, &proof) {
        return Ok(());
    }
    Err(io::ErrorKind::PermissionDenied.into())
}

/// The handshake of the agent that joins. A process that has taken over the socket name of an agent that has ended learns
/// nothing, because it has to prove first that it knows the secret.
async fn join_handshake(stream: &mut UnixStream, endpoint: &PeerEndpoint) -> io::Result<()> {
    let mut handshake = Handshake {
        joiner_nonce: rand::random(),
        ..Handshake::default()
    };
    stream.write_all(&handshake.joiner_nonce).await?;
    stream.read_exact(&mut handshake.holder_nonce).await?;
    let mut proof = [0; PROOF_LEN];
    stream.read_exact(&mut proof).await?;
    if !endpoint.verify(Role::Holder, &handshake, &proof) {
        tracing::warn!(role = "holder", "unauthenticated peer rejected");
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let proof = endpoint.proof(Role::Joiner, &handshake);
    stream.write_all(&proof).await
}

/// A subscription at another agent.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) peer: Peer,
    /// The confirmation of the other agent.
    pub(super) subscribed: Subscribed,
    pub(super) events: Streaming<SubscribeEvent>,
}

/// Another agent, and the ID of a subscription there.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    sender: RequestSender,
    subscription: u64,
}

#[derive(Debug, Clone)]
struct RequestSender(http2::SendRequest<Body>);

/// Subscribes at the agent that listens on the endpoint.
pub(super) async fn join(
    agent: &Agent,
    endpoint: &PeerEndpoint,
    request: SubscribeRequest,
) -> Result<Joined> {
    let mut stream = connect_to(agent, endpoint).await?;
    let authenticated = join_handshake(&mut stream, endpoint).await;
    authenticated.map_err(|_| Error::PeerGone)?;
    let sender = start_http2(stream).await?;
    let hello = HelloRequest {
        version: Some(VERSION),
        client: concat!("standind ", env!("CARGO_PKG_VERSION")).to_owned(),
        ..HelloRequest::default()
    };
    let mut control = ControlClient::with_origin(sender.clone(), origin());
    control
        .hello(hello)
        .await
        .map_err(|status| to_error(&status))?;
    let mut incoming = IncomingClient::with_origin(sender.clone(), origin());
    let events = incoming
        .subscribe(request)
        .await
        .map_err(|status| to_error(&status))?;
    let mut events = events.into_inner();
    let first = events.message().await.map_err(|status| to_error(&status))?;
    let Some(Event::Subscribed(subscribed)) = first.and_then(|first| first.event) else {
        return Err(Error::PeerGone);
    };
    Ok(Joined {
        peer: Peer {
            sender,
            subscription: subscribed.subscription,
        },
        subscribed,
        events,
    })
}

async fn connect_to(agent: &Agent, endpoint: &PeerEndpoint) -> Result<UnixStream> {
    let name = endpoint.socket_name();
    let make = move || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let connected = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).and_then(
            |socket: OwnedFd| {
                let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
                // Connecting a Unix socket never blocks.
                connect(&socket, &address)?;
                Ok(socket)
            },
        );
        connected.map_err(|_| Error::PeerGone)
    };
    let socket = agent.sockets().run(make).await?;
    UnixStream::from_std(socket.into()).map_err(Error::io("connect to another agent"))
}

async fn start_http2(stream: UnixStream) -> Result<RequestSender> {
    let mut builder = http2::Builder::new(ConnectionPolledLast::default());
    builder
        .initial_stream_window_size(PEER_STREAM_WINDOW)
        .initial_connection_window_size(PEER_CONNECTION_WINDOW)
        .max_frame_size(MAX_FRAME)
        .initial_max_send_streams(MAX_STREAMS as usize)
        .max_send_buf_size(SEND_BUFFER)
        .max_concurrent_reset_streams(MAX_RESETS);
    let handshake = builder.handshake(TokioIo::new(stream)).await;
    let (sender, connection) = handshake.map_err(|_| Error::PeerGone)?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "peer agent disconnected");
        }
    });
    Ok(RequestSender(sender))
}

/// Converts the status of a failed call. A status without a failure means that the connection is lost.
fn to_error(status: &Status) -> Error {
    match Failure::from_status(status) {
        // The other agent is shutting down.
        Some(failure) if failure.reason() == Reason::TargetGone => Error::PeerGone,
        Some(failure) => Error::Peer(failure),
        None => Error::PeerGone,
    }
}

impl Peer {
    /// Reports to the other agent whether the session is connected, as long as the future is polled.
    pub(super) async fn report(&self, mut reachability: ReachabilityWatch) {
        let mut incoming = IncomingClient::with_origin(self.sender.clone(), origin());
        let mut reported = None;
        loop {
            let unreachable = reachability.unreachable();
            if unreachable != reported {
                let resume_window = unreachable.map(|client| client.expires_in.as_millis());
                let request = ReportRequest {
                    resume_window_milliseconds: resume_window
                        .map(|time| u64::try_from(time).unwrap_or(u64::MAX)),
                };
                // Agents of older releases do not implement it.
                let _ = incoming.report(request).await;
                reported = unreachable;
            }
            reachability.changed().await;
        }
    }

    /// Ends the subscription there. Returns when the redirection accepts no more connections for it.
    pub(super) async fn unsubscribe(&self) {
        let mut incoming = IncomingClient::with_origin(self.sender.clone(), origin());
        let subscription = self.subscription;
        // Agents of older releases do not implement it; the end of the call of Subscribe has the same effect later.
        let _ = incoming
            .unsubscribe(UnsubscribeRequest { subscription })
            .await;
    }

    /// Waits for a connection, and returns it as the response.
    pub(super) async fn accept(&self, from_session: BorrowedBody) -> Result<Response<Body>> {
        let mut request = Request::new(Body::new(from_session));
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = Uri::from_static(ACCEPT_URI);
        *request.headers_mut() = Accept {
            subscription: self.subscription,
        }
        .to_headers();
        let response = self.sender.clone().0.send_request(request).await;
        let response = response.map_err(|_| Error::PeerGone)?;
        match Failure::from_headers(response.headers()) {
            Some(failure) => Err(Error::Peer(failure)),
            None if response.status() != http::StatusCode::OK => Err(Error::PeerGone),
            None => Ok(response.map(Body::new)),
        }
    }
}

/// HTTP/2 requires a scheme and a host. They have no meaning here.
const ACCEPT_URI: &str = "http://peer/standin.session.v1/incoming/accept";

fn origin() -> Uri {
    Uri::from_static("http://peer")
}

impl Service<Request<Body>> for RequestSender {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Incoming>, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

#[cfg(test)]
mod tests {
    use protocol::incoming::ACCEPT;

    use super::*;

    #[tokio::test]
    async fn both_sides_prove_that_they_know_the_secret() {
        let endpoint = PeerEndpoint::new();
        let (mut holder, mut joiner) = UnixStream::pair().unwrap();
        let (accepted, joined) = tokio::join!(
            authenticate(&mut holder, &endpoint),
            join_handshake(&mut joiner, &endpoint)
        );
        accepted.unwrap();
        joined.unwrap();
    }

    #[tokio::test]
    async fn a_peer_without_the_secret_is_rejected_and_gets_no_proof() {
        let (endpoint, guessed) = (PeerEndpoint::new(), PeerEndpoint::new());
        let (mut holder, mut joiner) = UnixStream::pair().unwrap();
        let impostor = async {
            let accepted = authenticate(&mut holder, &guessed).await;
            assert_eq!(accepted.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        };
        let join = async {
            let joined = join_handshake(&mut joiner, &endpoint).await;
            assert_eq!(joined.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
            drop(joiner);
        };
        tokio::join!(impostor, join);
        // Echoing the proof of the holder is not a proof, either.
        let (mut holder, mut joiner) = UnixStream::pair().unwrap();
        let echo = async {
            joiner.write_all(&[7; 16]).await.unwrap();
            let mut received = [0; 16 + PROOF_LEN];
            joiner.read_exact(&mut received).await.unwrap();
            joiner.write_all(&received[16..]).await.unwrap();
        };
        let (accepted, ()) = tokio::join!(authenticate(&mut holder, &endpoint), echo);
        assert_eq!(
            accepted.unwrap_err().kind(),
            io::ErrorKind::PermissionDenied
        );
    }

    #[test]
    fn the_accept_uri_has_the_path_of_the_protocol() {
        assert_eq!(Uri::from_static(ACCEPT_URI).path(), ACCEPT);
    }
}
