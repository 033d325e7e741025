//! Places that speak HTTP/2. What they do is said by the path, and what they got is written down.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::ext::Protocol;
use h2::{Reason, RecvStream};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use splitter::{
    Arrival, BoxFuture, BoxStream, ClaimGuard, Destination, Filter, Mode, OnConflict, Port,
    Settings,
};
use tokio::io::DuplexStream;
use tokio::sync::watch;
use tokio_util::io::InspectReader;

use super::stage::{Told, arrival, claim};

/// A place that speaks HTTP/2.
#[derive(Debug)]
pub(crate) struct Http2Place {
    name: &'static str,
    takes_tunnels: bool,
    pub(crate) opened: watch::Sender<usize>,
    /// How many bytes of it have been read.
    pub(crate) was_read: Arc<watch::Sender<usize>>,
    /// The streams that it got, in their order.
    pub(crate) streams: watch::Sender<Vec<Got>>,
}

/// What a place got of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Got {
    pub(crate) path: String,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Option<HeaderMap>,
    pub(crate) end: Option<Result<(), Reason>>,
}

impl Http2Place {
    pub(crate) fn new(name: &'static str) -> Arc<Self> {
        Arc::new(Self::named(name))
    }

    /// A place that takes WebSockets.
    pub(crate) fn with_tunnels(name: &'static str) -> Arc<Self> {
        let mut place = Self::named(name);
        place.takes_tunnels = true;
        Arc::new(place)
    }

    fn named(name: &'static str) -> Self {
        Self {
            name,
            takes_tunnels: false,
            opened: watch::Sender::new(0),
            was_read: Arc::new(watch::Sender::new(0)),
            streams: watch::Sender::new(Vec::new()),
        }
    }

    pub(crate) fn opened(&self) -> usize {
        *self.opened.borrow()
    }

    /// Waits until what it got is so.
    pub(crate) async fn wait_until(&self, is_so: impl FnMut(&Vec<Got>) -> bool) {
        self.streams.subscribe().wait_for(is_so).await.unwrap();
    }

    async fn serve(self: Arc<Self>, stream: DuplexStream) -> Result<(), h2::Error> {
        let mut builder = h2::server::Builder::new();
        builder.max_header_list_size(1024 * 1024);
        if self.takes_tunnels {
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
                streams.push(Got {
                    path,
                    ..Got::default()
                });
            });
            tokio::spawn(self.clone().answer(index, request, respond));
        }
        Ok(())
    }

    /// Sends back what comes as it comes, with trailers, or does what the path says.
    async fn answer(
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
            // Whoever waits for it gives up some day.
            "/ignored" if self.name == "alice" => {
                let reset = poll_fn(|context| respond.poll_reset(context)).await;
                let end = reset.unwrap_or(Reason::INTERNAL_ERROR);
                return self.note(index, |got| got.end = Some(Err(end)));
            }
            "/hints" => {
                let hints = interim(StatusCode::EARLY_HINTS, "link", self.name);
                respond.send_informational(hints).unwrap();
            }
            _ => {}
        }
        if request.headers().contains_key("expect") {
            let go_on = interim(StatusCode::CONTINUE, "x-name", self.name);
            respond.send_informational(go_on).unwrap();
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
                    self.note(index, |got| got.body.extend_from_slice(&data));
                    if path != "/quiet" {
                        send_all(&mut send, data).await;
                    }
                }
            }
        };
        let trailers = body.trailers().await.ok().flatten();
        self.note(index, |got| {
            got.trailers.clone_from(&trailers);
            got.end = Some(end);
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

    fn note(&self, index: usize, change: impl FnOnce(&mut Got)) {
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

/// A place as a destination.
#[derive(Debug)]
pub(crate) struct ToHttp2(pub(crate) Arc<Http2Place>);

impl Destination for ToHttp2 {
    fn open<'a>(&'a self, _: &'a Arrival) -> BoxFuture<'a, io::Result<BoxStream>> {
        Box::pin(async {
            let (stream, theirs) = tokio::io::duplex(64 * 1024);
            tokio::spawn(self.0.clone().serve(theirs));
            self.0.opened.send_modify(|opened| *opened += 1);
            let was_read = self.0.was_read.clone();
            // It is known how much was read.
            let count = move |bytes: &[u8]| was_read.send_modify(|read| *read += bytes.len());
            Ok(Box::new(InspectReader::new(stream, count)) as BoxStream)
        })
    }
}

/// A port with an application behind it and a session of alice.
pub(crate) struct Http2Stage {
    pub(crate) port: Arc<Port>,
    pub(crate) application: Arc<Http2Place>,
    pub(crate) alice: Arc<Http2Place>,
    /// How many connections of clients are over.
    pub(crate) ended: Arc<watch::Sender<usize>>,
    pub(crate) notices: Told,
    guards: Vec<ClaimGuard>,
}

impl Http2Stage {
    /// Alice wants requests with the header `x-for: alice`.
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let (application, alice) = (Http2Place::new("application"), Http2Place::new("alice"));
        let filter = Filter::header("^x-for: alice$").unwrap();
        Self::of(application, alice, Mode::Steal, filter, change)
    }

    pub(crate) fn of(
        application: Arc<Http2Place>,
        alice: Arc<Http2Place>,
        mode: Mode,
        filter: Filter,
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        let mut settings = Settings::default();
        change(&mut settings);
        let mut stage = Self {
            port: Arc::new(Port::new(Arc::new(ToHttp2(application.clone())), settings)),
            application,
            alice: alice.clone(),
            ended: Arc::new(watch::Sender::new(0)),
            notices: Told::default(),
            guards: Vec::new(),
        };
        stage.claim(alice, mode, filter);
        stage
    }

    /// One more session.
    pub(crate) fn claim(&mut self, place: Arc<Http2Place>, mode: Mode, filter: Filter) {
        self.claim_to(place.name, Arc::new(ToHttp2(place)), mode, filter);
    }

    pub(crate) fn claim_to(
        &mut self,
        name: &'static str,
        destination: Arc<dyn Destination>,
        mode: Mode,
        filter: Filter,
    ) {
        let mut claim = claim(name, mode, Some(filter), destination);
        claim.notices = self.notices.tell(name);
        let guard = self.port.claims().claim(claim, OnConflict::Abort).unwrap();
        self.guards.push(guard);
    }

    /// A client's connection, on which nothing has been sent.
    pub(crate) fn stream(&self) -> DuplexStream {
        let (client, served) = tokio::io::duplex(64 * 1024);
        let (port, ended) = (self.port.clone(), Arc::clone(&self.ended));
        tokio::spawn(async move {
            port.serve(Box::new(served), arrival()).await;
            ended.send_modify(|ended| *ended += 1);
        });
        client
    }

    pub(crate) async fn connect(&self) -> SendRequest<Bytes> {
        greet(self.stream()).await
    }
}

/// Starts HTTP/2 on a client's connection.
pub(crate) async fn greet(stream: DuplexStream) -> SendRequest<Bytes> {
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
