//! HTTP/2: splits a connection by stream.
//!
//! Frames cannot be forwarded unchanged, because header compression depends on earlier streams of the same connection. Each
//! stream is therefore decoded and encoded again: headers, data as it is received, trailers, and resets with their reasons.
//! Flow control is end to end: a sender may only send as much as the receiver at the other end accepts.
//!
//! Each client has its own connection to the application and to each session, as without the proxy.

mod body;
mod connections;
mod exchange;
mod mirror;

use std::sync::Arc;

use bytes::Bytes;
use h2::server::{Connection, SendResponse};
use http::Request;
use tokio::task::JoinSet;

use crate::http1::upstream::UpstreamConnection;
use crate::port::Upstreams;
use crate::stream::{BoxStream, ConnectionMeta};
use connections::Http2Connections;
pub(crate) use connections::Pool;

/// Flow-control window of a stream.
const STREAM_WINDOW: u32 = 256 * 1024;
/// Maximum number of concurrent streams of a client.
const MAX_CONCURRENT_STREAMS: u32 = 1024;
/// Flow-control window of a connection. It covers the windows of all streams, so that a stalled reader only blocks its own
/// stream.
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * MAX_CONCURRENT_STREAMS;
/// Maximum frame size: the number of bytes of one stream before another stream gets its turn.
const MAX_FRAME_SIZE: u32 = 64 * 1024;
/// More than servers accept.
const MAX_HEADER_LIST_SIZE: u32 = 1024 * 1024;

/// Serves a client's HTTP/2 connection.
pub(crate) async fn serve(
    upstreams: Upstreams,
    client: BoxStream,
    meta: ConnectionMeta,
    spare: Option<UpstreamConnection>,
) {
    let connections = Arc::new(Http2Connections::new(upstreams, meta, spare));
    let mut builder = h2::server::Builder::new();
    if connections.supports_extended_connect().await {
        builder.enable_connect_protocol();
    }
    builder
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(MAX_FRAME_SIZE)
        .max_concurrent_streams(MAX_CONCURRENT_STREAMS)
        .max_header_list_size(MAX_HEADER_LIST_SIZE);
    let mut connection = match builder.handshake(client).await {
        Ok(connection) => connection,
        Err(error) => return tracing::debug!(%error, "HTTP/2 handshake with client failed"),
    };
    let mut exchanges = JoinSet::new();
    while let Some((request, respond)) = next(&mut connection, &connections, &mut exchanges).await {
        let exchange = exchange::exchange(connections.clone(), request, respond);
        exchanges.spawn(exchange);
    }
    // The client has disconnected, so its remaining exchanges are cancelled.
    exchanges.shutdown().await;
    connections.return_to_pool();
}

/// Waits for the next stream. When the application closes its connection, the client gets a GOAWAY as well.
async fn next(
    connection: &mut Connection<BoxStream, Bytes>,
    connections: &Http2Connections,
    exchanges: &mut JoinSet<()>,
) -> Option<(Request<h2::RecvStream>, SendResponse<Bytes>)> {
    let mut was_notified = false;
    loop {
        tokio::select! {
            accepted = connection.accept() => match accepted? {
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
