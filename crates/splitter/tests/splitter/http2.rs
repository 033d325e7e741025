use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use h2::ext::Protocol;
use http::{HeaderMap, Method, Request, StatusCode};
use splitter::{Filter, Mode, Port, Settings};

use super::http2_stage::{Http2Place, Http2Stage, greet, name, read, request, send_all};
use super::stage::{Manner, Place, To};

#[tokio::test]
async fn streams_go_both_ways_to_who_wants_them_with_their_trailers() {
    let stage = Http2Stage::new();
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
    assert_eq!(stage.application.opened(), 1, "connections are kept");
    assert_eq!(stage.alice.opened(), 1);
}

/// Servers send their settings at once, so they seem to speak first.
#[tokio::test]
async fn a_server_that_sends_its_settings_first_is_no_stranger() {
    let stage = Http2Stage::new();
    let stream = stage.stream();
    // The splitter has seen what the server sent.
    let was_read = &stage.application.was_read;
    was_read
        .subscribe()
        .wait_for(|read| *read > 0)
        .await
        .unwrap();
    let mut client = greet(stream).await;
    for (session, who) in [("nobody", "application"), ("alice", "alice")] {
        let (response, _) = client
            .send_request(request("/echo", session), true)
            .unwrap();
        assert_eq!(name(&response.await.unwrap()), who);
    }
    assert_eq!(stage.application.opened(), 1);
}

#[tokio::test]
async fn resets_keep_their_reasons() {
    let stage = Http2Stage::new();
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
    let stage = Http2Stage::new();
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
    let stage = Http2Stage::new();
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
    let (application, alice) = (Http2Place::new("application"), Http2Place::new("alice"));
    let stage = Http2Stage::of(application, alice, Mode::Steal, filter, |_| {});
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
        let stage = Http2Stage::new();
        let mut client = stage.connect().await;
        let (response, mut send) = client.send_request(request(path, "alice"), false).unwrap();
        send.send_data(Bytes::from_static(b"body"), true).unwrap();
        if path == "/silent" {
            // The application is as silent as the session, so it is enough that it was asked.
            stage.application.wait_until(|got| got.len() == 1).await;
            assert_eq!(stage.alice.streams.borrow().len(), 1);
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
    let stage = Http2Stage::new();
    for client_number in 1..=3 {
        let mut client = stage.connect().await;
        let (response, _) = client.send_request(request("/echo", "x"), true).unwrap();
        read(response.await.unwrap().into_body()).await;
        drop(client);
        let mut ended = stage.ended.subscribe();
        ended
            .wait_for(|ended| *ended == client_number)
            .await
            .unwrap();
    }
    assert_eq!(stage.application.opened(), 1);
}

#[tokio::test]
async fn a_client_is_told_when_the_application_closes() {
    let stage = Http2Stage::new();
    let mut client = stage.connect().await;
    let (response, _) = client.send_request(request("/close", "x"), true).unwrap();
    read(response.await.unwrap().into_body()).await;
    // The client's own connection is closed in an orderly way, so no further stream can be opened.
    while client.clone().ready().await.is_ok() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn what_is_said_before_an_answer_is_heard_before_it() {
    let stage = Http2Stage::new();
    let mut client = stage.connect().await;
    for (session, who) in [("nobody", "application"), ("alice", "alice")] {
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
async fn a_client_that_waits_for_a_word_gets_it() {
    let filter = || Filter::json_body("$.user", "^alice$").unwrap();
    for decides_by_body in [false, true] {
        let mut stage = Http2Stage::new();
        if decides_by_body {
            stage.claim(Http2Place::new("bob"), Mode::Steal, filter());
        }
        let mut client = stage.connect().await;
        let mut expecting = request("/echo", "alice");
        let go_on = http::HeaderValue::from_static("100-continue");
        expecting.headers_mut().insert("expect", go_on);
        if decides_by_body {
            expecting.headers_mut().remove("x-for");
        }
        let (mut response, mut send) = client.send_request(expecting, false).unwrap();
        let word = poll_fn(|context| response.poll_informational(context)).await;
        assert_eq!(word.unwrap().unwrap().status(), StatusCode::CONTINUE);
        let body = Bytes::from_static(b"{\"user\":\"alice\"}");
        send.send_data(body.clone(), true).unwrap();
        let response = response.await.unwrap();
        let who = if decides_by_body { "bob" } else { "alice" };
        assert_eq!(name(&response), who);
        assert_eq!(read(response.into_body()).await.0, body);
    }
}

#[tokio::test]
async fn websockets_go_both_ways_to_who_wants_them() {
    let (application, alice) = (
        Http2Place::with_tunnels("application"),
        Http2Place::with_tunnels("alice"),
    );
    let filter = Filter::header("^x-for: alice$").unwrap();
    let stage = Http2Stage::of(application, alice, Mode::Steal, filter, |_| {});
    for _ in 0..2 {
        let mut client = stage.connect().await;
        for (session, who) in [("nobody", "application"), ("alice", "alice")] {
            let mut asking = request("/chat", session);
            *asking.method_mut() = Method::CONNECT;
            let websocket = Protocol::from_static("websocket");
            asking.extensions_mut().insert(websocket);
            let (response, mut send) = client.send_request(asking, false).unwrap();
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

/// A client that is told so uses another connection, which works; one that is not would fail.
#[tokio::test]
async fn websockets_are_promised_only_where_the_application_takes_them() {
    let (application, alice) = (
        Http2Place::new("application"),
        Http2Place::with_tunnels("alice"),
    );
    let filter = Filter::header("^x-for: alice$").unwrap();
    let stage = Http2Stage::of(application, alice, Mode::Steal, filter, |_| {});
    let mut client = stage.connect().await;
    let ask = Request::get("http://host/").body(()).unwrap();
    let (response, _) = client.send_request(ask, true).unwrap();
    response.await.unwrap();
    assert!(!client.is_extended_connect_protocol_enabled());
}

/// Nobody greets, so the first client stops waiting for it. What becomes of that greeting is no matter to the client.
#[tokio::test(start_paused = true)]
async fn an_application_that_does_not_greet_does_not_end_its_clients() {
    let mut stage = Http2Stage::new();
    let stuck = Place::new("application", Manner::Stuck);
    stage.port = Arc::new(Port::new(Arc::new(To(stuck)), Settings::default()));
    let filter = Filter::header("^x-for: alice$").unwrap();
    stage.claim(stage.alice.clone(), Mode::Steal, filter);
    let mut client = stage.connect().await;
    for _ in 0..3 {
        let (response, _) = client
            .send_request(request("/echo", "alice"), true)
            .unwrap();
        assert_eq!(name(&response.await.unwrap()), "alice");
        tokio::time::sleep(Duration::from_secs(10)).await;
        client = client.ready().await.unwrap();
    }
}
