//! HTTP/2 over a link. Short operations are gRPC calls; bulk bytes are the raw bodies of requests and responses.
//!
//! The windows are chosen on purpose. Each stream may be ahead of its reader by one *stream window*; the *connection
//! window* covers as many of them as HTTP/2 allows, which is hundreds with full windows. So a reader that stalls holds up its
//! own stream and never another's, and costs a bounded amount of memory. HTTP/2's own keep-alive is off: the link notices a peer that is gone, and
//! survives it.
//!
//! A [`Client`] is a tower service, which is what a generated gRPC client wants; [`serve`] takes a tower service, which
//! is what a generated gRPC server is. [`body`] makes a body out of bytes that come one after the other.

mod body;
mod turn;

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::uri::{Authority, Scheme};
use http::{Request, Response, Uri};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncWrite, BufWriter};
use tower_service::Service;

pub use self::body::{Sender, Sent, Unread, body};
pub use self::turn::{AfterOthers, ConnectionAfterOthers, after_others};
use crate::dial::Pipe;
use crate::error::LinkError;

/// Whatever a body or a service can fail with.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Resets that a peer may cause before it is taken for an attacker. Peers are known here, and a program that closes a
/// thousand connections at once is not unusual.
const RESETS: usize = 64 * 1024;
/// What a stream may have waiting for the link at its sender.
const SEND_BUFFER: usize = 512 * 1024;
/// Frames up to this size are copied together; larger ones are written as they are.
const GATHERED: usize = 16 * 1024;
const LARGEST_WINDOW: u32 = i32::MAX as u32;

/// How far senders may be ahead of readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// Of each stream, in bytes.
    pub stream: u32,
    /// As many streams there may be at once.
    pub streams: u32,
    /// The most bytes of one stream before another's turn.
    pub frame: u32,
}

/// The most of a stream that is best given away at once. With what HTTP/2, the link and TLS add to it, it is 128 KiB: twice what
/// the library for Kubernetes encrypts at once, and no rest for which everybody on the way would have to be woken.
pub const PIECE: usize = 128 * 1024 - 256;

impl Default for Windows {
    fn default() -> Self {
        Self {
            // What a fast line carries in 40 ms.
            stream: 4 * 1024 * 1024,
            streams: 4096,
            frame: 128 * 1024,
        }
    }
}

impl Windows {
    fn connection(&self) -> u32 {
        let all = self.stream.saturating_mul(self.streams);
        all.min(LARGEST_WINDOW)
    }
}

/// The client of an HTTP/2 connection over a link. Clones share the connection, which ends with the last of them.
#[derive(Debug, Clone)]
pub struct Client {
    send: SendRequest<UnsyncBoxBody<Bytes, BoxError>>,
}

impl Client {
    /// Starts HTTP/2 on a link or any other pipe, and a task that runs it.
    pub async fn start(link: impl Pipe, windows: Windows) -> Result<Self, LinkError> {
        let executor = ConnectionAfterOthers::default();
        let mut builder = hyper::client::conn::http2::Builder::new(executor);
        builder
            .initial_stream_window_size(windows.stream)
            .initial_connection_window_size(windows.connection())
            .max_frame_size(windows.frame)
            .initial_max_send_streams(windows.streams as usize)
            .max_send_buf_size(SEND_BUFFER)
            .max_concurrent_reset_streams(RESETS)
            .max_pending_accept_reset_streams(RESETS)
            .max_local_error_reset_streams(None);
        let (send, connection) = builder.handshake(TokioIo::new(gathered(link))).await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "HTTP/2 over a link ended");
            }
        });
        Ok(Self { send })
    }

    /// Whether there is no use in sending more requests.
    pub fn is_closed(&self) -> bool {
        self.send.is_closed()
    }

    /// Sends a request; the path is enough as its address.
    pub fn send<B>(&mut self, request: Request<B>) -> ResponseFuture
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let (mut head, body) = request.into_parts();
        head.uri = with_origin(head.uri);
        let body = body.map_err(Into::into).boxed_unsync();
        let response = self.send.send_request(Request::from_parts(head, body));
        Box::pin(async move { Ok(response.await?) })
    }
}

/// The response to a request.
pub type ResponseFuture =
    Pin<Box<dyn Future<Output = Result<Response<Incoming>, LinkError>> + Send>>;

impl<B> Service<Request<B>> for Client
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Incoming>;
    type Error = LinkError;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        self.send.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        self.send(request)
    }
}

/// Serves HTTP/2 on a link or any other pipe until the client is done, or until `shutdown` is: then requests that have begun are
/// finished, and no more are taken.
pub async fn serve<S, B>(
    link: impl Pipe,
    windows: Windows,
    service: S,
    shutdown: impl Future<Output = ()>,
) -> Result<(), LinkError>
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    builder
        .initial_stream_window_size(windows.stream)
        .initial_connection_window_size(windows.connection())
        .max_frame_size(windows.frame)
        .max_concurrent_streams(windows.streams)
        .max_send_buf_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(RESETS)
        .max_local_error_reset_streams(None);
    let service = TowerToHyperService::new(service);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(gathered(link)), service));
    let mut shutdown = pin!(shutdown);
    tokio::select! {
        ended = after_others(connection.as_mut()) => return Ok(ended?),
        () = shutdown.as_mut() => connection.as_mut().graceful_shutdown(),
    }
    Ok(after_others(connection).await?)
}

/// Lets the small frames that HTTP/2 writes one by one, such as the head and the end of a message, leave together: one
/// packet wakes the peer once. HTTP/2 flushes whenever it has written what there is.
fn gathered<P: AsyncWrite>(pipe: P) -> BufWriter<P> {
    BufWriter::with_capacity(GATHERED, pipe)
}

/// HTTP/2 wants a scheme and a host, which mean nothing on a link.
fn with_origin(uri: Uri) -> Uri {
    let mut parts = uri.into_parts();
    parts.scheme.get_or_insert(Scheme::HTTP);
    parts
        .authority
        .get_or_insert_with(|| Authority::from_static("link"));
    if parts.path_and_query.is_none() {
        parts.path_and_query = Some(http::uri::PathAndQuery::from_static("/"));
    }
    // All three parts are there, so they fit together.
    Uri::from_parts(parts).unwrap_or_default()
}
