//! HTTP/2 over a link. Short operations are gRPC calls; bulk bytes are the raw bodies of requests and responses.
//!
//! The flow-control windows are chosen deliberately. Each stream may be ahead of its reader by one *stream window*; the
//! *connection window* covers as many of them as HTTP/2 allows, which is hundreds with full windows. So a stalled reader
//! only blocks its own stream, and costs a bounded amount of memory. HTTP/2's own keep-alive is disabled: the link detects a
//! dead connection, and survives it.
//!
//! A [`Client`] is a tower service, as generated gRPC clients need it; [`serve`] takes a tower service, as generated gRPC
//! servers provide it. [`body`] creates a body whose bytes are sent one part after the other.

mod body;
mod poll_last;

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

pub use self::body::{BodyDropped, BodySender, StreamingBody, body};
pub use self::poll_last::{ConnectionPolledLast, PollLast, poll_last};
use crate::dial::Pipe;
use crate::error::LinkError;

/// Any error of a body or a service.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Number of resets before the peer is treated as an attacker. Peers are authenticated here, and a program that closes a
/// thousand connections at once is not unusual.
const MAX_RESETS: usize = 64 * 1024;
/// Maximum number of bytes of a stream that wait for the link at the sender.
const SEND_BUFFER: usize = 512 * 1024;
/// Frames up to this size are merged into one write; larger ones are written directly.
const WRITE_BUFFER: usize = 16 * 1024;
const MAX_WINDOW: u32 = i32::MAX as u32;

/// Flow-control windows and frame size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// Window of each stream, in bytes.
    pub stream: u32,
    /// Maximum number of concurrent streams.
    pub streams: u32,
    /// Window of the connection, in bytes: what all streams together may be ahead of their readers.
    pub connection: u32,
    /// Maximum frame size: the number of bytes of one stream before another stream gets its turn.
    pub frame: u32,
}

/// The preferred maximum size of a chunk of a stream. With the overhead of HTTP/2, the link and TLS it is 128 KiB: twice what
/// the Kubernetes client library encrypts at once, without a remainder that would wake every task on the path once more.
pub const PREFERRED_CHUNK_SIZE: usize = 128 * 1024 - 256;

impl Default for Windows {
    fn default() -> Self {
        Self {
            // What a fast network carries in 40 ms.
            stream: 4 * 1024 * 1024,
            streams: 4096,
            // Hundreds of full windows.
            connection: MAX_WINDOW,
            frame: 128 * 1024,
        }
    }
}

impl Windows {
    fn connection(&self) -> u32 {
        let all = self.stream.saturating_mul(self.streams);
        all.min(self.connection).min(MAX_WINDOW)
    }
}

/// The client of an HTTP/2 connection over a link. Clones share the connection, which ends with the last clone.
#[derive(Debug, Clone)]
pub struct Client {
    send: SendRequest<BoxBody>,
}

impl Client {
    /// Starts HTTP/2 on a link or any other pipe, and spawns its connection task.
    pub async fn start(link: impl Pipe, windows: Windows) -> Result<Self, LinkError> {
        let executor = ConnectionPolledLast::default();
        let mut builder = hyper::client::conn::http2::Builder::new(executor);
        builder
            .initial_stream_window_size(windows.stream)
            .initial_connection_window_size(windows.connection())
            .max_frame_size(windows.frame)
            .initial_max_send_streams(windows.streams as usize)
            .max_send_buf_size(SEND_BUFFER)
            .max_concurrent_reset_streams(MAX_RESETS)
            .max_pending_accept_reset_streams(MAX_RESETS)
            .max_local_error_reset_streams(None);
        let (send, connection) = builder
            .handshake(TokioIo::new(buffered_writes(link)))
            .await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "HTTP/2 connection over link ended");
            }
        });
        Ok(Self { send })
    }

    /// Whether the connection is closed, so that no more requests can be sent.
    pub fn is_closed(&self) -> bool {
        self.send.is_closed()
    }

    /// Sends a request. Its URI only needs a path.
    pub fn send<B>(&mut self, request: Request<B>) -> ResponseFuture
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let response = self.try_send(boxed(request));
        Box::pin(async move { response.await.map_err(|failed| failed.error) })
    }

    /// Like [`send`](Self::send), but a request of which the peer got nothing is part of the error. Such a request can be
    /// sent again, over another connection.
    pub fn try_send(
        &mut self,
        request: Request<BoxBody>,
    ) -> impl Future<Output = Result<Response<Incoming>, SendError>> + Send + use<> {
        let (mut head, body) = request.into_parts();
        head.uri = with_origin(head.uri);
        let response = self.send.try_send_request(Request::from_parts(head, body));
        async move {
            response.await.map_err(|mut failed| SendError {
                unsent: failed.take_message().map(Box::new),
                error: failed.into_error().into(),
            })
        }
    }
}

/// A request that failed.
#[derive(Debug)]
pub struct SendError {
    /// The request, if nothing of it was sent because the connection had ended.
    pub unsent: Option<Box<Request<BoxBody>>>,
    pub error: LinkError,
}

/// A body of any type.
pub type BoxBody = UnsyncBoxBody<Bytes, BoxError>;

/// The same request, with a body of any type.
pub fn boxed<B>(request: Request<B>) -> Request<BoxBody>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    request.map(|body| body.map_err(Into::into).boxed_unsync())
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

/// Serves HTTP/2 on a link or any other pipe until the client disconnects, or until `shutdown` resolves: then pending
/// requests are completed, and no more are accepted.
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
        .max_pending_accept_reset_streams(MAX_RESETS)
        .max_local_error_reset_streams(None);
    let service = TowerToHyperService::new(service);
    let mut connection =
        pin!(builder.serve_connection(TokioIo::new(buffered_writes(link)), service));
    let mut shutdown = pin!(shutdown);
    tokio::select! {
        ended = poll_last(connection.as_mut()) => return Ok(ended?),
        () = shutdown.as_mut() => connection.as_mut().graceful_shutdown(),
    }
    Ok(poll_last(connection).await?)
}

/// Merges the small frames that HTTP/2 writes one by one, such as the head and the end of a message: a single packet wakes
/// the peer only once. HTTP/2 flushes whenever it has written all pending frames.
fn buffered_writes<P: AsyncWrite>(pipe: P) -> BufWriter<P> {
    BufWriter::with_capacity(WRITE_BUFFER, pipe)
}

/// HTTP/2 requires a scheme and a host, which have no meaning on a link.
fn with_origin(uri: Uri) -> Uri {
    let mut parts = uri.into_parts();
    parts.scheme.get_or_insert(Scheme::HTTP);
    parts
        .authority
        .get_or_insert_with(|| Authority::from_static("link"));
    if parts.path_and_query.is_none() {
        parts.path_and_query = Some(http::uri::PathAndQuery::from_static("/"));
    }
    // All three parts are set, so the URI is valid.
    Uri::from_parts(parts).unwrap_or_default()
}
