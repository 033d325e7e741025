//! HTTP/2 upstreams for tests. The path of a request selects their behaviour, and they record what they receive.

use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use h2::client::SendRequest;
use h2::ext::Protocol;
use h2::{Reason, RecvStream};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use splitter::{
    BoxFuture, BoxStream, ClaimGuard, ConnectionMeta, Destination, Filter, Memory, Mode,
    OnConflict, Port, Settings,
};
use tokio::io::DuplexStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::io::InspectReader;

use super::fixture::{NoticeLog, claim, meta};

/// An in-memory HTTP/2 upstream.
#[derive(Debug)]
pub(crate) struct Http2Upstream {
    name: &'static str,
    accepts_tunnels: bool,
    pub(crate) opened: watch::Sender<usize>,
    /// How many bytes of its output have been read.
    pub(crate) was_read: Arc<watch::Sender<usize>>,
    /// The received streams, in order.
    pub(crate) streams: watch::Sender<Vec<ReceivedStream>>,
}

/// What an upstream received on a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ReceivedStream {
    pub(crate) path: String,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Option<HeaderMap>,
    pub(crate) end: Option<Result<(), Reason>>,
}

impl Http2Upstream {
    pub(crate) fn new(name: &'static str) -> Arc<Self> {
        Arc::new(Self::named(name))
    }

    /// An upstream that accepts WebSockets.
    pub(crate) fn with_tunnels(name: &'static str) -> Arc<Self> {
        let mut upstream = Self::named(name);
        upstream.accepts_tunnels = true;
        Arc::new(upstream)
    }

    fn named(name: &'static str) -> Self {
        Self {
            name,
            accepts_tunnels: false,
            opened: watch::Sender::new(0),
            was_read: Arc::new(watch::Sender::new(0)),
            streams: watch::Sender::new(Vec::new()),
        }
    }

    pub(crate) fn opened(&self) -> usize {
        *self.opened.borrow()
    }

    /// Waits until the received streams satisfy the condition.
    pub(crate) async fn wait_until(&self, condition: impl FnMut(&Vec<ReceivedStream>) -> bool) {
        self.streams.subscribe().wait_for(condition).await.unwrap();
    }

    async fn serve(self: Arc<Self>, stream: DuplexStream) -> Result<(), h2::Error> {
        let mut builder = h2::server::Builder::new();
        builder.max_header_list_size(1024 * 1024);
        if self.accepts_tunnels {
            builder.enable_connect_protocol();
        }
        let mut connection = builder.handshake::<_, Bytes>(stream).await?;
        while let Some(stream) = connection.accept().await {
            let (request, respond) = stream?;
            match request.uri().path() {
                "/close" => connection.graceful_shutdown(),
                "/die" => return Ok(()),
                _ => {}
            }
            let index = self.streams.borrow().len();
            let path = request.uri().path().to_owned();
            self.streams.send_modify(|streams| {
                streams.push(ReceivedStream {
                    path,
                    ..ReceivedStream::default()
                });
            });
            tokio::spawn(self.clone().respond(index, request, respond));
        }
        Ok(())
    }

    /// Echoes the body and the trailers, or does what the path selects.
    async fn respond(
        self: Arc<Self>,
        index: usize,
        request: Request<RecvStream>,
        mut respond: h2::server::SendResponse<Bytes>,
    ) {
        let path = request.uri().path().to_owned();
        let is_tunnel = request.method() == Method::CONNECT;
        match path.as_str() {
            "/reset" => return respond.send_reset(Reason::ENHANCE_YOUR_CALM),
            "/silent" => return std::future::pending().await,
            // Never responds: waits until the proxy resets the stream.
            "/ignored" if self.name == "alice" => {
                let reset = poll_fn(|context| respond.poll_reset(context)).await;
                let end = reset.unwrap_or(Reason::INTERNAL_ERROR);
                return self.update(index, |received| received.end = Some(Err(end)));
            }
            "/hints" => {
                let hints = interim(StatusCode::EARLY_HINTS, "link", self.name);
                respond.send_informational(hints).unwrap();
            }
            _ => {}
        }
        if request.headers().contains_key("expect") {
            let interim_response = interim(StatusCode::CONTINUE, "x-name", self.name);
            respond.send_informational(interim_response).unwrap();
        }
        let mut send = respond
            .send_response(self.response(&request), false)
            .unwrap();
        if path == "/half" {
            send.send_data(Bytes::from_static(b"half"), false).unwrap();
            tokio::task::yield_now().await;
            return send.send_reset(Reason::INADEQUATE_SECURITY);
        }
        let mut body = request.into_body();
        let end = loop {
            match body.data().await {
                None => break Ok(()),
                Some(Err(error)) => break Err(error.reason().unwrap_or(Reason::INTERNAL_ERROR)),
                Some(Ok(data)) => {
                    let _ = body.flow_control().release_capacity(data.len());
                    self.update(index, |received| received.body.extend_from_slice(&data));
                    if path != "/quiet" {
                        send_all(&mut send, data).await;
                    }
                }
            }
        };
        let trailers = body.trailers().await.ok().flatten();
        self.update(index, |received| {
            received.trailers.clone_from(&trailers);
            received.end = Some(end);
        });
        if is_tunnel {
            let _ = send.send_data(Bytes::new(), true);
        } else {
            let mut trailers = trailers.unwrap_or_default();
            trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
            let _ = send.send_trailers(trailers);
        }
    }

    fn response(&self, request: &Request<RecvStream>) -> Response<()> {
        let long = request.headers().get("x-long");
        let protocol = request.extensions().get::<Protocol>();
        Response::builder()
            .header("x-name", self.name)
            .header("x-long-length", long.map_or(0, http::HeaderValue::len))
            .header("x-protocol", protocol.map_or("", |name| name.as_str()))
            .body(())
            .unwrap()
    }

    fn update(&self, index: usize, change: impl FnOnce(&mut ReceivedStream)) {
        self.streams
            .send_modify(|streams| change(&mut streams[index]));
    }
}

fn interim(status: StatusCode, header: &'static str, value: &'static str) -> Response<()> {
    Response::builder()
        .status(status)
        .header(header, value)
        .body(())
        .unwrap()
}

/// A test upstream as a destination.
#[derive(Debug)]
pub(crate) struct ToHttp2(pub(crate) Arc<Http2Upstream>);

impl Destination for ToHttp2 {
    fn open<'a>(&'a self, _: &'a ConnectionMeta) -> BoxFuture<'a, io::Result<BoxStream>> {
        Box::pin(async {
            let (stream, theirs) = tokio::io::duplex(64 * 1024);
            tokio::spawn(self.0.clone().serve(theirs));
            self.0.opened.send_modify(|opened| *opened += 1);
            let was_read = self.0.was_read.clone();
            // Counts the bytes that the proxy reads.
            let count = move |bytes: &[u8]| was_read.send_modify(|read| *read += bytes.len());
            Ok(Box::new(InspectReader::new(stream, count)) as BoxStream)
        })
    }
}

/// A port with an application, and a session of alice.
pub(crate) struct Http2TestPort {
    pub(crate) port: Arc<Port>,
    pub(crate) application: Arc<Http2Upstream>,
    pub(crate) alice: Arc<Http2Upstream>,
    /// How many client connections have ended.
    pub(crate) ended: Arc<watch::Sender<usize>>,
    pub(crate) notices: NoticeLog,
    memory: Memory,
    clients: Mutex<JoinSet<()>>,
    guards: Vec<ClaimGuard>,
}

impl Http2TestPort {
    /// Alice claims requests with the header `x-for: alice`.
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let (application, alice) = (
            Http2Upstream::new("application"),
            Http2Upstream::new("alice"),
        );
        let filter = Filter::header("^x-for: alice$").unwrap();
        Self::of(application, alice, Mode::Steal, filter, change)
    }

    pub(crate) fn of(
        application: Arc<Http2Upstream>,
        alice: Arc<Http2Upstream>,
        mode: Mode,
        filter: Filter,
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        let mut settings = Settings::default();
        change(&mut settings);
        let memory = settings.memory.clone();
        let mut fixture = Self {
            memory,
            clients: Mutex::default(),
            port: Arc::new(Port::new(Arc::new(ToHttp2(application.clone())), settings)),
            application,
            alice: alice.clone(),
            ended: Arc::new(watch::Sender::new(0)),
            notices: NoticeLog::default(),
            guards: Vec::new(),
        };
        fixture.claim(alice, mode, filter);
        fixture
    }

    /// Adds a session.
    pub(crate) fn claim(&mut self, upstream: Arc<Http2Upstream>, mode: Mode, filter: Filter) {
        self.claim_to(upstream.name, Arc::new(ToHttp2(upstream)), mode, filter);
    }

    pub(crate) fn claim_to(
        &mut self,
        name: &'static str,
        destination: Arc<dyn Destination>,
        mode: Mode,
        filter: Filter,
    ) {
        let mut claim = claim(name, mode, Some(filter), destination);
        claim.on_notice = self.notices.handler(name);
        let guard = self.port.claims().claim(claim, OnConflict::Abort).unwrap();
        self.guards.push(guard);
    }

    /// A client's connection before the HTTP/2 handshake.
    pub(crate) fn stream(&self) -> DuplexStream {
        let (client, served) = tokio::io::duplex(64 * 1024);
        let (port, ended) = (self.port.clone(), Arc::clone(&self.ended));
        self.clients.lock().unwrap().spawn(async move {
            port.serve(Box::new(served), meta()).await;
            ended.send_modify(|ended| *ended += 1);
        });
        client
    }

    /// Ends all connections of clients.
    pub(crate) fn disconnect_all(&self) {
        self.clients.lock().unwrap().abort_all();
    }

    /// The budget of the port.
    pub(crate) fn memory(&self) -> Memory {
        self.memory.clone()
    }

    pub(crate) async fn connect(&self) -> SendRequest<Bytes> {
        handshake(self.stream()).await
    }
}

/// Starts HTTP/2 on a client's connection.
pub(crate) async fn handshake(stream: DuplexStream) -> SendRequest<Bytes> {
    let (send, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    send.ready().await.unwrap()
}

pub(crate) fn request(path: &str, session: &str) -> Request<()> {
    Request::post(format!("http://host{path}"))
        .header("x-for", session)
        .body(())
        .unwrap()
}

pub(crate) fn name(response: &Response<RecvStream>) -> &str {
    response.headers()["x-name"].to_str().unwrap()
}

pub(crate) async fn read(mut body: RecvStream) -> (Vec<u8>, Option<HeaderMap>) {
    let mut content = Vec::new();
    while let Some(data) = body.data().await {
        let data = data.unwrap();
        let _ = body.flow_control().release_capacity(data.len());
        content.extend_from_slice(&data);
    }
    (content, body.trailers().await.unwrap())
}

pub(crate) async fn send_all(send: &mut h2::SendStream<Bytes>, mut data: Bytes) {
    while !data.is_empty() {
        send.reserve_capacity(data.len());
        let Some(Ok(capacity)) = poll_fn(|context| send.poll_capacity(context)).await else {
            return;
        };
        let part = data.split_to(capacity.min(data.len()));
        let _ = send.send_data(part, false);
    }
}
