//! Outgoing connections, which the agent opens from the target's network.
//!
//! Each connection is one HTTP/2 stream. The agent sends the response after its own `connect` has finished, so the
//! application sees the real outcome.
//!
//! | module | what it does |
//! |---|---|
//! | [`datagrams`] | UDP sockets |
//! | [`packets`] | Unix sockets of type `SOCK_SEQPACKET` |
//! | [`routes`] | cache of the target's source addresses |
//! | [`limit`] | limit of concurrent connections |

mod datagrams;
mod limit;
mod packets;
mod routes;

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use hyper::body::Incoming;
use interceptor::{
    Destination, Errno, OutgoingConnection, PendingConnection, SocketAddresses, Transport,
};
use link::http2;
use protocol::outgoing::{Connected, TCP, TcpConnect, UnixAddress, UnixConnect, UnixKind};
use protocol::rpc::Failure;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::agent::{SessionContext, errno_of};
use crate::event::Event;
use crate::incoming::UNSUBSCRIBE_TIMEOUT;
use crate::monitor::OutgoingAttempt;
use crate::stream::{self, ApplicationBody, LocalStream};

pub(crate) use datagrams::until_closed;
pub(crate) use limit::ConnectionLimit;
pub(crate) use routes::RouteCache;

/// Connects on the session's runtime. Returns at once, or for a datagram socket as soon as the application's socket is
/// connected to the proxy. `closed_port` completes when a listener of the application on the same port, which it has closed,
/// no longer receives connections.
pub(crate) fn connect(
    context: &SessionContext,
    outgoing: PendingConnection,
    attempt: OutgoingAttempt,
    closed_port: Option<oneshot::Receiver<()>>,
) {
    let context = context.clone();
    let runtime = context.runtime.clone();
    let connections = context.stateful_agent.connections();
    let Some(permit) = connections.try_acquire() else {
        (context.events)(&Event::TooManyConnections(connections.max));
        // The error of a native `connect` when the ephemeral ports are exhausted.
        attempt.failed(Errno::EADDRNOTAVAIL);
        return outgoing.refuse(Errno::EADDRNOTAVAIL);
    };
    if let (Transport::Udp, Destination::Internet(peer)) =
        (outgoing.transport(), outgoing.destination())
    {
        let peer = *peer;
        return datagrams::connect(context, outgoing, peer, permit, attempt);
    }
    runtime.spawn(async move {
        let _permit = permit;
        if let Some(closed_port) = closed_port {
            // It completes when the port is released, with an error because nothing is sent.
            let _ = timeout(UNSUBSCRIBE_TIMEOUT, closed_port).await;
        }
        if let Err(error) = run_connection(&context, outgoing, attempt).await {
            tracing::debug!(%error, "outgoing connection failed");
        }
    });
}

async fn run_connection(
    context: &SessionContext,
    outgoing: PendingConnection,
    attempt: OutgoingAttempt,
) -> io::Result<()> {
    let (path, headers) = match outgoing.destination() {
        Destination::Internet(address) => {
            let connect = TcpConnect {
                address: *address,
                bind: None,
            };
            (TCP, connect.to_headers())
        }
        Destination::Unix(path) => {
            let is_stream = outgoing.transport() != Transport::UnixPackets;
            let connect = UnixConnect {
                address: UnixAddress::Path(path.as_os_str().as_bytes().to_vec()),
                kind: match is_stream {
                    true => UnixKind::Stream,
                    false => UnixKind::SequencedPacket,
                },
            };
            if !is_stream {
                return packets::run_connection(context, outgoing, connect, attempt).await;
            }
            (connect.path(), connect.to_headers())
        }
    };
    let (application, body) = ApplicationBody::new();
    let response = match request_connection(context, path, headers, body).await {
        Ok(response) => response,
        Err(errno) => {
            attempt.failed(errno);
            outgoing.refuse(errno);
            return Ok(());
        }
    };
    let transport = outgoing.transport();
    let (socket, registration) = establish(outgoing, &response)?.into_parts();
    let stream = LocalStream::new(transport, socket, registration)?;
    let stream = Arc::new(stream.with_traffic(attempt.connected()));
    // If the link was lost meanwhile, HTTP/2 has dropped the request body; reading the response body then fails.
    let _ = application.send(Arc::clone(&stream));
    stream::copy_to_application(stream, response.into_body()).await;
    Ok(())
}

/// Connects the application's socket to the proxy. This is about twenty short system calls on this machine, so it runs on
/// the current thread.
fn establish(
    outgoing: PendingConnection,
    response: &Response<Incoming>,
) -> io::Result<OutgoingConnection> {
    let connected = Connected::from_headers(response.headers()).ok();
    let addresses = SocketAddresses {
        local: connected.map(|connected| connected.local),
        peer: connected.and_then(|connected| connected.peer),
    };
    outgoing.establish(addresses).map_err(io::Error::from)
}

/// Requests a connection from the agent. The error is the one of the agent's own `connect`.
async fn request_connection<B>(
    context: &SessionContext,
    path: &str,
    headers: HeaderMap,
    body: B,
) -> Result<Response<Incoming>, Errno>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<http2::BoxError>,
{
    let mut request = Request::post(path).body(body).map_err(|_| Errno::EIO)?;
    request.headers_mut().extend(headers);
    let response = context
        .stateful_agent
        .clone()
        .send(request)
        .await
        .map_err(|error| {
            tracing::warn!(%error, "agent unreachable");
            Errno::ENETUNREACH
        })?;
    if response.status().is_success() {
        return Ok(response);
    }
    Err(errno_of(Failure::from_headers(response.headers()).as_ref()))
}
