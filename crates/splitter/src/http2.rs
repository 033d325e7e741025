//! HTTP/2: split by stream.
//!
//! Frames cannot be passed on as they are, since headers are compressed with what earlier streams of the same connection
//! said. So each stream is taken apart and put together again: headers, data as it comes, trailers, and resets with their
//! reasons. A sender may send as much as the receiver at the other end takes, and no more.
//!
//! Each client has its own connection to the application and to each session, as it would without us.

mod body;
mod copy;
mod exchange;
mod upstream;

use std::sync::Arc;

use bytes::Bytes;
use h2::server::{Connection, SendResponse};
use http::Request;
use tokio::task::JoinSet;

use crate::http1::leg::Leg;
use crate::port::Way;
use crate::stream::{Arrival, BoxStream};
pub(crate) use upstream::Pool;
use upstream::Upstreams;

/// So far the sender of a stream may be ahead of its reader.
const STREAM_WINDOW: u32 = 256 * 1024;
/// So many streams a client may have at once.
const MOST_STREAMS: u32 = 1024;
/// So far the senders of all streams may be ahead. It covers all of them, so that a reader that stalls stops only its own
/// stream.
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * MOST_STREAMS;
/// The most bytes of one stream before another's turn.
const LARGEST_FRAME: u32 = 64 * 1024;
/// More than any server accepts.
const LARGEST_HEAD: u32 = 1024 * 1024;

/// Serves a client that speaks HTTP/2.
pub(crate) async fn serve(way: Way, client: BoxStream, arrival: Arrival, spare: Option<Leg>) {
    let upstreams = Arc::new(Upstreams::new(way, arrival, spare));
    let mut builder = h2::server::Builder::new();
    if upstreams.takes_extended_connect().await {
        builder.enable_connect_protocol();
    }
    builder
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(LARGEST_FRAME)
        .max_concurrent_streams(MOST_STREAMS)
        .max_header_list_size(LARGEST_HEAD);
    let mut connection = match builder.handshake(client).await {
        Ok(connection) => connection,
        Err(error) => return tracing::debug!(%error, "a client's HTTP/2 failed"),
    };
    let mut exchanges = JoinSet::new();
    while let Some((request, respond)) = next(&mut connection, &upstreams, &mut exchanges).await {
        let exchange = exchange::exchange(upstreams.clone(), request, respond);
        exchanges.spawn(exchange);
    }
    // The client has gone, so nobody is interested in the rest.
    exchanges.shutdown().await;
    upstreams.keep();
}

/// Waits for the next stream. When the application has said that it closes its connection, the client is told so.
async fn next(
    connection: &mut Connection<BoxStream, Bytes>,
    upstreams: &Upstreams,
    exchanges: &mut JoinSet<()>,
) -> Option<(Request<h2::RecvStream>, SendResponse<Bytes>)> {
    let mut was_told = false;
    loop {
        tokio::select! {
            accepted = connection.accept() => match accepted? {
                Ok(stream) => return Some(stream),
                Err(error) => {
                    tracing::debug!(%error, "a client's HTTP/2 failed");
                    return None;
                }
            },
            () = upstreams.application_closed(), if !was_told => {
                was_told = true;
                connection.graceful_shutdown();
            }
            Some(_) = exchanges.join_next(), if !exchanges.is_empty() => {}
        }
    }
}
