//! HTTP/2: splits a connection by stream.
//!
//! Frames cannot be forwarded unchanged, because header compression depends on earlier streams of the same connection. Each
//! stream is therefore decoded and encoded again: headers, data as it is received, trailers, and resets with their reasons.
//! Flow control is end to end: a sender may only send as much as the receiver at the other end accepts.
//!
//! Each client has its own connection to the application and to each session, as without the proxy.
//!
//! A client may open many streams that are never read, send heads that are small only when compressed, or not read its
//! responses. Everything that it makes the proxy keep is charged to its connection (`intake`, `memory::in_flight`). Streams for which
//! there is no memory are refused, so that the client may send their requests again.

mod body;
mod connections;
mod exchange;
mod intake;
mod mirror;
mod windows;

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::Reason;
use h2::server::{Connection, SendResponse};
use http::{HeaderMap, Request};
use tokio::task::JoinSet;

use crate::http1::upstream::UpstreamConnection;
use crate::memory::Charge;
use crate::port::Upstreams;
use crate::stream::{BoxStream, ConnectionMeta};
use connections::Http2Connections;
pub(crate) use connections::Pool;
use intake::{Intake, IntakeStream, head_size};
use windows::{AdaptiveWindows, Windows};

/// Maximum number of concurrent streams of a client. Clients of gRPC have many on one connection, most of them waiting.
const MAX_CONCURRENT_STREAMS: u32 = 1024;
/// The same when little memory is free.
const MIN_CONCURRENT_STREAMS: u32 = 64;
/// Maximum frame size: the number of bytes of one stream before another stream gets its turn.
const MAX_FRAME_SIZE: u32 = 64 * 1024;
/// The same as for HTTP/1.
const MAX_HEADER_LIST_SIZE: u32 = 64 * 1024;
/// Maximum number of bytes of a stream that wait for the receiver's socket.
const MAX_SEND_BUFFER: usize = 64 * 1024;
/// The memory of a connection without streams: frame buffers in both directions, of the client and of its upstream.
const CONNECTION_COST: usize = 48 * 1024;
/// The memory of a stream without its head and its data: a task, and a stream in both libraries.
const STREAM_COST: usize = 12 * 1024;

/// Serves a client's HTTP/2 connection.
pub(crate) async fn serve(
    upstreams: Upstreams,
    client: BoxStream,
    meta: ConnectionMeta,
    spare: Option<UpstreamConnection>,
) {
    let holder = upstreams.holder.clone();
    let _charge = holder.charge(CONNECTION_COST);
    let free = holder.memory().free();
    let (windows, max_streams) = (Windows::with_free_memory(free), max_streams(free));
    let connections = Arc::new(Http2Connections::new(upstreams, meta, spare, windows));
    let intake = Intake::new(&holder, &connections.requests);
    let mut windows_now = AdaptiveWindows::new(windows);
    let mut builder = h2::server::Builder::new();
    if connections.supports_extended_connect().await {
        builder.enable_connect_protocol();
    }
    builder
        .initial_window_size(windows.stream)
        .initial_connection_window_size(windows.connection)
        .max_send_buffer_size(MAX_SEND_BUFFER)
        .max_frame_size(MAX_FRAME_SIZE)
        .max_concurrent_streams(max_streams)
        .max_header_list_size(MAX_HEADER_LIST_SIZE);
    let mut connection = match builder.handshake(intake.read(client)).await {
        Ok(connection) => connection,
        Err(error) => return tracing::debug!(%error, "HTTP/2 handshake with client failed"),
    };
    let mut exchanges = JoinSet::new();
    while let Some((request, mut respond)) = next(
        &mut connection,
        &connections,
        &intake,
        &mut windows_now,
        &mut exchanges,
    )
    .await
    {
        let Some(charge) = admit(&connections, exchanges.len(), request.headers()) else {
            respond.send_reset(Reason::REFUSED_STREAM);
            continue;
        };
        let (connections, intake) = (connections.clone(), intake.clone());
        exchanges.spawn(async move {
            let stream = respond.stream_id().as_u32();
            exchange::exchange(connections, request, respond).await;
            intake.end_stream(stream);
            drop(charge);
        });
    }
    // The client has disconnected, so its remaining exchanges are cancelled.
    exchanges.shutdown().await;
    connections.return_to_pool();
}

/// How many streams a new connection may have. The library keeps the memory of as many as there have been at the same time, even
/// if they were refused.
fn max_streams(free: usize) -> u32 {
    let share = u32::try_from(free / (64 * 1024)).unwrap_or(u32::MAX);
    share.clamp(MIN_CONCURRENT_STREAMS, MAX_CONCURRENT_STREAMS)
}

/// Charges the memory of a stream. Returns `None` if the client has too much already.
fn admit(connections: &Http2Connections, open: usize, headers: &HeaderMap) -> Option<Charge> {
    // Streams that the client has reset no longer count for the library, but may not have ended here.
    let has_room = open < MAX_CONCURRENT_STREAMS as usize;
    let holder = connections.holder();
    // The head is copied for each attempt.
    let cost = STREAM_COST + 2 * head_size(headers);
    has_room.then(|| holder.try_charge(cost)).flatten()
}

/// Waits for the next stream. When the application closes its connection, the client gets a GOAWAY as well.
async fn next(
    connection: &mut Connection<IntakeStream, Bytes>,
    connections: &Http2Connections,
    intake: &Intake,
    windows: &mut AdaptiveWindows,
    exchanges: &mut JoinSet<()>,
) -> Option<(Request<h2::RecvStream>, SendResponse<Bytes>)> {
    let mut was_notified = false;
    loop {
        tokio::select! {
            accepted = poll_fn(|context| poll_accept(connection, intake, windows, context)) => match accepted? {
                Ok(stream) => return Some(stream),
                Err(error) => {
                    tracing::debug!(%error, "HTTP/2 connection of client failed");
                    return None;
                }
            },
            () = connections.application_closed(), if !was_notified => {
                was_notified = true;
                connection.graceful_shutdown();
            }
            Some(_) = exchanges.join_next(), if !exchanges.is_empty() => {}
        }
    }
}

/// What the library returns for each stream that a client begins.
type Accepted = Result<(Request<h2::RecvStream>, SendResponse<Bytes>), h2::Error>;

/// Accepts a stream. Further header blocks are only read when all streams have been accepted.
fn poll_accept(
    connection: &mut Connection<IntakeStream, Bytes>,
    intake: &Intake,
    windows: &mut AdaptiveWindows,
    context: &mut Context<'_>,
) -> Poll<Option<Accepted>> {
    let accepted = connection.poll_accept(context);
    let has_adapted = windows.adapt(intake.stalled(), connection);
    if accepted.is_pending() && (intake.reopen() || has_adapted) {
        context.waker().wake_by_ref();
    }
    accepted
}

#[cfg(test)]
mod tests {
    use super::max_streams;

    #[test]
    fn new_connections_may_have_fewer_streams_when_little_memory_is_free() {
        assert_eq!(max_streams(64 << 20), 1024);
        assert_eq!(max_streams(32 << 20), 512);
        assert_eq!(max_streams(0), 64);
    }
}
