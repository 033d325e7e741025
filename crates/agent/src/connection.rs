//! One client: HTTP/2 on a byte stream, gRPC calls and raw streams side by side.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use link::http2::after_others;
use protocol::rpc::control_server::ControlServer;
use protocol::rpc::dns_server::DnsServer;
use protocol::rpc::env_server::EnvServer;
use protocol::rpc::files_server::FilesServer;
use protocol::rpc::incoming_server::IncomingServer;
use protocol::rpc::outgoing_server::OutgoingServer;
use protocol::{
    MESSAGE_BYTES, files as file_streams, incoming as incoming_streams,
    outgoing as outgoing_streams,
};
use tokio::io::{AsyncRead, AsyncWrite, BufWriter};
use tokio::sync::watch;
use tonic::body::Body;
use tonic::codegen::Service;

use crate::agent::Agent;
use crate::files::{self, Handles};
use crate::incoming::{self, Presence, Reachable, Subscriptions};
use crate::outgoing;
use crate::{Error, Result};

/// How much one stream may have on the way: what a fast line carries in 40 ms. It is what one slow reader costs.
pub(crate) const STREAM_WINDOW: u32 = 4 * 1024 * 1024;
/// Streams at the same time.
pub(crate) const STREAMS: u32 = 8192;
/// The largest that HTTP/2 has, so that it takes hundreds of stalled readers, each with a full window, to stop the others.
pub(crate) const CONNECTION_WINDOW: u32 = i32::MAX.unsigned_abs();
/// What a stream may have waiting for the link.
pub(crate) const SEND_BUFFER: usize = 512 * 1024;
pub(crate) const FRAME: u32 = 128 * 1024;
/// Frames up to this size are copied together; larger ones are written as they are.
const GATHERED: usize = 16 * 1024;
/// A client may give up on many calls at once, and is known: it is no attacker.
pub(crate) const RESETS: usize = 64 * 1024;
/// How long a stream waits for Hello.
const HELLO: Duration = Duration::from_secs(10);

/// What belongs to one client.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) agent: Agent,
    pub(crate) access: Access,
    pub(crate) reachable: Reachable,
    /// From what a peer reports of its session to `reachable`.
    pub(crate) presence: Option<watch::Sender<Presence>>,
    pub(crate) handles: Arc<Handles>,
    pub(crate) subscriptions: Arc<Subscriptions>,
    /// From Hello to everything that waits for it.
    greeting: watch::Sender<Greeting>,
}

/// What a client may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Everything, if it knows the agent's token.
    Session,
    /// The target's traffic: it is another agent, which has proven that it could redirect it itself.
    Peer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Greeting {
    /// Until Hello.
    Awaited,
    Accepted,
    /// For good: a second try needs a new connection.
    Refused,
}

impl Connection {
    pub(crate) fn of_session(agent: Agent, reachable: Reachable) -> Self {
        Self::new(agent, Access::Session, reachable, None)
    }

    pub(crate) fn of_peer(agent: Agent) -> Self {
        let (presence, reachable) = watch::channel(Presence::Here);
        let reachable = Reachable::new(reachable);
        Self::new(agent, Access::Peer, reachable, Some(presence))
    }

    fn new(
        agent: Agent,
        access: Access,
        reachable: Reachable,
        presence: Option<watch::Sender<Presence>>,
    ) -> Self {
        let handles = Arc::default();
        agent.watch_over(&handles);
        Self {
            agent,
            access,
            reachable,
            presence,
            handles,
            subscriptions: Arc::default(),
            greeting: watch::Sender::new(Greeting::Awaited),
        }
    }

    pub(crate) fn greet(&self, greeting: Greeting) {
        // The first word counts, so that a refused client cannot try again.
        self.greeting.send_if_modified(|current| {
            let first = *current == Greeting::Awaited;
            if first {
                *current = greeting;
            }
            first
        });
    }

    /// Lets a call through when Hello was accepted and the target is there. Waits for a Hello that is on its way.
    pub(crate) async fn admit(&self) -> Result<()> {
        if *self.greeting.borrow() == Greeting::Accepted {
            return self.require_target();
        }
        let mut greeting = self.greeting.subscribe();
        let answered = greeting.wait_for(|greeting| *greeting != Greeting::Awaited);
        match tokio::time::timeout(HELLO, answered).await {
            Ok(Ok(greeting)) if *greeting == Greeting::Accepted => {}
            _ => return Err(Error::NoHello),
        }
        self.require_target()
    }

    /// A peer has a target of its own, in the same network.
    fn require_target(&self) -> Result<()> {
        match self.access {
            Access::Session => self.agent.target().require(),
            Access::Peer => Ok(()),
        }
    }
}

pub(crate) async fn serve<IO>(connection: Arc<Connection>, io: IO) -> Result<()>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request| {
        let connection = Arc::clone(&connection);
        async move { Ok::<_, Infallible>(route(connection, request).await) }
    });
    // What HTTP/2 writes one by one, such as the head and the end of an answer, leaves together: one packet wakes the
    // client once. HTTP/2 flushes whenever it has written what there is.
    let io = BufWriter::with_capacity(GATHERED, io);
    let serving = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(STREAMS)
        .max_frame_size(FRAME)
        .max_send_buf_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(RESETS)
        .max_local_error_reset_streams(None)
        .serve_connection(TokioIo::new(io), service);
    // What all streams have to say at a time leaves together, too.
    Ok(after_others(pin!(serving)).await?)
}

async fn route(connection: Arc<Connection>, request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path();
    let Some((service, _)) = path.trim_start_matches('/').split_once('/') else {
        return unknown();
    };
    macro_rules! serve {
        ($server:ident) => {{
            let server = $server::from_arc(connection).max_decoding_message_size(MESSAGE_BYTES);
            let mut server = server.max_encoding_message_size(MESSAGE_BYTES);
            match server.call(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            }
        }};
    }
    let is_for_peers = service == "standin.session.v1.Control"
        || service == "standin.session.v1.Incoming"
        || path == incoming_streams::ACCEPT;
    if connection.access == Access::Peer && !is_for_peers {
        return unknown();
    }
    match service {
        "standin.session.v1.Control" => serve!(ControlServer),
        "standin.session.v1.Env" => serve!(EnvServer),
        "standin.session.v1.Files" => serve!(FilesServer),
        "standin.session.v1.Dns" => serve!(DnsServer),
        "standin.session.v1.Outgoing" => serve!(OutgoingServer),
        "standin.session.v1.Incoming" => serve!(IncomingServer),
        _ => stream(&connection, request).await,
    }
}

async fn stream(connection: &Arc<Connection>, request: Request<Incoming>) -> Response<Body> {
    let answer = async {
        connection.admit().await?;
        let path = request.uri().path();
        match path {
            file_streams::READ => files::read(connection, &request).await,
            file_streams::WRITE => files::write(connection, request).await,
            outgoing_streams::TCP => outgoing::tcp(connection, request).await,
            outgoing_streams::UDP => outgoing::udp(connection, request).await,
            outgoing_streams::UNIX => outgoing::unix(connection, request).await,
            outgoing_streams::UNIX_DATAGRAM => outgoing::unix_datagram(connection, request).await,
            incoming_streams::ACCEPT => incoming::accept(connection, request).await,
            _ => Ok(unknown()),
        }
    };
    answer.await.unwrap_or_else(|error| failed(&error))
}

/// What an older agent answers to what only newer clients know.
fn unknown() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = http::StatusCode::NOT_FOUND;
    response
}

pub(crate) fn failed(error: &Error) -> Response<Body> {
    let failure = error.to_failure();
    let mut response = Response::new(Body::empty());
    *response.status_mut() = failure.http_status();
    *response.headers_mut() = failure.to_headers();
    response
}

pub(crate) fn succeeded(headers: HeaderMap, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.headers_mut() = headers;
    response
}
