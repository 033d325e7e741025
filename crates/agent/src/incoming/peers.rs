//! Agents of one network that share its ports.
//!
//! Each session on a process or a pod may have an agent of its own, and only one of them can redirect a port. It waits for
//! the others at its meeting point, a socket whose name and secret the kernel keeps with the claim on the port. When both
//! have proved that they know the secret they speak the session protocol there, and of it only what is about incoming
//! traffic: a subscription is passed on, and so is every request for a connection, body for body.

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
use link::http2::ConnectionAfterOthers;
use protocol::control::VERSION;
use protocol::failure::{Failure, Reason};
use protocol::incoming::Accept;
use protocol::rpc::control_client::ControlClient;
use protocol::rpc::incoming_client::IncomingClient;
use protocol::rpc::subscribe_event::Event;
use protocol::rpc::{HelloRequest, ReportRequest, SubscribeEvent, SubscribeRequest, Subscribed};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::{Status, Streaming};

use super::lent::Lent;
use super::reachable::Reachable;
use super::redirect::{Meeting, MeetingPoint, PROOF_BYTES, Role};
use crate::agent::Agent;
use crate::connection::{
    self, CONNECTION_WINDOW, Connection, FRAME, RESETS, SEND_BUFFER, STREAM_WINDOW, STREAMS,
};
use crate::{Error, Result};

/// How long one who comes may take to prove that he is an agent.
const PROVEN_WITHIN: Duration = Duration::from_secs(2);
/// How many may be about to prove it.
const STRANGERS: usize = 64;

/// Waits for other agents of the target's network.
pub(super) async fn listen(agent: &Agent, point: &MeetingPoint) -> Result<UnixListener> {
    let name = point.socket_name();
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

/// Serves other agents.
pub(super) async fn serve_all(agent: Agent, listener: UnixListener, point: MeetingPoint) {
    let strangers = Arc::new(Semaphore::new(STRANGERS));
    while let Ok(permit) = Arc::clone(&strangers).acquire_owned().await {
        let Ok((mut stream, _)) = listener.accept().await else {
            // No descriptor is left. Sessions go on, and somebody may go.
            tokio::time::sleep(PROVEN_WITHIN).await;
            continue;
        };
        let agent = agent.clone();
        tokio::spawn(async move {
            let welcomed = timeout(PROVEN_WITHIN, welcome(&mut stream, &point)).await;
            drop(permit);
            if !matches!(welcomed, Ok(Ok(()))) {
                return tracing::warn!("somebody who is no agent came to the meeting point");
            }
            let connection = Arc::new(Connection::of_peer(agent));
            if let Err(error) = connection::serve(connection, stream).await {
                tracing::debug!(%error, "another agent has gone");
            }
        });
    }
}

/// Proves to one who comes that the port is ours to share, and lets him prove that he may have it.
async fn welcome(stream: &mut UnixStream, point: &MeetingPoint) -> io::Result<()> {
    let mut meeting = Meeting {
        holders: rand::random(),
        ..Meeting::default()
    };
    stream.read_exact(&mut meeting.joiners).await?;
    let proof = point.proof(Role::Holder, &meeting);
    let answer = [&meeting.holders[..], &proof].concat();
    stream.write_all(&answer).await?;
    let mut proof = [0; PROOF_BYTES];
    stream.read_exact(&mut proof).await?;
    if point.accepts(Role::Joiner, &meeting, &proof) {
        return Ok(());
    }
    Err(io::ErrorKind::PermissionDenied.into())
}

/// The other side of it. Whoever has taken the name of a socket whose agent is gone learns nothing.
async fn introduce(stream: &mut UnixStream, point: &MeetingPoint) -> io::Result<()> {
    let mut meeting = Meeting {
        joiners: rand::random(),
        ..Meeting::default()
    };
    stream.write_all(&meeting.joiners).await?;
    stream.read_exact(&mut meeting.holders).await?;
    let mut proof = [0; PROOF_BYTES];
    stream.read_exact(&mut proof).await?;
    if !point.accepts(Role::Holder, &meeting, &proof) {
        tracing::warn!("somebody who is no agent waits at a meeting point");
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let proof = point.proof(Role::Joiner, &meeting);
    stream.write_all(&proof).await
}

/// A subscription at another agent.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) peer: Peer,
    /// As the other agent told it.
    pub(super) subscribed: Subscribed,
    pub(super) events: Streaming<SubscribeEvent>,
}

/// Another agent, and the number under which it knows a subscription.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    sender: Sender,
    subscription: u64,
}

#[derive(Debug, Clone)]
struct Sender(http2::SendRequest<Body>);

/// Asks the agent at a meeting point for what it redirects.
pub(super) async fn join(
    agent: &Agent,
    point: &MeetingPoint,
    request: SubscribeRequest,
) -> Result<Joined> {
    let mut stream = reach(agent, point).await?;
    let introduced = introduce(&mut stream, point).await;
    introduced.map_err(|_| Error::PeerGone)?;
    let sender = start(stream).await?;
    let hello = HelloRequest {
        version: Some(VERSION),
        client: concat!("standind ", env!("CARGO_PKG_VERSION")).to_owned(),
        ..HelloRequest::default()
    };
    let mut control = ControlClient::with_origin(sender.clone(), origin());
    control
        .hello(hello)
        .await
        .map_err(|status| refused(&status))?;
    let mut incoming = IncomingClient::with_origin(sender.clone(), origin());
    let events = incoming
        .subscribe(request)
        .await
        .map_err(|status| refused(&status))?;
    let mut events = events.into_inner();
    let first = events.message().await.map_err(|status| refused(&status))?;
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

async fn reach(agent: &Agent, point: &MeetingPoint) -> Result<UnixStream> {
    let name = point.socket_name();
    let make = move || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let connected = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).and_then(
            |socket: OwnedFd| {
                let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
                // A Unix socket is connected at once or not at all.
                connect(&socket, &address)?;
                Ok(socket)
            },
        );
        connected.map_err(|_| Error::PeerGone)
    };
    let socket = agent.sockets().run(make).await?;
    UnixStream::from_std(socket.into()).map_err(Error::io("speak with another agent"))
}

async fn start(stream: UnixStream) -> Result<Sender> {
    let mut builder = http2::Builder::new(ConnectionAfterOthers::default());
    builder
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME)
        .initial_max_send_streams(STREAMS as usize)
        .max_send_buf_size(SEND_BUFFER)
        .max_concurrent_reset_streams(RESETS);
    let handshake = builder.handshake(TokioIo::new(stream)).await;
    let (sender, connection) = handshake.map_err(|_| Error::PeerGone)?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "another agent has gone");
        }
    });
    Ok(Sender(sender))
}

/// Why another agent did not do it: it said so, or it is gone.
fn refused(status: &Status) -> Error {
    match Failure::from_status(status) {
        // It is about to be.
        Some(failure) if failure.reason() == Reason::TargetGone => Error::PeerGone,
        Some(failure) => Error::Peer(failure),
        None => Error::PeerGone,
    }
}

impl Peer {
    /// Says whether the session can be reached, as long as this is polled.
    pub(super) async fn report(&self, mut reachable: Reachable) {
        let mut incoming = IncomingClient::with_origin(self.sender.clone(), origin());
        let mut told = None;
        loop {
            let away = reachable.away();
            if away != told {
                let away_for = away.map(|away| away.keeps_for.as_millis());
                let request = ReportRequest {
                    away_for_milliseconds: away_for
                        .map(|time| u64::try_from(time).unwrap_or(u64::MAX)),
                };
                // One of an older release does without.
                let _ = incoming.report(request).await;
                told = away;
            }
            reachable.changed().await;
        }
    }

    /// Waits until there is a connection, and answers with it.
    pub(super) async fn accept(&self, from_session: Lent) -> Result<Response<Body>> {
        let mut request = Request::new(Body::new(from_session));
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = Uri::from_static(ACCEPT_AT_PEER);
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

/// HTTP/2 wants a scheme and a host, which mean nothing here.
const ACCEPT_AT_PEER: &str = "http://peer/standin.session.v1/incoming/accept";

fn origin() -> Uri {
    Uri::from_static("http://peer")
}

impl Service<Request<Body>> for Sender {
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
        let point = MeetingPoint::new();
        let (mut holder, mut joiner) = UnixStream::pair().unwrap();
        let (welcomed, introduced) =
            tokio::join!(welcome(&mut holder, &point), introduce(&mut joiner, &point));
        welcomed.unwrap();
        introduced.unwrap();
    }

    #[tokio::test]
    async fn nothing_is_proved_to_somebody_who_does_not_know_it() {
        let (point, guessed) = (MeetingPoint::new(), MeetingPoint::new());
        let (mut holder, mut joiner) = UnixStream::pair().unwrap();
        let impostor = async {
            let welcomed = welcome(&mut holder, &guessed).await;
            assert_eq!(welcomed.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        };
        let join = async {
            let introduced = introduce(&mut joiner, &point).await;
            assert_eq!(
                introduced.unwrap_err().kind(),
                io::ErrorKind::PermissionDenied
            );
            drop(joiner);
        };
        tokio::join!(impostor, join);
        // One who repeats what the holder says proves nothing, either.
        let (mut holder, mut joiner) = UnixStream::pair().unwrap();
        let echo = async {
            joiner.write_all(&[7; 16]).await.unwrap();
            let mut said = [0; 16 + PROOF_BYTES];
            joiner.read_exact(&mut said).await.unwrap();
            joiner.write_all(&said[16..]).await.unwrap();
        };
        let (welcomed, ()) = tokio::join!(welcome(&mut holder, &point), echo);
        assert_eq!(
            welcomed.unwrap_err().kind(),
            io::ErrorKind::PermissionDenied
        );
    }

    #[test]
    fn connections_are_asked_for_where_the_protocol_says() {
        assert_eq!(Uri::from_static(ACCEPT_AT_PEER).path(), ACCEPT);
    }
}
