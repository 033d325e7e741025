//! One connection to the API server.

use std::future::{Future as _, poll_fn};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::Name;
use crate::body::Body;
use crate::endpoint::Endpoint;

/// How long it may take to connect, with TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A dead connection is detected in the sum of both.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// How much of one response waits in memory for a reader that is slow.
const STREAM_WINDOW: u32 = 128 * 1024;
/// The requests of one HTTP/2 connection. API servers allow 100 by default, and fewer if they are configured so.
pub(super) const MAX_STREAMS: usize = 64;
/// Streams without a reader must never stop the others, so there is room for all of them.
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * (MAX_STREAMS as u32 + 1);

const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// Opens connections.
pub(super) struct Dialer {
    address: String,
    port: u16,
    name: Name,
    any: TlsConnector,
    http1: TlsConnector,
}

/// An open connection.
pub(super) enum Connection {
    Shared(Shared),
    /// HTTP/1.1, for one request.
    Single(http1::SendRequest<Body>),
}

/// An HTTP/2 connection, which many requests use at once.
#[derive(Clone)]
pub(super) struct Shared {
    sender: http2::SendRequest<Body>,
    streams: Arc<AtomicUsize>,
    max_streams: Arc<AtomicUsize>,
}

/// The use of a shared connection by one request, until the end of its response.
pub(super) struct Lease {
    sender: http2::SendRequest<Body>,
    streams: Arc<AtomicUsize>,
}

impl Dialer {
    pub(super) fn new(endpoint: &Endpoint, name: Name, tls: &ClientConfig) -> Self {
        let connector = |protocols: &[&[u8]]| {
            let mut tls = tls.clone();
            tls.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
            TlsConnector::from(Arc::new(tls))
        };
        Self {
            address: endpoint.host().to_owned(),
            port: endpoint.port(),
            name,
            any: connector(&[HTTP2, HTTP1]),
            http1: connector(&[HTTP1]),
        }
    }

    /// Connects with the best protocol that the server speaks.
    pub(super) async fn dial(&self) -> io::Result<Connection> {
        let stream = self.connect(&self.any).await?;
        match stream.get_ref().1.alpn_protocol() {
            Some(protocol) if protocol == HTTP2 => shared(stream).await.map(Connection::Shared),
            _ => single(stream).await.map(Connection::Single),
        }
    }

    /// Connects for a request that changes the protocol, which only HTTP/1.1 allows.
    pub(super) async fn dial_http1(&self) -> io::Result<TlsStream<TcpStream>> {
        self.connect(&self.http1).await
    }

    async fn connect(&self, connector: &TlsConnector) -> io::Result<TlsStream<TcpStream>> {
        let connecting = async {
            let stream = TcpStream::connect((self.address.clone(), self.port)).await?;
            stream.set_nodelay(true)?;
            connector.connect(self.name.clone(), stream).await
        };
        timeout(CONNECT_TIMEOUT, connecting).await?
    }
}

async fn shared(stream: TlsStream<TcpStream>) -> io::Result<Shared> {
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    let max_streams = Arc::new(AtomicUsize::new(MAX_STREAMS));
    let limit = Arc::clone(&max_streams);
    let mut connection = Box::pin(connection);
    // Each request gets the error of the connection.
    tokio::spawn(poll_fn(move |context| {
        let result = connection.as_mut().poll(context);
        // The server says its limit at the beginning, and may change it.
        let current = connection.current_max_send_streams();
        limit.store(current.min(MAX_STREAMS), Ordering::Release);
        result.map(drop)
    }));
    Ok(Shared {
        sender,
        streams: Arc::default(),
        max_streams,
    })
}

async fn single(stream: TlsStream<TcpStream>) -> io::Result<http1::SendRequest<Body>> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}

impl Shared {
    /// Reserves a stream, if the connection works and has one.
    pub(super) fn lease(&self) -> Option<Lease> {
        if self.sender.is_closed() {
            return None;
        }
        let limit = self.max_streams.load(Ordering::Acquire);
        let reserve = |streams: usize| (streams < limit).then_some(streams + 1);
        self.streams
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, reserve)
            .ok()?;
        Some(Lease {
            sender: self.sender.clone(),
            streams: Arc::clone(&self.streams),
        })
    }

    pub(super) fn is_usable(&self) -> bool {
        !self.sender.is_closed()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.streams.load(Ordering::Acquire) == 0
    }
}

impl Lease {
    /// Sends the request. An error has the request again if nothing of it was sent.
    pub(super) async fn send(
        &mut self,
        request: Request<Body>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Body>>> {
        self.sender.try_send_request(request).await
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.streams.fetch_sub(1, Ordering::AcqRel);
    }
}
