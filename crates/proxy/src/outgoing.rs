//! Connections that leave from the target.
//!
//! Each is one HTTP/2 stream. Its response comes when the agent has connected, so the application learns the truth.

mod budget;
mod datagrams;
mod packets;
mod routes;

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use hyper::body::Incoming;
use interceptor::{Connection, Destination, Errno, Names, Outgoing, Transport};
use link::http2;
use protocol::outgoing::{Connected, TCP, TcpConnect, UnixAddress, UnixConnect, UnixKind};
use protocol::rpc::Failure;

use crate::agent::{Agent, errno};
use crate::event::Event;
use crate::monitor::Attempt;
use crate::stream::{self, FromApplication, LocalStream};

pub(crate) use budget::Budget;
pub(crate) use datagrams::until_closed;
pub(crate) use routes::Routes;

/// Connects on the session's runtime; returns at once, or as soon as the application's own half is connected.
pub(crate) fn connect(agent: &Agent, outgoing: Outgoing, attempt: Attempt) {
    let agent = agent.clone();
    let runtime = agent.runtime.clone();
    let connections = agent.client.connections();
    let Some(permit) = connections.take() else {
        (agent.tell)(&Event::TooManyConnections(connections.most));
        // As if there were no more ports, which is what a program meets otherwise.
        attempt.failed(Errno::EADDRNOTAVAIL);
        return outgoing.refuse(Errno::EADDRNOTAVAIL);
    };
    if let (Transport::Udp, Destination::Internet(peer)) =
        (outgoing.transport(), outgoing.destination())
    {
        let peer = *peer;
        return datagrams::connect(agent, outgoing, peer, permit, attempt);
    }
    runtime.spawn(async move {
        let _permit = permit;
        if let Err(error) = carry(&agent, outgoing, attempt).await {
            tracing::debug!(%error, "a connection ended");
        }
    });
}

async fn carry(agent: &Agent, outgoing: Outgoing, attempt: Attempt) -> io::Result<()> {
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
                return packets::carry(agent, outgoing, connect, attempt).await;
            }
            (connect.path(), connect.to_headers())
        }
    };
    let (application, body) = FromApplication::new();
    let response = match ask(agent, path, headers, body).await {
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
    let stream = Arc::new(stream.watched(attempt.connected()));
    // HTTP/2 has given the body up when the agent is lost meanwhile; the response's body then says so.
    let _ = application.send(Arc::clone(&stream));
    stream::to_application(stream, response.into_body()).await;
    Ok(())
}

/// Connects the application's socket to us. All of it happens within this machine, in some twenty short system calls, so it
/// is not handed to another thread.
fn establish(outgoing: Outgoing, response: &Response<Incoming>) -> io::Result<Connection> {
    let ends = Connected::from_headers(response.headers()).ok();
    let names = Names {
        local: ends.map(|ends| ends.local),
        peer: ends.and_then(|ends| ends.peer),
    };
    outgoing.establish(names).map_err(io::Error::from)
}

/// Asks the agent for a connection. The error is what its own `connect` said.
async fn ask<B>(
    agent: &Agent,
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
    let response = agent.client.clone().send(request).await.map_err(|error| {
        tracing::warn!(%error, "the agent cannot be reached");
        Errno::ENETUNREACH
    })?;
    if response.status().is_success() {
        return Ok(response);
    }
    Err(errno(Failure::from_headers(response.headers()).as_ref()))
}
