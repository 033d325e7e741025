use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use std::{future::poll_fn, io};

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Reason, RecvStream};
use http::{HeaderMap, Request, Response};
use splitter::{
    Arrival, BoxFuture, BoxStream, ClaimGuard, Destination, Filter, Mode, OnConflict, Port, Probes,
    Settings,
};

use super::stage::{arrival, claim};

/// A place that speaks HTTP/2. What it does is said by the path.
struct Http2Place {
    name: &'static str,
    opened: AtomicUsize,
}

impl Destination for Http2Place {
    fn open<'a>(&'a self, _: &'a Arrival) -> BoxFuture<'a, io::Result<BoxStream>> {
        Box::pin(async {
            self.opened.fetch_add(1, Ordering::SeqCst);
            let (ours, theirs) = tokio::io::duplex(64 * 1024);
            let name = self.name;
            tokio::spawn(async move {
                let mut builder = h2::server::Builder::new();
                builder.max_header_list_size(1024 * 1024);
                let mut connection = builder.handshake::<_, Bytes>(theirs).await?;
                while let Some(stream) = connection.accept().await {
                    let (request, respond) = stream?;
                    if request.uri().path() == "/close" {
                        connection.graceful_shutdown();
                    }
                    if request.uri().path() == "/die" {
                        return Ok(());
                    }
                    tokio::spawn(answer(name, request, respond));
                }
                Ok::<_, h2::Error>(())
            });
            Ok(Box::new(ours) as BoxStream)
        })
    }
}

/// Sends back what comes as it comes, with trailers, or does what the path says.
async fn answer(
    name: &'static str,
    request: Request<RecvStream>,
    mut respond: h2::server::SendResponse<Bytes>,
) {
    let path = request.uri().path().to_owned();
    let length = request
        .headers()
        .get("x-long")
        .map_or(0, http::HeaderValue::len);
    let response = Response::builder()
        .header("x-name", name)
        .header("x-long-length", length)
        .body(())
        .unwrap();
    match path.as_str() {
        "/reset" => return respond.send_reset(Reason::ENHANCE_YOUR_CALM),
        "/silent" => return std::future::pending().await,
        _ => {}
    }
    let mut send = respond.send_response(response, false).unwrap();
    if path == "/half" {
        send.send_data(Bytes::from_static(b"half"), false).unwrap();
        tokio::task::yield_now().await;
        return send.send_reset(Reason::INADEQUATE_SECURITY);
    }
    let mut body = request.into_body();
    while let Some(Ok(data)) = body.data().await {
        let _ = body.flow_control().release_capacity(data.len());
        send_all(&mut send, data).await;
    }
    let mut trailers = body.trailers().await.ok().flatten().unwrap_or_default();
    trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
    let _ = send.send_trailers(trailers);
}

async fn send_all(send: &mut h2::SendStream<Bytes>, mut data: Bytes) {
    while !data.is_empty() {
        send.reserve_capacity(data.len());
        let Some(Ok(capacity)) = poll_fn(|context| send.poll_capacity(context)).await else {
            return;
        };
        let part = data.split_to(capacity.min(data.len()));
        let _ = send.send_data(part, false);
    }
}

struct Http2Stage {
    port: Arc<Port>,
    application: Arc<Http2Place>,
    alice: Arc<Http2Place>,
    /// Connections of clients that are over.
    ended: Arc<AtomicUsize>,
    _guard: ClaimGuard,
}

fn stage_with(filter: Filter, settings: Settings) -> Http2Stage {
    let place = |name| {
        Arc::new(Http2Place {
            name,
            opened: AtomicUsize::new(0),
        })
    };
    let (application, alice) = (place("application"), place("alice"));
    let port = Arc::new(Port::new(application.clone(), settings).with_probes(Probes::default()));
    let alices = claim("alice", Mode::Steal, Some(filter), alice.clone());
    let guard = port.claims().claim(alices, OnConflict::Abort).unwrap();
    Http2Stage {
        port,
        application,
        alice,
        ended: Arc::default(),
        _guard: guard,
    }
}

fn stage() -> Http2Stage {
    let filter = Filter::header("^x-for: alice$").unwrap();
    stage_with(filter, Settings::default())
}

impl Http2Stage {
    async fn connect(&self) -> SendRequest<Bytes> {
        let (client, served) = tokio::io::duplex(64 * 1024);
        let (port, ended) = (self.port.clone(), Arc::clone(&self.ended));
        tokio::spawn(async move {
            port.serve(Box::new(served), arrival()).await;
            ended.fetch_add(1, Ordering::SeqCst);
        });
        let (send, connection) = h2::client::handshake(client).await.unwrap();
        tokio::spawn(connection);
        send.ready().await.unwrap()
    }
}

fn request(path: &str, session: &str) -> Request<()> {
    Request::post(format!("http://host{path}"))
        .header("x-for", session)
        .body(())
        .unwrap()
}

fn name(response: &Response<RecvStream>) -> &str {
    response.headers()["x-name"].to_str().unwrap()
}

async fn read(mut body: RecvStream) -> (Vec<u8>, Option<HeaderMap>) {
    let mut content = Vec::new();
    while let Some(data) = body.data().await {
        let data = data.unwrap();
        let _ = body.flow_control().release_capacity(data.len());
        content.extend_from_slice(&data);
    }
    (content, body.trailers().await.unwrap())
}

#[tokio::test]
async fn streams_go_both_ways_to_who_wants_them_with_their_trailers() {
    let stage = stage();
    let mut client = stage.connect().await;
    for _ in 0..2 {
        for (session, who) in [("nobody", "application"), ("alice", "alice")] {
            let (response, mut send) = client
                .send_request(request("/echo", session), false)
                .unwrap();
            let mut response = response.await.unwrap();
            assert_eq!(name(&response), who);
            // Each message is answered before the next is sent: nothing waits for the end.
            for message in [&b"one"[..], b"two"] {
                send.send_data(Bytes::from_static(message), false).unwrap();
                let echoed = response.body_mut().data().await.unwrap().unwrap();
                assert_eq!(echoed, message);
            }
            let mut trailers = HeaderMap::new();
            trailers.insert("x-checksum", http::HeaderValue::from_static("7"));
            send.send_trailers(trailers).unwrap();
            let (rest, trailers) = read(response.into_body()).await;
            assert_eq!(rest, b"");
            let trailers = trailers.unwrap();
            assert_eq!(
                (&trailers["x-checksum"], &trailers["grpc-status"]),
                (
                    &http::HeaderValue::from_static("7"),
                    &http::HeaderValue::from_static("0")
                )
            );
        }
    }
    assert_eq!(
        stage.application.opened.load(Ordering::SeqCst),
        1,
        "connections are kept"
    );
    assert_eq!(stage.alice.opened.load(Ordering::SeqCst), 1);
}

/// Servers send their settings at once, so they seem to speak first.
#[tokio::test]
async fn a_server_that_sends_its_settings_first_is_no_stranger() {
    let stage = stage();
    let (client, served) = tokio::io::duplex(64 * 1024);
    let port = stage.port.clone();
    tokio::spawn(async move { port.serve(Box::new(served), arrival()).await });
    while stage.application.opened.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::sleep(Duration::from_millis(10)).await;
    let (client, connection) = h2::client::handshake(client).await.unwrap();
    tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    for (session, who) in [("nobody", "application"), ("alice", "alice")] {
        let (response, _) = client
            .send_request(request("/echo", session), true)
            .unwrap();
        assert_eq!(name(&response.await.unwrap()), who);
    }
    assert_eq!(stage.application.opened.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn resets_keep_their_reasons() {
    let stage = stage();
    let mut client = stage.connect().await;
    for session in ["nobody", "alice"] {
        let (response, _) = client
            .send_request(request("/reset", session), true)
            .unwrap();
        let error = response.await.unwrap_err();
        assert_eq!(error.reason(), Some(Reason::ENHANCE_YOUR_CALM));
        let (response, _) = client
            .send_request(request("/half", session), true)
            .unwrap();
        let mut body = response.await.unwrap().into_body();
        let error = loop {
            match body.data().await {
                Some(Ok(_)) => {}
                Some(Err(error)) => break error,
                None => panic!("the answer ended as if it were whole"),
            }
        };
        assert_eq!(error.reason(), Some(Reason::INADEQUATE_SECURITY));
    }
}

#[tokio::test]
async fn large_heads_and_bodies_get_through() {
    let stage = stage();
    let mut client = stage.connect().await;
    for session in ["nobody", "alice"] {
        let mut large = request("/echo", session);
        let long = http::HeaderValue::from_str(&"x".repeat(200_000)).unwrap();
        large.headers_mut().insert("x-long", long);
        let (response, mut send) = client.send_request(large, false).unwrap();
        const LENGTH: usize = 4 * 1024 * 1024;
        let sending = tokio::spawn(async move {
            send_all(&mut send, vec![b'x'; LENGTH].into()).await;
            send.send_data(Bytes::new(), true).unwrap();
        });
        let response = response.await.unwrap();
        assert_eq!(response.headers()["x-long-length"], "200000");
        let (content, _) = read(response.into_body()).await;
        assert_eq!(content.len(), LENGTH);
        sending.await.unwrap();
    }
}

#[tokio::test]
async fn a_reader_that_stalls_stops_its_sender_and_nobody_else() {
    let stage = stage();
    let mut client = stage.connect().await;
    let (stalled, mut send) = client.send_request(request("/echo", "x"), false).unwrap();
    let stalled = stalled.await.unwrap();
    // Nobody reads the answer, so the sender has to stop: what is under way fits into a few windows.
    let mut sent = 0;
    loop {
        send.reserve_capacity(16 * 1024);
        let capacity = tokio::time::timeout(
            Duration::from_millis(200),
            poll_fn(|context| send.poll_capacity(context)),
        );
        match capacity.await {
            Ok(Some(Ok(capacity))) => {
                sent += capacity;
                send.send_data(vec![b'x'; capacity].into(), false).unwrap();
            }
            _ => break,
        }
        assert!(sent < 16 * 1024 * 1024, "the sender is never stopped");
    }
    let (other, _) = client
        .send_request(request("/echo", "alice"), true)
        .unwrap();
    assert_eq!(name(&other.await.unwrap()), "alice");
    drop(stalled);
}

#[tokio::test]
async fn json_bodies_decide() {
    let filter = Filter::json_body("$.user", "^alice$").unwrap();
    let stage = stage_with(filter, Settings::default());
    let mut client = stage.connect().await;
    for (body, who) in [
        ("{\"user\":\"alice\"}", "alice"),
        ("{\"user\":\"bob\"}", "application"),
        ("no JSON", "application"),
    ] {
        let (response, mut send) = client.send_request(request("/echo", "x"), false).unwrap();
        send.send_data(Bytes::from(body), true).unwrap();
        let response = response.await.unwrap();
        assert_eq!(name(&response), who, "{body}");
        assert_eq!(read(response.into_body()).await.0, body.as_bytes());
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_session_does_not_answer_the_application_does() {
    for path in ["/die", "/silent"] {
        let stage = stage();
        let mut client = stage.connect().await;
        let (response, mut send) = client.send_request(request(path, "alice"), false).unwrap();
        send.send_data(Bytes::from_static(b"body"), true).unwrap();
        if path == "/silent" {
            // The application is as silent as the session, so it is enough that it was asked.
            while stage.application.opened.load(Ordering::SeqCst) == 0 {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            assert_eq!(stage.alice.opened.load(Ordering::SeqCst), 1);
            continue;
        }
        // The application dies of it as well, and is asked once more: then the client is told.
        assert_eq!(
            response.await.unwrap_err().reason(),
            Some(Reason::INTERNAL_ERROR)
        );
        let mut client = stage.connect().await;
        let (response, _) = client
            .send_request(request("/echo", "alice"), true)
            .unwrap();
        assert_eq!(name(&response.await.unwrap()), "application");
    }
}

#[tokio::test]
async fn the_next_client_gets_the_last_ones_connection() {
    let stage = stage();
    for client_number in 1..=3 {
        let mut client = stage.connect().await;
        let (response, _) = client.send_request(request("/echo", "x"), true).unwrap();
        read(response.await.unwrap().into_body()).await;
        drop(client);
        while stage.ended.load(Ordering::SeqCst) < client_number {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    assert_eq!(stage.application.opened.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_client_is_told_when_the_application_closes() {
    let stage = stage();
    let mut client = stage.connect().await;
    let (response, _) = client.send_request(request("/close", "x"), true).unwrap();
    read(response.await.unwrap().into_body()).await;
    // The client's own connection is closed in an orderly way, so no further stream can be opened.
    while client.clone().ready().await.is_ok() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
