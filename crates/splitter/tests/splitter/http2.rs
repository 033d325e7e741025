use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use h2::ext::Protocol;
use http::{HeaderMap, Method, Request, StatusCode};
use splitter::{Filter, Mode, Port, Settings};

use super::fixture::{Behavior, TestUpstream, ToUpstream};
use super::http2_fixture::{
    Http2TestPort, Http2Upstream, handshake, name, read, request, send_all,
};

#[tokio::test]
async fn streams_are_forwarded_in_both_directions_with_trailers() {
    let fixture = Http2TestPort::new();
    let mut client = fixture.connect().await;
    for _ in 0..2 {
        for (session, who) in [("other", "application"), ("alice", "alice")] {
            let (response, mut send) = client
                .send_request(request("/echo", session), false)
                .unwrap();
            let mut response = response.await.unwrap();
            assert_eq!(name(&response), who);
            // Each message is echoed before the next is sent: nothing is buffered until the end.
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
    assert_eq!(fixture.application.opened(), 1, "connections are reused");
    assert_eq!(fixture.alice.opened(), 1);
}

/// Servers send their settings immediately, so they seem to speak first.
#[tokio::test]
async fn a_server_that_sends_its_settings_first_is_detected_as_http2() {
    let fixture = Http2TestPort::new();
    let stream = fixture.stream();
    // The splitter has read the server's settings.
    let was_read = &fixture.application.was_read;
    was_read
        .subscribe()
        .wait_for(|read| *read > 0)
        .await
        .unwrap();
    let mut client = handshake(stream).await;
    for (session, who) in [("other", "application"), ("alice", "alice")] {
        let (response, _) = client
            .send_request(request("/echo", session), true)
            .unwrap();
        assert_eq!(name(&response.await.unwrap()), who);
    }
    assert_eq!(fixture.application.opened(), 1);
}

#[tokio::test]
async fn resets_keep_their_reasons() {
    let fixture = Http2TestPort::new();
    let mut client = fixture.connect().await;
    for session in ["other", "alice"] {
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
                None => panic!("the response ended as if it were complete"),
            }
        };
        assert_eq!(error.reason(), Some(Reason::INADEQUATE_SECURITY));
    }
}

#[tokio::test]
async fn large_heads_and_bodies_are_forwarded() {
    let fixture = Http2TestPort::new();
    let mut client = fixture.connect().await;
    for session in ["other", "alice"] {
        let mut large = request("/echo", session);
        let long = http::HeaderValue::from_str(&"x".repeat(60_000)).unwrap();
        large.headers_mut().insert("x-long", long);
        let (response, mut send) = client.send_request(large, false).unwrap();
        const LENGTH: usize = 4 * 1024 * 1024;
        let sending = tokio::spawn(async move {
            send_all(&mut send, vec![b'x'; LENGTH].into()).await;
            send.send_data(Bytes::new(), true).unwrap();
        });
        let response = response.await.unwrap();
        assert_eq!(response.headers()["x-long-length"], "60000");
        let (content, _) = read(response.into_body()).await;
        assert_eq!(content.len(), LENGTH);
        sending.await.unwrap();
    }
}

#[tokio::test]
async fn a_stalled_reader_stops_only_its_sender() {
    let fixture = Http2TestPort::new();
    let mut client = fixture.connect().await;
    let (stalled, mut send) = client.send_request(request("/echo", "x"), false).unwrap();
    let stalled = stalled.await.unwrap();
    // The response is not read, so flow control stops the sender: the data in flight fits into a few windows.
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
async fn json_bodies_select_the_route() {
    let filter = Filter::json_body("$.user", "^alice$").unwrap();
    let (application, alice) = (
        Http2Upstream::new("application"),
        Http2Upstream::new("alice"),
    );
    let fixture = Http2TestPort::of(application, alice, Mode::Steal, filter, |_| {});
    let mut client = fixture.connect().await;
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
async fn streams_without_a_session_response_fall_back_to_the_application() {
    for path in ["/die", "/silent"] {
        let fixture = Http2TestPort::new();
        let mut client = fixture.connect().await;
        let (response, mut send) = client.send_request(request(path, "alice"), false).unwrap();
        send.send_data(Bytes::from_static(b"body"), true).unwrap();
        if path == "/silent" {
            // The application does not respond either, so it is enough that it received the request.
            fixture
                .application
                .wait_until(|received| received.len() == 1)
                .await;
            assert_eq!(fixture.alice.streams.borrow().len(), 1);
            continue;
        }
        // The application closes the connection as well, and gets one retry. Then the client gets a reset.
        assert_eq!(
            response.await.unwrap_err().reason(),
            Some(Reason::INTERNAL_ERROR)
        );
        let mut client = fixture.connect().await;
        let (response, _) = client
            .send_request(request("/echo", "alice"), true)
            .unwrap();
        assert_eq!(name(&response.await.unwrap()), "application");
    }
}

#[tokio::test]
async fn idle_connections_are_reused_by_the_next_client() {
    let fixture = Http2TestPort::new();
    for client_number in 1..=3 {
        let mut client = fixture.connect().await;
        let (response, _) = client.send_request(request("/echo", "x"), true).unwrap();
        read(response.await.unwrap().into_body()).await;
        drop(client);
        let mut ended = fixture.ended.subscribe();
        ended
            .wait_for(|ended| *ended == client_number)
            .await
            .unwrap();
    }
    assert_eq!(fixture.application.opened(), 1);
}

#[tokio::test]
async fn the_client_gets_a_goaway_when_the_application_closes() {
    let fixture = Http2TestPort::new();
    let mut client = fixture.connect().await;
    let (response, _) = client.send_request(request("/close", "x"), true).unwrap();
    read(response.await.unwrap().into_body()).await;
    // The client's connection is shut down gracefully, so no further stream can be opened.
    while client.clone().ready().await.is_ok() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn informational_responses_are_forwarded() {
    let fixture = Http2TestPort::new();
    let mut client = fixture.connect().await;
    for (session, who) in [("other", "application"), ("alice", "alice")] {
        let (mut response, _) = client
            .send_request(request("/hints", session), true)
            .unwrap();
        let hints = poll_fn(|context| response.poll_informational(context)).await;
        let hints = hints.unwrap().unwrap();
        assert_eq!(hints.status(), StatusCode::EARLY_HINTS);
        assert_eq!(hints.headers()["link"], who);
        assert_eq!(name(&response.await.unwrap()), who);
    }
}

#[tokio::test]
async fn expect_continue_is_answered() {
    let filter = || Filter::json_body("$.user", "^alice$").unwrap();
    for matches_by_body in [false, true] {
        let mut fixture = Http2TestPort::new();
        if matches_by_body {
            fixture.claim(Http2Upstream::new("bob"), Mode::Steal, filter());
        }
        let mut client = fixture.connect().await;
        let mut expecting = request("/echo", "alice");
        let value = http::HeaderValue::from_static("100-continue");
        expecting.headers_mut().insert("expect", value);
        if matches_by_body {
            expecting.headers_mut().remove("x-for");
        }
        let (mut response, mut send) = client.send_request(expecting, false).unwrap();
        let interim = poll_fn(|context| response.poll_informational(context)).await;
        assert_eq!(interim.unwrap().unwrap().status(), StatusCode::CONTINUE);
        let body = Bytes::from_static(b"{\"user\":\"alice\"}");
        send.send_data(body.clone(), true).unwrap();
        let response = response.await.unwrap();
        let who = if matches_by_body { "bob" } else { "alice" };
        assert_eq!(name(&response), who);
        assert_eq!(read(response.into_body()).await.0, body);
    }
}

#[tokio::test]
async fn websockets_are_forwarded_in_both_directions() {
    let (application, alice) = (
        Http2Upstream::with_tunnels("application"),
        Http2Upstream::with_tunnels("alice"),
    );
    let filter = Filter::header("^x-for: alice$").unwrap();
    let fixture = Http2TestPort::of(application, alice, Mode::Steal, filter, |_| {});
    for _ in 0..2 {
        let mut client = fixture.connect().await;
        for (session, who) in [("other", "application"), ("alice", "alice")] {
            let mut connect = request("/chat", session);
            *connect.method_mut() = Method::CONNECT;
            let websocket = Protocol::from_static("websocket");
            connect.extensions_mut().insert(websocket);
            let (response, mut send) = client.send_request(connect, false).unwrap();
            let mut response = response.await.unwrap();
            assert_eq!(name(&response), who);
            assert_eq!(response.headers()["x-protocol"], "websocket");
            for message in [&b"one"[..], b"two"] {
                send.send_data(Bytes::from_static(message), false).unwrap();
                let echoed = response.body_mut().data().await.unwrap().unwrap();
                assert_eq!(echoed, message);
            }
            send.send_data(Bytes::new(), true).unwrap();
            assert_eq!(read(response.into_body()).await, (Vec::new(), None));
        }
        assert!(client.is_extended_connect_protocol_enabled());
    }
}

/// A client that sees no support uses an HTTP/1 connection instead, which works.
#[tokio::test]
async fn extended_connect_is_announced_only_if_the_application_supports_it() {
    let (application, alice) = (
        Http2Upstream::new("application"),
        Http2Upstream::with_tunnels("alice"),
    );
    let filter = Filter::header("^x-for: alice$").unwrap();
    let fixture = Http2TestPort::of(application, alice, Mode::Steal, filter, |_| {});
    let mut client = fixture.connect().await;
    let request = Request::get("http://host/").body(()).unwrap();
    let (response, _) = client.send_request(request, true).unwrap();
    response.await.unwrap();
    assert!(!client.is_extended_connect_protocol_enabled());
}

/// The application never sends its settings, so the first client stops waiting for them. The failed handshake must not
/// affect the client later.
#[tokio::test(start_paused = true)]
async fn an_application_without_settings_does_not_end_its_clients() {
    let mut fixture = Http2TestPort::new();
    let stuck = TestUpstream::new("application", Behavior::Stalls);
    fixture.port = Arc::new(Port::new(Arc::new(ToUpstream(stuck)), Settings::default()));
    let filter = Filter::header("^x-for: alice$").unwrap();
    fixture.claim(fixture.alice.clone(), Mode::Steal, filter);
    let mut client = fixture.connect().await;
    for _ in 0..3 {
        let (response, _) = client
            .send_request(request("/echo", "alice"), true)
            .unwrap();
        assert_eq!(name(&response.await.unwrap()), "alice");
        tokio::time::sleep(Duration::from_secs(10)).await;
        client = client.ready().await.unwrap();
    }
}
