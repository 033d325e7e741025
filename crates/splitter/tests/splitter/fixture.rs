//! In-memory upstreams for tests. They record the bytes that they receive, and their responses contain their name.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use splitter::{
    BoxFuture, BoxStream, Claim, ClaimGuard, ConnectionMeta, Destination, Filter, Memory, Mode,
    Notice, NoticeHandler, OnConflict, Port, Settings,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::sync::mpsc;
use tokio_util::io::InspectReader;

/// How an upstream behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Behavior {
    /// Responds to each request with its name, the method, the path and the body.
    Responds,
    /// Reads everything and sends nothing.
    Silent,
    /// Reads nothing and sends nothing.
    Stalls,
    /// Closes the connection immediately.
    Closes,
    /// Resets the connection.
    Resets,
    /// Resets the connection after it has received this text.
    ResetsAfter(&'static str),
    /// Refuses connections.
    Refuses,
    /// Speaks first, and then echoes.
    SpeaksFirst,
    /// Responds to any request with 101, and then echoes.
    Upgrades,
}

/// An in-memory upstream.
#[derive(Debug)]
pub(crate) struct TestUpstream {
    pub(crate) name: &'static str,
    behavior: Mutex<Behavior>,
    /// The received bytes, by connection.
    received: Mutex<Vec<Arc<Mutex<Vec<u8>>>>>,
    opened: AtomicUsize,
    /// Connections are closed after each response.
    pub(crate) closes_after_response: AtomicBool,
}

impl TestUpstream {
    pub(crate) fn new(name: &'static str, behavior: Behavior) -> Arc<Self> {
        Arc::new(Self {
            name,
            behavior: Mutex::new(behavior),
            received: Mutex::default(),
            opened: AtomicUsize::new(0),
            closes_after_response: AtomicBool::new(false),
        })
    }

    pub(crate) fn set_behavior(&self, behavior: Behavior) {
        *self.behavior.lock().unwrap() = behavior;
    }

    pub(crate) fn opened(&self) -> usize {
        self.opened.load(Ordering::SeqCst)
    }

    /// All received bytes, one connection after the other.
    pub(crate) fn received(&self) -> String {
        let received = self.received.lock().unwrap();
        let all: Vec<u8> = received
            .iter()
            .flat_map(|one| one.lock().unwrap().clone())
            .collect();
        String::from_utf8_lossy(&all).into_owned()
    }

    pub(crate) fn received_length(&self) -> usize {
        let received = self.received.lock().unwrap();
        received.iter().map(|one| one.lock().unwrap().len()).sum()
    }

    /// Waits until it has received exactly this.
    pub(crate) async fn wait_until_received(&self, expected: &str) {
        while self.received() != expected {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }

    async fn serve(self: Arc<Self>, stream: BoxStream, resets: Arc<AtomicBool>) {
        let behavior = *self.behavior.lock().unwrap();
        match behavior {
            Behavior::Responds => self.respond(stream).await,
            Behavior::Silent => {
                let mut stream = stream;
                let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
            }
            Behavior::Stalls => {
                std::future::pending::<()>().await;
                drop(stream);
            }
            Behavior::Closes | Behavior::Refuses => {}
            Behavior::Resets => resets.store(true, Ordering::SeqCst),
            Behavior::ResetsAfter(end) => {
                let mut stream = stream;
                let mut seen = Vec::new();
                while !seen.ends_with(end.as_bytes()) {
                    seen.push(stream.read_u8().await.unwrap());
                }
                resets.store(true, Ordering::SeqCst);
            }
            Behavior::SpeaksFirst => {
                let (mut read, mut write) = tokio::io::split(stream);
                let _ = write
                    .write_all(format!("220 {}\r\n", self.name).as_bytes())
                    .await;
                let _ = tokio::io::copy(&mut read, &mut write).await;
            }
            Behavior::Upgrades => upgrade(stream).await,
        }
    }

    async fn respond(self: Arc<Self>, stream: BoxStream) {
        let service = service_fn(|request: Request<Incoming>| {
            let upstream = self.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body
                    .collect()
                    .await
                    .map(http_body_util::Collected::to_bytes);
                let text = format!(
                    "{} {} {} {}",
                    upstream.name,
                    head.method,
                    head.uri,
                    String::from_utf8_lossy(&body.unwrap_or_default())
                );
                let mut response = Response::new(Full::new(bytes::Bytes::from(text)));
                if upstream.closes_after_response.load(Ordering::SeqCst) {
                    let close = http::HeaderValue::from_static("close");
                    response.headers_mut().insert("connection", close);
                }
                Ok::<_, Infallible>(response)
            }
        });
        let _ = hyper::server::conn::http1::Builder::new()
            .half_close(true)
            .auto_date_header(false)
            .serve_connection(TokioIo::new(stream), service)
            .await;
    }
}

async fn upgrade(mut stream: BoxStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    let response = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\n\r\n";
    let (mut read, mut write) = tokio::io::split(stream);
    let _ = write.write_all(response).await;
    let _ = tokio::io::copy(&mut read, &mut write).await;
}

/// A test upstream as a destination.
#[derive(Debug)]
pub(crate) struct ToUpstream(pub(crate) Arc<TestUpstream>);

impl Destination for ToUpstream {
    fn open<'a>(&'a self, _: &'a ConnectionMeta) -> BoxFuture<'a, io::Result<BoxStream>> {
        Box::pin(async {
            if *self.0.behavior.lock().unwrap() == Behavior::Refuses {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            self.0.opened.fetch_add(1, Ordering::SeqCst);
            let (ours, theirs) = tokio::io::duplex(64 * 1024);
            let received = Arc::<Mutex<Vec<u8>>>::default();
            self.0.received.lock().unwrap().push(received.clone());
            let resets = Arc::<AtomicBool>::default();
            let record = move |bytes: &[u8]| received.lock().unwrap().extend_from_slice(bytes);
            let theirs = Box::new(InspectReader::new(theirs, record));
            tokio::spawn(self.0.clone().serve(theirs, resets.clone()));
            Ok(Box::new(Resettable {
                stream: ours,
                resets,
            }) as BoxStream)
        })
    }
}

/// A destination whose streams are handled by the test.
#[derive(Debug)]
pub(crate) struct ToTest(mpsc::UnboundedSender<DuplexStream>);

impl ToTest {
    pub(crate) fn new() -> (Arc<Self>, mpsc::UnboundedReceiver<DuplexStream>) {
        let (streams_to_test, streams) = mpsc::unbounded_channel();
        (Arc::new(Self(streams_to_test)), streams)
    }
}

impl Destination for ToTest {
    fn open<'a>(&'a self, _: &'a ConnectionMeta) -> BoxFuture<'a, io::Result<BoxStream>> {
        Box::pin(async {
            let (ours, theirs) = tokio::io::duplex(64 * 1024);
            self.0.send(theirs).map_err(io::Error::other)?;
            Ok(Box::new(ours) as BoxStream)
        })
    }
}

/// A stream that ends with an error if its other end has been reset.
struct Resettable {
    stream: DuplexStream,
    resets: Arc<AtomicBool>,
}

impl AsyncRead for Resettable {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let poll = Pin::new(&mut self.stream).poll_read(context, buffer);
        let is_end = poll.is_ready() && buffer.filled().len() == before;
        if is_end && self.resets.load(Ordering::SeqCst) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        poll
    }
}

impl AsyncWrite for Resettable {
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

/// A port with an application behind it.
#[derive(Debug)]
pub(crate) struct TestPort {
    pub(crate) port: Arc<Port>,
    pub(crate) application: Arc<TestUpstream>,
    pub(crate) notices: NoticeLog,
    pub(crate) memory: Memory,
}

impl TestPort {
    pub(crate) fn new(application: Behavior) -> Self {
        Self::with(application, |_| {})
    }

    pub(crate) fn with(application: Behavior, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = Settings::default();
        change(&mut settings);
        let application = TestUpstream::new("application", application);
        Self {
            memory: settings.memory.clone(),
            port: Arc::new(Port::new(
                Arc::new(ToUpstream(application.clone())),
                settings,
            )),
            application,
            notices: NoticeLog::default(),
        }
    }

    pub(crate) fn notices(&self) -> Vec<(&'static str, Notice)> {
        self.notices.all()
    }

    /// A session that claims requests with the header `x-for: <name>`.
    pub(crate) fn session(
        &self,
        name: &'static str,
        behavior: Behavior,
    ) -> (Arc<TestUpstream>, ClaimGuard) {
        let filter = Filter::header(&format!("^x-for: {name}$")).unwrap();
        self.claim(name, behavior, Mode::Steal, Some(filter))
    }

    pub(crate) fn claim(
        &self,
        name: &'static str,
        behavior: Behavior,
        mode: Mode,
        filter: Option<Filter>,
    ) -> (Arc<TestUpstream>, ClaimGuard) {
        let upstream = TestUpstream::new(name, behavior);
        let mut claim = claim(name, mode, filter, Arc::new(ToUpstream(upstream.clone())));
        claim.on_notice = self.notices.handler(name);
        let guard = self.port.claims().claim(claim, OnConflict::Abort).unwrap();
        (upstream, guard)
    }

    /// A client's connection.
    pub(crate) fn connect(&self) -> DuplexStream {
        let (client, served) = tokio::io::duplex(64 * 1024);
        let port = self.port.clone();
        tokio::spawn(async move { port.serve(Box::new(served), meta()).await });
        client
    }

    /// Sends bytes, ends the stream, and reads all responses.
    pub(crate) async fn exchange(&self, bytes: &str) -> String {
        let mut client = self.connect();
        client.write_all(bytes.as_bytes()).await.unwrap();
        client.shutdown().await.unwrap();
        let mut responses = Vec::new();
        client.read_to_end(&mut responses).await.unwrap();
        String::from_utf8_lossy(&responses).into_owned()
    }
}

pub(crate) fn meta() -> ConnectionMeta {
    ConnectionMeta {
        client: SocketAddr::from((Ipv4Addr::LOCALHOST, 40_000)),
        server: SocketAddr::from((Ipv4Addr::LOCALHOST, 80)),
        tls: None,
    }
}

pub(crate) fn claim(
    holder: &str,
    mode: Mode,
    filter: Option<Filter>,
    destination: Arc<dyn Destination>,
) -> Claim {
    Claim {
        holder: holder.to_owned(),
        owner: None,
        age: Duration::ZERO,
        mode,
        filter,
        takes_probes: false,
        response_timeout: None,
        tls: None,
        on_notice: NoticeHandler::default(),
        destination,
    }
}

/// Records the notices of all sessions, with the session's name.
#[derive(Debug, Default, Clone)]
pub(crate) struct NoticeLog(Arc<Mutex<Vec<(&'static str, Notice)>>>);

impl NoticeLog {
    pub(crate) fn all(&self) -> Vec<(&'static str, Notice)> {
        self.0.lock().unwrap().clone()
    }

    /// The handler of one session.
    pub(crate) fn handler(&self, name: &'static str) -> NoticeHandler {
        let log = self.clone();
        NoticeHandler::new(move |notice, _| log.0.lock().unwrap().push((name, notice)))
    }
}

/// The bodies of responses.
pub(crate) fn bodies(responses: &str) -> Vec<&str> {
    responses
        .split("HTTP/1.1 ")
        .skip(1)
        .filter_map(|response| response.split_once("\r\n\r\n"))
        .map(|(_, body)| body.trim_end())
        .collect()
}

/// Reads until the text has been received.
pub(crate) async fn read_until(client: &mut (impl AsyncRead + Unpin), expected: &str) -> String {
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains(expected) {
        match client.read_u8().await {
            Ok(byte) => seen.push(byte),
            Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(&seen)),
        }
    }
    String::from_utf8_lossy(&seen).into_owned()
}
