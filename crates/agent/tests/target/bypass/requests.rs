//! Requests that a session must not get, and subscriptions that it must not have.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use protocol::grant::{Grant, IncomingGrant};
use protocol::incoming::{ACCEPT, ACCEPTED, Accept};
use protocol::rpc::incoming_client::IncomingClient;
use protocol::rpc::subscribe_event::Event;
use protocol::rpc::{
    HttpFilter, HttpFilters, IncomingMode, JsonFilter, SubscribeEvent, SubscribeRequest,
    UnsubscribeRequest, http_filter,
};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tonic::{Status, Streaming};

use super::{Report, session, texts};
use crate::client::{Client, errno};
use crate::environment::{Target, target};

pub(super) const ADDRESS: &str = "10.9.0.1:8080";
const PORT: u32 = 8080;
const SESSION: &str = "served by the session";
const APPLICATION: &str = "served by the application";

pub(super) async fn run(report: &mut Report) {
    let target = target();
    let _application = application(&target);
    wide_filters(&target, report).await;
    similar_requests(&target, report).await;
    filters_that_match_everything(&target, report).await;
    no_stealing(&target, report).await;
}

pub(super) fn header(pattern: &str) -> HttpFilter {
    filter(http_filter::Filter::Header(pattern.to_owned()))
}

fn filter(filter: http_filter::Filter) -> HttpFilter {
    HttpFilter {
        filter: Some(filter),
    }
}

fn path(pattern: &str) -> HttpFilter {
    filter(http_filter::Filter::Path(pattern.to_owned()))
}

fn method(method: &str) -> HttpFilter {
    filter(http_filter::Filter::Method(method.to_owned()))
}

fn body(query: &str, matches: &str) -> HttpFilter {
    filter(http_filter::Filter::Body(JsonFilter {
        query: query.to_owned(),
        matches: matches.to_owned(),
    }))
}

fn any_of(filters: Vec<HttpFilter>) -> HttpFilter {
    filter(http_filter::Filter::AnyOf(HttpFilters { filters }))
}

fn all_of(filters: Vec<HttpFilter>) -> HttpFilter {
    filter(http_filter::Filter::AllOf(HttpFilters { filters }))
}

pub(super) fn with_header(pattern: &str) -> Grant {
    Grant {
        incoming: IncomingGrant {
            header_filters: texts(&[pattern]),
            ..IncomingGrant::default()
        },
        ..Grant::default()
    }
}

/// Filters of a session that match more than the policy allows. The request has no `x-user`.
async fn wide_filters(target: &Target, report: &mut Report) {
    let (_agent, client) = session(target, &with_header("^x-user: ")).await;
    let request = "POST /cart?x-user:ada HTTP/1.1\r\nhost: shop\r\nuser-agent: curl\r\nx-team: blue\r\n\
        content-type: application/json\r\ncontent-length: 8\r\nconnection: close\r\n\r\n{\"id\":7}";
    for (name, filter) in [
        ("an empty alternative", header("x-user: ada|")),
        ("an empty alternative first", header("|x-user: ada")),
        ("an alternative for everything", header("x-user: ada|.*")),
        ("an alternative for all hosts", header("x-user: ada|host: ")),
        (
            "an alternative for another header",
            header("x-user: ada|x-team: "),
        ),
        ("an optional group", header("(x-user: ada)?(x-team: blue)?")),
        ("a comment", header("x-team(?#x-user: )")),
        ("look-ahead", header("^(?!x-user: )x-")),
        ("look-behind", header("(?<!x-user: )blue")),
        ("case", header("(?i)X-USER: ADA|X-TEAM: BLUE")),
        (
            "a line break in the pattern",
            header("x-user: ada\n|x-team"),
        ),
        ("a path", path("^/cart")),
        ("a path like the header", path("x-user:ada")),
        ("a method", method("POST")),
        ("a body", body("$.id", "7")),
        (
            "any of",
            any_of(vec![header("x-user: ada"), path("^/cart")]),
        ),
        (
            "all of",
            all_of(vec![header("x-team: blue"), path("^/cart")]),
        ),
    ] {
        let name = format!("a filter with {name}");
        match Stealing::start(&client, Some(filter)).await {
            Ok(stealing) => {
                let response = send(target, request).await;
                report.attempt(name, response.contains(SESSION));
                stealing.end(&client).await;
            }
            Err(refused) => {
                assert_eq!(errno::<()>(Err(refused)), libc::EPERM, "{name}");
                report.attempt(name, false);
            }
        }
    }
    let wide = header("x-user: ada|x-team: ");
    let stealing = Stealing::start(&client, Some(wide)).await.unwrap();
    let both = request.replace("x-team: blue", "x-team: blue\r\nX-User: eve");
    let response = send(target, &both).await;
    report.control("a request with both headers", response.contains(SESSION));
    stealing.end(&client).await;
}

/// Requests that look as if they had the header.
async fn similar_requests(target: &Target, report: &mut Report) {
    let (_agent, client) = session(target, &with_header("^x-user: ?ada$")).await;
    let wide = any_of(vec![header("ada"), path("x-user"), header("^x-")]);
    let stealing = Stealing::start(&client, Some(wide)).await.unwrap();
    let get = |path: &str, lines: &str| {
        format!("GET {path} HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n{lines}\r\n")
    };
    for (name, request) in [
        ("a longer value", get("/", "x-user: adam\r\n")),
        ("a list of values", get("/", "x-user: eve, ada\r\n")),
        ("a longer name", get("/", "not-x-user: ada\r\n")),
        ("the header in a value", get("/", "x-team: x-user: ada\r\n")),
        ("the header in the path", get("/x-user:%20ada", "x-team: ada\r\n")),
        ("the header in the query", get("/?x-user:ada", "x-team: ada\r\n")),
        ("an encoded name", get("/", "x%2Duser: ada\r\n")),
        ("an encoded value", get("/", "x-user: a%64a\r\n")),
        ("a folded line", get("/", "x-team: a\r\n x-user: ada\r\n")),
        ("a folded value", get("/", "x-user:\r\n ada\r\n")),
        ("a space before the colon", get("/", "x-user : ada\r\n")),
        ("a carriage return alone", get("/", "x-team: a\rx-user: ada\r\n")),
        ("duplicates with other values", get("/", "x-user: eve\r\nx-user: adam\r\n")),
        ("an absolute address", get("http://x-user/x-user: ada", "x-team: ada\r\n")),
        ("an underscore", get("/", "x_user: ada\r\n")),
        (
            "the header in a trailer",
            "POST / HTTP/1.1\r\nhost: shop\r\nconnection: close\r\nx-team: ada\r\ntransfer-encoding: chunked\r\n\r\n\
             1\r\na\r\n0\r\nx-user: ada\r\n\r\n"
                .to_owned(),
        ),
        (
            "the header in the body",
            "POST / HTTP/1.1\r\nhost: shop\r\nconnection: close\r\nx-team: ada\r\ncontent-length: 15\r\n\r\n\
             \r\nx-user: ada\r\n"
                .to_owned(),
        ),
    ] {
        // The session's server refuses some of them too, so it matters whether the session gets the connection.
        let before = stealing.accepted();
        let response = send(target, &request).await;
        let has_passed = response.contains(SESSION) || stealing.accepted() > before;
        report.attempt(format!("a request with {name}"), has_passed);
    }
    for (name, lines) in [
        ("the header", "x-user: ada\r\n"),
        ("the header in capitals", "X-USER: ADA\r\n"),
        ("the header and others", "x-user: eve\r\nx-user: ada\r\n"),
    ] {
        let response = send(target, &get("/", lines)).await;
        report.control(format!("a request with {name}"), response.contains(SESSION));
    }
    // The requests of one connection are judged one by one.
    let first = get("/", "x-user: ada\r\n").replace("connection: close\r\n", "");
    let response = send(target, &format!("{first}{}", get("/", "x-team: ada\r\n"))).await;
    report.control(
        "the first request of a connection",
        response.contains(SESSION),
    );
    report.attempt(
        "the second request of a connection",
        response.matches(SESSION).count() > 1,
    );
    for (name, path, user, is_allowed) in [
        ("HTTP/2 with another value", "/x-user", "adam", false),
        (
            "HTTP/2 with the header in the path",
            "/x-user:ada",
            "eve",
            false,
        ),
        ("HTTP/2 with the header", "/", "ada", true),
    ] {
        let response = send_http2(target, path, user).await;
        match is_allowed {
            true => report.control(name, response == SESSION),
            false => report.attempt(name, response != APPLICATION),
        }
    }
    stealing.end(&client).await;
}

async fn filters_that_match_everything(target: &Target, report: &mut Report) {
    let incoming = IncomingGrant {
        no_steal_without_filter: true,
        no_mirror: true,
        ..IncomingGrant::default()
    };
    let grant = Grant {
        incoming,
        ..Grant::default()
    };
    let (_agent, client) = session(target, &grant).await;
    let methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    for (name, filter) in [
        ("no filter", None),
        ("any header", Some(header(".*"))),
        ("an empty pattern", Some(header(""))),
        ("an empty alternative", Some(header("x|"))),
        ("all hosts", Some(header("^host: "))),
        ("negative look-ahead", Some(header("^(?!nothing)"))),
        ("any path", Some(path(".*"))),
        ("a slash", Some(path("^/"))),
        ("all methods", Some(any_of(methods.map(method).into()))),
        ("all bodies", Some(body("$", ".*"))),
        (
            "any of",
            Some(any_of(vec![header("x-user: ada"), path("")])),
        ),
        ("all of", Some(all_of(vec![header(".*"), path("/")]))),
    ] {
        let stealing = Stealing::start(&client, filter).await;
        report.attempt(format!("stealing everything with {name}"), stealing.is_ok());
        if let Ok(stealing) = stealing {
            stealing.end(&client).await;
        }
    }
    let stealing = Stealing::start(&client, Some(header("x-user: ada"))).await;
    report.control("stealing with a filter", stealing.is_ok());
    if let Ok(stealing) = stealing {
        stealing.end(&client).await;
    }
    let mirror = SubscribeRequest {
        port: PORT,
        mode: IncomingMode::Mirror.into(),
        ..SubscribeRequest::default()
    };
    let mirroring = subscribe(&client, mirror).await;
    report.attempt("mirroring", mirroring.is_ok());
}

async fn no_stealing(target: &Target, report: &mut Report) {
    let incoming = IncomingGrant {
        no_steal: true,
        ..IncomingGrant::default()
    };
    let grant = Grant {
        incoming,
        ..Grant::default()
    };
    let (_agent, client) = session(target, &grant).await;
    for (name, filter) in [
        ("no filter", None),
        ("a filter", Some(header("x-user: ada"))),
    ] {
        let stealing = Stealing::start(&client, filter).await;
        report.attempt(
            format!("stealing with {name}, which is forbidden"),
            stealing.is_ok(),
        );
        if let Ok(stealing) = stealing {
            stealing.end(&client).await;
        }
    }
}

/// A subscription whose connections the session serves, until it is dropped.
pub(super) struct Stealing {
    subscription: u64,
    pub(super) events: Streaming<SubscribeEvent>,
    accepted: Arc<AtomicUsize>,
    _serving: JoinSet<()>,
}

impl Stealing {
    pub(super) async fn start(client: &Client, filter: Option<HttpFilter>) -> Result<Self, Status> {
        let request = SubscribeRequest {
            port: PORT,
            filter,
            ..SubscribeRequest::default()
        };
        let (subscription, events) = subscribe(client, request).await?;
        let accepted = Arc::<AtomicUsize>::default();
        let mut serving = JoinSet::new();
        for _ in 0..2 {
            let accepted = Arc::clone(&accepted);
            serving.spawn(accept_all(client.clone(), subscription, accepted));
        }
        Ok(Self {
            subscription,
            events,
            accepted,
            _serving: serving,
        })
    }

    /// The number of connections that the session got.
    fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Ends the subscription, so that the next one does not conflict with it.
    pub(super) async fn end(self, client: &Client) {
        let request = UnsubscribeRequest {
            subscription: self.subscription,
        };
        incoming(client).unsubscribe(request).await.unwrap();
    }
}

fn incoming(client: &Client) -> IncomingClient<Client> {
    IncomingClient::with_origin(client.clone(), http::Uri::from_static("http://agent"))
}

async fn subscribe(
    client: &Client,
    request: SubscribeRequest,
) -> Result<(u64, Streaming<SubscribeEvent>), Status> {
    let mut events = incoming(client).subscribe(request).await?.into_inner();
    let first = events.message().await?.and_then(|event| event.event);
    match first {
        Some(Event::Subscribed(subscribed)) => Ok((subscribed.subscription, events)),
        other => panic!("{other:?}"),
    }
}

async fn accept_all(client: Client, subscription: u64, accepted: Arc<AtomicUsize>) {
    loop {
        let headers = Accept { subscription }.to_headers();
        let Ok((to_client, response)) = client.connect_stream(ACCEPT, headers).await else {
            return;
        };
        accepted.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(async move {
            let _ = to_client.send(Bytes::from_static(&[ACCEPTED])).await;
            let (near, far) = tokio::io::duplex(64 * 1024);
            tokio::spawn(serve(near, SESSION));
            let (mut reading, mut writing) = tokio::io::split(far);
            let mut from_client = response.into_body();
            let to_application = async move {
                while let Some(Ok(frame)) = from_client.frame().await {
                    let data = frame.into_data().unwrap_or_default();
                    if writing.write_all(&data).await.is_err() {
                        return;
                    }
                }
                let _ = writing.shutdown().await;
            };
            let from_application = async move {
                let mut buffer = vec![0; 64 * 1024];
                while let Ok(count @ 1..) = reading.read(&mut buffer).await {
                    let chunk = Bytes::copy_from_slice(&buffer[..count]);
                    if to_client.send(chunk).await.is_err() {
                        return;
                    }
                }
            };
            tokio::join!(to_application, from_application);
        });
    }
}

/// The application of the target, until the returned tasks are dropped.
pub(super) fn application(target: &Target) -> JoinSet<()> {
    let listener = target.listen(ADDRESS);
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, APPLICATION));
        }
    });
    tasks
}

/// Serves HTTP/1 or HTTP/2. Each response has the name of the server.
async fn serve(mut io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, name: &'static str) {
    let service = service_fn(move |request: Request<Incoming>| async move {
        let _ = request.into_body().collect().await;
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(
            name.as_bytes(),
        ))))
    });
    let mut first = [0; 4];
    if io.read_exact(&mut first).await.is_err() {
        return;
    }
    let (reading, writing) = tokio::io::split(io);
    let io = TokioIo::new(tokio::io::join(
        std::io::Cursor::new(first).chain(reading),
        writing,
    ));
    if first == *b"PRI " {
        let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(io, service)
            .await;
    } else {
        let _ = hyper::server::conn::http1::Builder::new()
            .half_close(true)
            .serve_connection(io, service)
            .await;
    }
}

async fn connect(target: &Target) -> TcpStream {
    let socket = target.inside(|| TcpSocket::new_v4().unwrap());
    socket.connect(ADDRESS.parse().unwrap()).await.unwrap()
}

/// Sends bytes on a new connection, and returns everything that is received.
pub(super) async fn send(target: &Target, request: &str) -> String {
    let mut stream = connect(target).await;
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut response = Vec::new();
    let _ = stream.read_to_end(&mut response).await;
    String::from_utf8_lossy(&response).into_owned()
}

async fn send_http2(target: &Target, path: &str, user: &str) -> String {
    let stream = TokioIo::new(connect(target).await);
    let executor = TokioExecutor::new();
    let (mut sender, connection) = hyper::client::conn::http2::handshake(executor, stream)
        .await
        .unwrap();
    tokio::spawn(connection);
    let headers: BTreeMap<&str, &str> = [("x-user", user), ("x-team", "ada")].into();
    let request = headers.into_iter().fold(
        Request::get(format!("http://x-user.ada{path}")),
        |request, (name, value)| request.header(name, value),
    );
    let request = request.body(Full::<Bytes>::default()).unwrap();
    let response = sender.send_request(request).await.unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8_lossy(&body).into_owned()
}
