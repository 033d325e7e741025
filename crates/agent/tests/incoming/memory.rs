//! The memory of an agent process while hostile clients and sessions use it. It must stay below the documented bound, and
//! others must be served.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::Body;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use protocol::outgoing::{TCP, TcpConnect};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::environment::{Environment, TARGET_IPV4, environment, socket_address};
use crate::load::memory;
use crate::programs::{socket, with_timeout};
use crate::session::{Session, with_header};
use crate::sharing::AgentProcess;

/// The documented bound of an agent with the default budget, in KiB.
const BOUND: u64 = 128 * 1024;
const PIECE: &[u8] = &[b'x'; 16 * 1024];
/// How many bytes a client offers on each stream: more than any window.
const OFFERED: usize = 1024 * 1024;
/// When nothing was sent for this time, all senders wait.
const QUIET: Duration = Duration::from_millis(300);

/// Listens inside of the target's network.
fn listen<F>(
    environment: &Environment,
    port: u16,
    serve: impl Fn(TcpStream) -> F + Send + 'static,
) -> JoinSet<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = environment
        .target
        .inside(|| std::net::TcpListener::bind(format!("0.0.0.0:{port}")).unwrap());
    listener.set_nonblocking(true).unwrap();
    let listener = TcpListener::from_std(listener).unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut serving = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            serving.spawn(serve(stream));
        }
    });
    tasks
}

/// An HTTP/2 application that responds to `GET`, and reads nothing else.
async fn stalling(stream: TcpStream) {
    let service = service_fn(|request: Request<Incoming>| async move {
        if request.method() != Method::GET {
            let _unread = request;
            std::future::pending::<()>().await;
        }
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"served"))))
    });
    let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .max_concurrent_streams(None)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

/// A body that is sent as far as flow control allows, and never ends.
struct Endless {
    left: usize,
    sent: Arc<AtomicU64>,
}

impl Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            return Poll::Pending;
        }
        self.left -= PIECE.len();
        self.sent.fetch_add(PIECE.len() as u64, Ordering::Relaxed);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(PIECE)))))
    }
}

/// Opens streams that are not read, on a connection of its own.
async fn stall(environment: &Environment, to: SocketAddr, streams: usize, sent: &Arc<AtomicU64>) {
    let socket = environment.client.inside(|| socket(to));
    let stream = with_timeout(socket.connect(to)).await.unwrap();
    let (client, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .initial_max_send_streams(streams)
        .handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    for _ in 0..streams {
        let mut client = client.clone();
        let left = OFFERED;
        let sent = Arc::clone(sent);
        tokio::spawn(async move {
            let request = Request::post("http://shop/").body(Endless { left, sent });
            let _ = client.send_request(request.unwrap()).await;
        });
    }
}

/// Waits until a number no longer grows.
async fn wait_until_quiet(number: &AtomicU64) {
    loop {
        let before = number.load(Ordering::Relaxed);
        sleep(QUIET).await;
        if number.load(Ordering::Relaxed) == before && before > 0 {
            return;
        }
    }
}

/// A request on a connection of its own is answered by the application.
async fn assert_served(environment: &Environment, to: SocketAddr) {
    let socket = environment.client.inside(|| socket(to));
    let exchange = async {
        let stream = socket.connect(to).await.unwrap();
        let handshake =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (mut client, connection) = handshake.await.unwrap();
        tokio::spawn(connection);
        let request = Request::get("http://shop/").body(Empty::<Bytes>::new());
        let response = client.send_request(request.unwrap()).await.unwrap();
        response.into_body().collect().await.unwrap().to_bytes()
    };
    assert_eq!(with_timeout(exchange).await, "served");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root"]
async fn stalled_clients_stay_below_the_documented_bound() {
    let environment = environment();
    admission::raise_descriptor_limit().unwrap();
    let _application = listen(&environment, 80, stalling);
    let to = socket_address(TARGET_IPV4, 80);
    // The last rows have fewer streams than in the bench, which takes longer.
    for (clients, streams) in [(1, 1024), (16, 256), (256, 16)] {
        let agent = AgentProcess::start(&environment);
        let session = agent.session().await;
        let stolen = session.subscribe(with_header(80, "Ada", "x-user: ada"));
        let _stolen = stolen.await.unwrap();
        assert_served(&environment, to).await;
        let before = memory(agent.pid());
        let sent = Arc::<AtomicU64>::default();
        for _ in 0..clients {
            stall(&environment, to, streams, &sent).await;
        }
        wait_until_quiet(&sent).await;
        assert_served(&environment, to).await;
        let after = memory(agent.pid());
        eprintln!(
            "{clients} x {streams} stalled streams: {before} KiB before, {after} KiB with them"
        );
        assert!(after < BOUND, "{clients} x {streams}: {after} KiB");
    }
}

/// A connection that is not read when it is stopped.
struct StoppedReader {
    stream: TcpStream,
    is_stopped: Arc<AtomicBool>,
}

impl AsyncRead for StoppedReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_stopped.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for StoppedReader {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root"]
async fn a_session_that_does_not_read_stays_below_the_documented_bound() {
    const STREAMS: usize = 400;
    let environment = environment();
    let sent = Arc::<AtomicU64>::default();
    let counter = Arc::clone(&sent);
    let begin = watch::Sender::new(false);
    let beginning = begin.subscribe();
    let _flood = listen(&environment, 7000, move |mut stream| {
        let counter = Arc::clone(&counter);
        let mut beginning = beginning.clone();
        async move {
            let _ = beginning.wait_for(|has_begun| *has_begun).await;
            while stream.write_all(PIECE).await.is_ok() {
                counter.fetch_add(PIECE.len() as u64, Ordering::Relaxed);
            }
        }
    });
    let agent = AgentProcess::start(&environment);
    let is_stopped = Arc::<AtomicBool>::default();
    let stream = StoppedReader {
        stream: agent.connect().await,
        is_stopped: Arc::clone(&is_stopped),
    };
    // Only its socket stops the agent.
    let session = Session::with_window(stream, 1 << 30).await;
    let connect = TcpConnect {
        address: socket_address("127.0.0.1", 7000),
        bind: None,
    };
    let mut open = Vec::new();
    for _ in 0..STREAMS {
        let stream = session.open_stream(TCP, connect.to_headers());
        open.push(with_timeout(stream).await);
    }
    is_stopped.store(true, Ordering::Relaxed);
    begin.send_replace(true);
    wait_until_quiet(&sent).await;
    let memory = memory(agent.pid());
    eprintln!("a session that does not read {STREAMS} streams: {memory} KiB");
    assert!(memory < BOUND, "{memory} KiB");
    // Another session is served.
    let other = agent.session().await;
    let stolen = other.subscribe(with_header(80, "Grace", "x-user: grace"));
    with_timeout(stolen).await.unwrap();
}
