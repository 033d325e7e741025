//! One client's HTTP/2 connection on a byte stream, with gRPC calls and raw streams.

mod request_body;
mod server;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Request, Response};
use link::http2::poll_last;
use protocol::rpc::control_server::ControlServer;
use protocol::rpc::dns_server::DnsServer;
use protocol::rpc::env_server::EnvServer;
use protocol::rpc::files_server::FilesServer;
use protocol::rpc::incoming_server::IncomingServer;
use protocol::rpc::outgoing_server::OutgoingServer;
use protocol::{
    MAX_MESSAGE_BYTES, files as file_streams, incoming as incoming_streams,
    outgoing as outgoing_streams,
};
use tokio::io::{AsyncRead, AsyncWrite, BufWriter};
use tokio::sync::watch;
use tonic::body::Body;
use tonic::codegen::Service;

pub(crate) use self::request_body::RequestBody;
use crate::agent::Agent;
use crate::files::{self, Handles};
use crate::incoming::{self, ClientReachability, ReachabilityWatch, Subscriptions};
use crate::outgoing;
use crate::{Error, Result};

/// The flow-control window of a stream: the data of 40 ms on a fast network. One slow reader costs this much memory, and less
/// when memory is scarce.
pub(crate) const STREAM_WINDOW: u32 = 4 * 1024 * 1024;
/// The maximum number of concurrent streams.
pub(crate) const MAX_STREAMS: u32 = 8192;
/// The flow-control window of the connection: the maximum of HTTP/2, so that only hundreds of stalled readers, each with a
/// full window, can block the other streams.
pub(crate) const CONNECTION_WINDOW: u32 = i32::MAX.unsigned_abs();
/// The maximum number of bytes that a stream buffers for sending.
pub(crate) const SEND_BUFFER: usize = 512 * 1024;
/// The maximum size of a list of headers.
const MAX_HEADER_LIST: u32 = 16 * 1024;
/// The maximum size of a DATA frame.
pub(crate) const MAX_FRAME: u32 = 128 * 1024;
/// Smaller frames are combined in a buffer of this size; larger ones are written directly.
const WRITE_BUFFER: usize = 16 * 1024;
/// The maximum number of streams that a client resets before they are accepted. A client that cancels many calls at once stays
/// below it: only those count that arrive together with their reset.
pub(crate) const MAX_RESETS: usize = 1024;
/// How long a stream waits for Hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// The state of one client's connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) agent: Agent,
    pub(crate) access: Access,
    pub(crate) reachable: ReachabilityWatch,
    /// The sender of `reachable`, for the reports of a peer.
    pub(crate) reachability: Option<watch::Sender<ClientReachability>>,
    pub(crate) handles: Arc<Handles>,
    pub(crate) subscriptions: Arc<Subscriptions>,
    /// Calls wait until Hello is accepted.
    hello: watch::Sender<HelloState>,
}

/// Which operations a client may request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// All operations, if it has the agent's token.
    Session,
    /// Only incoming traffic: the client is another agent, which has proved that it could redirect the traffic itself.
    Peer,
}

/// The result of Hello on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HelloState {
    Pending,
    Accepted,
    /// Final: another attempt needs a new connection.
    Rejected,
}

impl Connection {
    pub(crate) fn of_session(agent: Agent, reachable: ReachabilityWatch) -> Self {
        Self::new(agent, Access::Session, reachable, None)
    }

    pub(crate) fn of_peer(agent: Agent) -> Self {
        let (reachability, reachable) = watch::channel(ClientReachability::Connected);
        let reachable = ReachabilityWatch::new(reachable);
        Self::new(agent, Access::Peer, reachable, Some(reachability))
    }

    fn new(
        agent: Agent,
        access: Access,
        reachable: ReachabilityWatch,
        reachability: Option<watch::Sender<ClientReachability>>,
    ) -> Self {
        let handles = Arc::default();
        agent.track_handles(&handles);
        Self {
            agent,
            access,
            reachable,
            reachability,
            handles,
            subscriptions: Arc::default(),
            hello: watch::Sender::new(HelloState::Pending),
        }
    }

    /// Records the result of Hello. Only the first one counts, so that a rejected client cannot try again.
    pub(crate) fn finish_hello(&self, result: HelloState) {
        self.hello.send_if_modified(|current| {
            let first = *current == HelloState::Pending;
            if first {
                *current = result;
            }
            first
        });
    }

    /// Succeeds if Hello was accepted and the target is running. Waits for a pending Hello.
    pub(crate) async fn admit(&self) -> Result<()> {
        if *self.hello.borrow() == HelloState::Accepted {
            return self.require_target();
        }
        let mut hello = self.hello.subscribe();
        let finished = hello.wait_for(|state| *state != HelloState::Pending);
        match tokio::time::timeout(HELLO_TIMEOUT, finished).await {
            Ok(Ok(state)) if *state == HelloState::Accepted => {}
            _ => return Err(Error::NoHello),
        }
        self.require_target()
    }

    /// Checks that the target is running. It does not matter for a peer, which has its own target in the same network.
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
    let memory = connection.agent.memory().clone();
    let respond = move |request| route(Arc::clone(&connection), request);
    // Combines small writes of HTTP/2, such as the headers and the trailers of a response, into one packet, which wakes the
    // client once. HTTP/2 flushes when it has nothing more to write.
    let io = BufWriter::with_capacity(WRITE_BUFFER, io);
    let serving = server::serve(io, &memory, respond);
    // Polls after other ready tasks, so that the output of all streams is sent together, too.
    Ok(poll_last(pin!(serving)).await?)
}

async fn route(connection: Arc<Connection>, mut request: Request<RequestBody>) -> Response<Body> {
    let path = request.uri().path();
    let Some((service, _)) = path.trim_start_matches('/').split_once('/') else {
        return unknown();
    };
    macro_rules! serve {
        ($server:ident) => {{
            request.body_mut().keep_what_is_read();
            let server = $server::from_arc(connection).max_decoding_message_size(MAX_MESSAGE_BYTES);
            let mut server = server.max_encoding_message_size(MAX_MESSAGE_BYTES);
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

async fn stream(connection: &Arc<Connection>, request: Request<RequestBody>) -> Response<Body> {
    let response = async {
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
    response.await.unwrap_or_else(|error| failed(&error))
}

/// The response to an unknown operation, for instance of a newer client.
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
