//! Places that connections go to, in memory: what they got is written down, and what they answer says who they are.

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
    Arrival, BoxFuture, BoxStream, Claim, ClaimGuard, Destination, Filter, Mode, Notice, Notices,
    OnConflict, Port, Settings,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::sync::mpsc;
use tokio_util::io::InspectReader;

/// How a place answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Each request, with its name, the method, the path and the body.
    Answers,
    /// Takes everything and says nothing.
    Silent,
    /// Takes nothing and says nothing.
    Stuck,
    /// Closes at once.
    Closes,
    /// Takes what comes, and then something breaks.
    Breaks,
    /// The same, when this has come.
    BreaksAt(&'static str),
    /// Cannot be reached.
    Refuses,
    /// Speaks first, and then sends back what comes.
    SpeaksFirst,
    /// Answers any request with 101 and then sends back what comes.
    Upgrades,
}

/// A place.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) name: &'static str,
    manner: Mutex<Manner>,
    /// What it got, by connection.
    got: Mutex<Vec<Arc<Mutex<Vec<u8>>>>>,
    opened: AtomicUsize,
    /// Connections close after each answer.
    pub(crate) closes_after_answer: AtomicBool,
}

impl Place {
    pub(crate) fn new(name: &'static str, manner: Manner) -> Arc<Self> {
        Arc::new(Self {
            name,
            manner: Mutex::new(manner),
            got: Mutex::default(),
            opened: AtomicUsize::new(0),
            closes_after_answer: AtomicBool::new(false),
        })
    }

    pub(crate) fn set_manner(&self, manner: Manner) {
        *self.manner.lock().unwrap() = manner;
    }

    pub(crate) fn opened(&self) -> usize {
        self.opened.load(Ordering::SeqCst)
    }

    /// All that it got, one connection after the other.
    pub(crate) fn got(&self) -> String {
        let got = self.got.lock().unwrap();
        let all: Vec<u8> = got
            .iter()
            .flat_map(|one| one.lock().unwrap().clone())
            .collect();
        String::from_utf8_lossy(&all).into_owned()
    }

    pub(crate) fn got_length(&self) -> usize {
        let got = self.got.lock().unwrap();
        got.iter().map(|one| one.lock().unwrap().len()).sum()
    }

    /// Waits until it has got this.
    pub(crate) async fn wait_until_got(&self, wanted: &str) {
        while self.got() != wanted {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }

    async fn serve(self: Arc<Self>, stream: BoxStream, breaks: Arc<AtomicBool>) {
        let manner = *self.manner.lock().unwrap();
        match manner {
            Manner::Answers => self.answer(stream).await,
            Manner::Silent => {
                let mut stream = stream;
                let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
            }
            Manner::Stuck => {
                std::future::pending::<()>().await;
                drop(stream);
            }
            Manner::Closes | Manner::Refuses => {}
            Manner::Breaks => breaks.store(true, Ordering::SeqCst),
            Manner::BreaksAt(end) => {
                let mut stream = stream;
                let mut seen = Vec::new();
                while !seen.ends_with(end.as_bytes()) {
                    seen.push(stream.read_u8().await.unwrap());
                }
                breaks.store(true, Ordering::SeqCst);
            }
            Manner::SpeaksFirst => {
                let (mut read, mut write) = tokio::io::split(stream);
                let _ = write
                    .write_all(format!("220 {}\r\n", self.name).as_bytes())
                    .await;
                let _ = tokio::io::copy(&mut read, &mut write).await;
            }
            Manner::Upgrades => upgrade(stream).await,
        }
    }

    async fn answer(self: Arc<Self>, stream: BoxStream) {
        let service = service_fn(|request: Request<Incoming>| {
            let place = self.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body
                    .collect()
                    .await
                    .map(http_body_util::Collected::to_bytes);
                let text = format!(
                    "{} {} {} {}",
                    place.name,
                    head.method,
                    head.uri,
                    String::from_utf8_lossy(&body.unwrap_or_default())
                );
                let mut response = Response::new(Full::new(bytes::Bytes::from(text)));
                if place.closes_after_answer.load(Ordering::SeqCst) {
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
    let answer = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\n\r\n";
    let (mut read, mut write) = tokio::io::split(stream);
    let _ = write.write_all(answer).await;
    let _ = tokio::io::copy(&mut read, &mut write).await;
}

/// A place as a destination.
#[derive(Debug)]
pub(crate) struct To(pub(crate) Arc<Place>);

impl Destination for To {
    fn open<'a>(&'a self, _: &'a Arrival) -> BoxFuture<'a, io::Result<BoxStream>> {
        Box::pin(async {
            if *self.0.manner.lock().unwrap() == Manner::Refuses {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            self.0.opened.fetch_add(1, Ordering::SeqCst);
            let (ours, theirs) = tokio::io::duplex(64 * 1024);
            let got = Arc::<Mutex<Vec<u8>>>::default();
            self.0.got.lock().unwrap().push(got.clone());
            let breaks = Arc::<AtomicBool>::default();
            let record = move |bytes: &[u8]| got.lock().unwrap().extend_from_slice(bytes);
            let theirs = Box::new(InspectReader::new(theirs, record));
            tokio::spawn(self.0.clone().serve(theirs, breaks.clone()));
            Ok(Box::new(Breakable {
                stream: ours,
                breaks,
            }) as BoxStream)
        })
    }
}

/// A destination that leaves it to the test what becomes of its streams.
#[derive(Debug)]
pub(crate) struct ToTest(mpsc::UnboundedSender<DuplexStream>);

impl ToTest {
    pub(crate) fn new() -> (Arc<Self>, mpsc::UnboundedReceiver<DuplexStream>) {
        let (streams_to_test, streams) = mpsc::unbounded_channel();
        (Arc::new(Self(streams_to_test)), streams)
    }
}

impl Destination for ToTest {
    fn open<'a>(&'a self, _: &'a Arrival) -> BoxFuture<'a, io::Result<BoxStream>> {
        Box::pin(async {
            let (ours, theirs) = tokio::io::duplex(64 * 1024);
            self.0.send(theirs).map_err(io::Error::other)?;
            Ok(Box::new(ours) as BoxStream)
        })
    }
}

/// A stream whose end is an error if its other end broke.
struct Breakable {
    stream: DuplexStream,
    breaks: Arc<AtomicBool>,
}

impl AsyncRead for Breakable {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let poll = Pin::new(&mut self.stream).poll_read(context, buffer);
        let is_end = poll.is_ready() && buffer.filled().len() == before;
        if is_end && self.breaks.load(Ordering::SeqCst) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        poll
    }
}

impl AsyncWrite for Breakable {
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
pub(crate) struct Stage {
    pub(crate) port: Arc<Port>,
    pub(crate) application: Arc<Place>,
    pub(crate) notices: Told,
}

impl Stage {
    pub(crate) fn new(application: Manner) -> Self {
        Self::with(application, |_| {})
    }

    pub(crate) fn with(application: Manner, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = Settings::default();
        change(&mut settings);
        let application = Place::new("application", application);
        Self {
            port: Arc::new(Port::new(Arc::new(To(application.clone())), settings)),
            application,
            notices: Told::default(),
        }
    }

    pub(crate) fn notices(&self) -> Vec<(&'static str, Notice)> {
        self.notices.all()
    }

    /// A session that wants requests with the header `x-for` and its name.
    pub(crate) fn session(&self, name: &'static str, manner: Manner) -> (Arc<Place>, ClaimGuard) {
        let filter = Filter::header(&format!("^x-for: {name}$")).unwrap();
        self.claim(name, manner, Mode::Steal, Some(filter))
    }

    pub(crate) fn claim(
        &self,
        name: &'static str,
        manner: Manner,
        mode: Mode,
        filter: Option<Filter>,
    ) -> (Arc<Place>, ClaimGuard) {
        let place = Place::new(name, manner);
        let mut claim = claim(name, mode, filter, Arc::new(To(place.clone())));
        claim.notices = self.notices.tell(name);
        let guard = self.port.claims().claim(claim, OnConflict::Abort).unwrap();
        (place, guard)
    }

    /// A client's connection.
    pub(crate) fn connect(&self) -> DuplexStream {
        let (client, served) = tokio::io::duplex(64 * 1024);
        let port = self.port.clone();
        tokio::spawn(async move { port.serve(Box::new(served), arrival()).await });
        client
    }

    /// Sends bytes, ends, and reads all answers.
    pub(crate) async fn ask(&self, bytes: &str) -> String {
        let mut client = self.connect();
        client.write_all(bytes.as_bytes()).await.unwrap();
        client.shutdown().await.unwrap();
        let mut answers = Vec::new();
        client.read_to_end(&mut answers).await.unwrap();
        String::from_utf8_lossy(&answers).into_owned()
    }
}

pub(crate) fn arrival() -> Arrival {
    Arrival {
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
        held_for: Duration::ZERO,
        mode,
        filter,
        takes_probes: false,
        answer_within: None,
        tls: None,
        notices: Notices::default(),
        destination,
    }
}

/// What sessions were told, with the name of each.
#[derive(Debug, Default, Clone)]
pub(crate) struct Told(Arc<Mutex<Vec<(&'static str, Notice)>>>);

impl Told {
    pub(crate) fn all(&self) -> Vec<(&'static str, Notice)> {
        self.0.lock().unwrap().clone()
    }

    /// Tells a session.
    pub(crate) fn tell(&self, name: &'static str) -> Notices {
        let told = self.clone();
        Notices::new(move |notice, _| told.0.lock().unwrap().push((name, notice)))
    }
}

/// The last lines of answers: what the places said.
pub(crate) fn bodies(answers: &str) -> Vec<&str> {
    answers
        .split("HTTP/1.1 ")
        .skip(1)
        .filter_map(|answer| answer.split_once("\r\n\r\n"))
        .map(|(_, body)| body.trim_end())
        .collect()
}

/// Reads until this has come.
pub(crate) async fn read_until(client: &mut (impl AsyncRead + Unpin), wanted: &str) -> String {
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains(wanted) {
        match client.read_u8().await {
            Ok(byte) => seen.push(byte),
            Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(&seen)),
        }
    }
    String::from_utf8_lossy(&seen).into_owned()
}
