//! Hostile clients cannot make the proxy keep more than its budget, and others are served meanwhile.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Reason, SendStream};
use http::{HeaderValue, Request, StatusCode};
use splitter::{
    BoxFuture, BoxStream, ConnectionMeta, DEFAULT_MEMORY, Destination, Filter, Memory, Mode, Port,
    Settings,
};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::time::{sleep, timeout};

use super::fixture::{Behavior, TestPort, ToTest, meta};
use super::http2_fixture::{Http2TestPort, name, read, request, send_all};

const MIB: usize = 1024 * 1024;
/// With paused time, this much time passes when no task has anything to do.
const UNTIL_IDLE: Duration = Duration::from_millis(1);

/// A request of another client is answered by the application.
async fn is_served(fixture: &Http2TestPort) {
    let mut client = fixture.connect().await;
    let (response, mut body) = client.send_request(request("/", "other"), false).unwrap();
    body.send_data(Bytes::from_static(b"hello"), true).unwrap();
    let response = response.await.unwrap();
    assert_eq!(name(&response), "application");
    assert_eq!(read(response.into_body()).await.0, b"hello");
}

/// Opens streams that the application never reads, and sends what flow control allows. Counts what was sent.
fn stall(mut client: SendRequest<Bytes>, streams: usize, sent: &Arc<AtomicUsize>) {
    let sent = Arc::clone(sent);
    tokio::spawn(async move {
        for _ in 0..streams {
            let Ok(ready) = client.ready().await else {
                return;
            };
            client = ready;
            let opened = client.send_request(request("/silent", "other"), false);
            let Ok((response, body)) = opened else {
                return;
            };
            tokio::spawn(fill(response, body, Arc::clone(&sent)));
        }
    });
}

async fn fill(
    _response: h2::client::ResponseFuture,
    mut body: SendStream<Bytes>,
    sent: Arc<AtomicUsize>,
) {
    const PIECE: &[u8] = &[b'x'; 16 * 1024];
    loop {
        body.reserve_capacity(PIECE.len());
        let Some(Ok(capacity)) = poll_fn(|context| body.poll_capacity(context)).await else {
            return;
        };
        let piece = PIECE.len().min(capacity);
        if body
            .send_data(Bytes::from_static(&PIECE[..piece]), false)
            .is_err()
        {
            return;
        }
        sent.fetch_add(piece, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn stalled_streams_are_bounded_and_other_clients_are_served() {
    for (clients, streams) in [(1, 1024), (16, 256), (256, 16)] {
        let fixture = Http2TestPort::new();
        let memory = fixture.memory();
        let sent = Arc::<AtomicUsize>::default();
        for _ in 0..clients {
            stall(fixture.connect().await, streams, &sent);
        }
        sleep(UNTIL_IDLE).await;
        assert!(sent.load(Ordering::Relaxed) > 0);
        is_served(&fixture).await;
        // Those that are evicted release theirs a moment later.
        assert!(
            memory.peak() <= DEFAULT_MEMORY + 8 * MIB,
            "{clients} clients: {memory:?}"
        );
    }
}

/// A single client does not need the whole budget: its windows stop it.
#[tokio::test(start_paused = true)]
async fn a_client_with_many_stalled_streams_leaves_most_of_the_budget() {
    let fixture = Http2TestPort::new();
    let sent = Arc::<AtomicUsize>::default();
    stall(fixture.connect().await, 200, &sent);
    sleep(UNTIL_IDLE).await;
    assert!(sent.load(Ordering::Relaxed) < 20 * MIB);
    is_served(&fixture).await;
}

#[tokio::test(start_paused = true)]
async fn memory_is_released_when_clients_disconnect() {
    let fixture = Http2TestPort::new();
    let (memory, sent) = (fixture.memory(), Arc::default());
    let idle = memory.used();
    {
        let client = fixture.connect().await;
        stall(client, 100, &sent);
        sleep(UNTIL_IDLE).await;
        assert!(memory.used() > MIB, "{memory:?}");
    }
    fixture.disconnect_all();
    while memory.used() > idle {
        sleep(UNTIL_IDLE).await;
    }
}

#[tokio::test]
async fn a_head_above_the_limit_is_refused() {
    let fixture = Http2TestPort::new();
    let mut client = fixture.connect().await;
    let mut large = request("/", "other");
    let value = HeaderValue::from_str(&"x".repeat(80 * 1024)).unwrap();
    large.headers_mut().insert("x-long", value);
    let (response, _) = client.send_request(large, true).unwrap();
    assert_eq!(
        response.await.unwrap().status(),
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE
    );
    assert_eq!(fixture.application.streams.borrow().len(), 0);
    is_served(&fixture).await;
}

/// A request whose headers are one byte each when compressed.
fn bomb() -> Request<()> {
    let mut bomb = request("/silent", "other");
    for _ in 0..1800 {
        bomb.headers_mut().append("a", HeaderValue::from_static(""));
    }
    bomb
}

#[tokio::test(start_paused = true)]
async fn heads_that_are_small_only_when_compressed_are_charged_and_refused() {
    let fixture = Http2TestPort::new();
    let memory = fixture.memory();
    let mut client = fixture.connect().await;
    let mut responses = Vec::new();
    for _ in 0..500 {
        client = client.ready().await.unwrap();
        responses.push(client.send_request(bomb(), false).unwrap());
    }
    sleep(UNTIL_IDLE).await;
    let accepted = fixture.application.streams.borrow().len();
    assert!(accepted > 0 && accepted < 100, "{accepted} were accepted");
    assert!(memory.peak() < DEFAULT_MEMORY, "{memory:?}");
    // The client may send the others again.
    let (response, _) = responses.pop().unwrap();
    let error = response.await.unwrap_err();
    assert_eq!(error.reason(), Some(Reason::REFUSED_STREAM));
    is_served(&fixture).await;
}

/// Trailers wait behind a body that is not read.
#[tokio::test(start_paused = true)]
async fn trailers_that_wait_are_charged() {
    let fixture = Http2TestPort::new();
    let memory = fixture.memory();
    let mut client = fixture.connect().await;
    let trailers = bomb().headers().clone();
    let mut waiting = Vec::new();
    for _ in 0..20 {
        client = client.ready().await.unwrap();
        let (response, mut body) = client
            .send_request(request("/silent", "other"), false)
            .unwrap();
        // The upstream's window is smaller than this, so something of it waits.
        send_all(&mut body, Bytes::from(vec![b'x'; 128 * 1024])).await;
        body.send_trailers(trailers.clone()).unwrap();
        waiting.push((response, body));
    }
    sleep(UNTIL_IDLE).await;
    let heads = 20 * 1800 * 128;
    assert!(memory.used() > heads, "{memory:?}");
    is_served(&fixture).await;
}

/// A session that never becomes reachable.
#[derive(Debug)]
struct Unreachable;

impl Destination for Unreachable {
    fn open<'a>(&'a self, _: &'a ConnectionMeta) -> BoxFuture<'a, io::Result<BoxStream>> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_resets_leave_nothing_behind() {
    let mut fixture = Http2TestPort::new();
    let filter = Filter::header("^x-for: bob$").unwrap();
    fixture.claim_to("bob", Arc::new(Unreachable), Mode::Steal, filter);
    let mut client = fixture.connect().await;
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    sleep(UNTIL_IDLE).await;
    let before = tasks();
    for _ in 0..100 {
        let mut open = Vec::new();
        for _ in 0..100 {
            client = client.ready().await.unwrap();
            open.push(client.send_request(request("/", "bob"), true).unwrap());
        }
        // All of them are accepted before they are reset.
        sleep(UNTIL_IDLE).await;
    }
    sleep(UNTIL_IDLE).await;
    let left = tasks().saturating_sub(before);
    assert!(left < 10, "{left} tasks are left");
    is_served(&fixture).await;
}

/// A client's end of a connection that reads nothing when it is stopped.
struct StoppedReader {
    stream: DuplexStream,
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

/// The client's windows are large, but it does not read its socket.
#[tokio::test(start_paused = true)]
async fn responses_that_are_not_read_are_bounded() {
    const STREAMS: usize = 256;
    let fixture = Http2TestPort::new();
    let is_stopped = Arc::<AtomicBool>::default();
    let stream = StoppedReader {
        stream: fixture.stream(),
        is_stopped: Arc::clone(&is_stopped),
    };
    let (mut client, connection) = h2::client::Builder::new()
        .initial_window_size(1 << 30)
        .initial_connection_window_size(1 << 30)
        .handshake::<_, Bytes>(stream)
        .await
        .unwrap();
    tokio::spawn(connection);
    let mut open = Vec::new();
    for _ in 0..STREAMS {
        client = client.ready().await.unwrap();
        let (response, body) = client.send_request(request("/", "other"), false).unwrap();
        open.push((response.await.unwrap(), body));
    }
    is_stopped.store(true, Ordering::Relaxed);
    let read_before = *fixture.application.was_read.borrow();
    for (_, body) in &mut open {
        // The application echoes it.
        let echo = send_all(body, Bytes::from(vec![b'x'; 256 * 1024]));
        let _ = timeout(UNTIL_IDLE, echo).await;
    }
    sleep(UNTIL_IDLE).await;
    let held = *fixture.application.was_read.borrow() - read_before;
    assert!(held > MIB && held < 24 * MIB, "{held} bytes");
    is_served(&fixture).await;
}

/// Clients of HTTP/1 that do not read their responses. When memory is scarce, each of them may hold less.
#[tokio::test(start_paused = true)]
async fn slow_readers_of_http1_share_the_budget() {
    const CLIENTS: usize = 100;
    const PIPE: usize = 64 * 1024;
    let memory = Memory::new(2 * MIB);
    let (to_application, mut application) = ToTest::new();
    let (to_alice, _alice) = ToTest::new();
    let settings = Settings {
        memory: memory.clone(),
        ..Settings::default()
    };
    let port = Arc::new(Port::new(to_application, settings));
    let filter = Filter::header("^x-for: alice$").unwrap();
    let claim = super::fixture::claim("alice", Mode::Steal, Some(filter), to_alice);
    let _guard = port
        .claims()
        .claim(claim, splitter::OnConflict::Abort)
        .unwrap();
    let mut open = Vec::new();
    let mut held = 0;
    for _ in 0..CLIENTS {
        let (mut client, served) = tokio::io::duplex(PIPE);
        let port = port.clone();
        tokio::spawn(async move { port.serve(Box::new(served), meta()).await });
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let mut server = application.recv().await.unwrap();
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 9000000\r\n\r\n";
        server.write_all(head).await.unwrap();
        let mut sent = 0;
        while let Ok(Ok(count)) = timeout(UNTIL_IDLE, server.write(&[b'x'; 4096])).await {
            sent += count;
        }
        // The pipes of the test hold the rest.
        held += sent.saturating_sub(2 * PIPE);
        open.push((client, server));
    }
    assert!(held < 2 * MIB, "{held} bytes");
    assert!(memory.peak() < 3 * MIB, "{memory:?}");
}

#[tokio::test]
async fn a_served_client_leaves_nothing_charged() {
    let fixture = TestPort::new(Behavior::Responds);
    let (_alice, _guard) = fixture.session("alice", Behavior::Responds);
    let request = "POST / HTTP/1.1\r\nX-For: alice\r\nContent-Length: 4\r\n\r\nbody";
    assert!(
        fixture
            .exchange(request)
            .await
            .contains("alice POST / body")
    );
    let memory = &fixture.memory;
    while memory.used() > 0 {
        tokio::task::yield_now().await;
    }
    assert!(memory.peak() > 0);
}
