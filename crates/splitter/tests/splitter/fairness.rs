use std::sync::Arc;

use bytes::Bytes;
use splitter::{Filter, Mode};
use tokio::io::AsyncWriteExt;

use super::fixture::{Behavior, TestPort, read_until};
use super::http2_fixture::{Http2TestPort, Http2Upstream, name, request, send_all};

/// Streams of one client that wait for a session.
const PENDING_STREAMS: usize = 200;

/// A session that reads nothing gets many connections with large bodies. Time is paused, so a client that had to wait for
/// this session would wait forever.
#[tokio::test(start_paused = true)]
async fn a_stalled_and_overloaded_session_does_not_slow_others() {
    let fixture = TestPort::with(Behavior::Responds, |settings| {
        settings.response_timeout = None;
    });
    let (alice, _alices) = fixture.session("alice", Behavior::Stalls);
    let (_bob, _bobs) = fixture.session("bob", Behavior::Responds);
    let flood: Vec<_> = (0..1000)
        .map(|_| {
            let mut client = fixture.connect();
            tokio::spawn(async move {
                let head = "POST / HTTP/1.1\r\nX-For: alice\r\nContent-Length: 1000000\r\n\r\n";
                client.write_all(head.as_bytes()).await.unwrap();
                client.write_all(&vec![b'x'; 1_000_000]).await
            })
        })
        .collect();
    while alice.opened() < flood.len() {
        tokio::task::yield_now().await;
    }
    for who in ["bob", "application"] {
        let mut client = fixture.connect();
        for number in 0..100 {
            let request = format!("GET /{number} HTTP/1.1\r\nX-For: {who}\r\n\r\n");
            client.write_all(request.as_bytes()).await.unwrap();
            read_until(&mut client, &format!("{who} GET /{number} ")).await;
        }
    }
    assert!(flood.iter().all(|client| !client.is_finished()));
    for client in flood {
        client.abort();
    }
}

/// The same with streams of one connection, which share a flow-control window.
#[tokio::test]
async fn stalled_streams_do_not_slow_other_streams_of_their_connection() {
    let mut fixture = Http2TestPort::with(|settings| settings.response_timeout = None);
    let bob = Filter::header("^x-for: bob$").unwrap();
    fixture.claim(Http2Upstream::new("bob"), Mode::Steal, bob);
    let client = fixture.connect().await;
    let mut flood = Vec::new();
    for _ in 0..PENDING_STREAMS {
        let mut client = client.clone().ready().await.unwrap();
        let (response, mut send) = client
            .send_request(request("/silent", "alice"), false)
            .unwrap();
        flood.push(tokio::spawn(async move {
            send_all(&mut send, vec![b'x'; 1024 * 1024].into()).await;
            response.await
        }));
    }
    fixture
        .alice
        .wait_until(|streams| streams.len() == PENDING_STREAMS)
        .await;
    for who in ["bob", "application"] {
        for _ in 0..10 {
            let mut client = client.clone().ready().await.unwrap();
            let (response, mut send) = client.send_request(request("/echo", who), false).unwrap();
            send_all(&mut send, Bytes::from_static(b"body")).await;
            let mut response = response.await.unwrap();
            assert_eq!(name(&response), who);
            let echoed = response.body_mut().data().await.unwrap().unwrap();
            assert_eq!(echoed, &b"body"[..]);
        }
    }
    assert!(flood.iter().all(|stream| !stream.is_finished()));
    for stream in flood {
        stream.abort();
    }
}

/// Many clients send a byte now and then and never a complete request. Their bytes are forwarded to the application, and
/// others are served at the same time.
#[tokio::test(start_paused = true)]
async fn clients_that_never_complete_a_head_do_not_slow_others() {
    let fixture = Arc::new(TestPort::new(Behavior::Responds));
    let (alice, _alices) = fixture.session("alice", Behavior::Responds);
    let head = "GET /slow HTTP/1.1\r\nX-For: alice\r\nX-More: ";
    let slow: Vec<_> = (0..500)
        .map(|_| {
            let mut client = fixture.connect();
            tokio::spawn(async move {
                for byte in head.bytes().chain(std::iter::repeat(b'x')) {
                    if client.write_all(&[byte]).await.is_err() {
                        return;
                    }
                    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                }
            })
        })
        .collect();
    let quick = "GET /quick HTTP/1.1\r\nX-For: alice\r\n\r\n";
    for _ in 0..10 {
        let mut client = fixture.connect();
        client.write_all(quick.as_bytes()).await.unwrap();
        read_until(&mut client, "alice GET /quick").await;
    }
    let requests = alice.received();
    // The head times out long before it is complete, and is then forwarded as it is received.
    while fixture.application.received_length() < slow.len() * (head.len() + 10) {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
    let mut client = fixture.connect();
    client.write_all(quick.as_bytes()).await.unwrap();
    read_until(&mut client, "alice GET /quick").await;
    assert_eq!(
        alice.received(),
        requests + quick,
        "nothing of the slow clients"
    );
    for client in slow {
        client.abort();
    }
}

/// A filter with exponential matching time does not match, and all clients are served.
#[tokio::test]
async fn an_exponential_filter_does_not_match_and_does_not_slow_others() {
    let fixture = TestPort::new(Behavior::Responds);
    let exponential = Filter::header("^x-text: (a*)*(?!b)\\1c$").unwrap();
    let (_alice, _alices) =
        fixture.claim("alice", Behavior::Responds, Mode::Steal, Some(exponential));
    let (_bob, _bobs) = fixture.session("bob", Behavior::Responds);
    let text = "a".repeat(4000);
    for (session, who) in [("bob", "bob"), ("x", "application")] {
        let mut client = fixture.connect();
        for number in 0..20 {
            let request =
                format!("GET /{number} HTTP/1.1\r\nX-Text: {text}\r\nX-For: {session}\r\n\r\n");
            client.write_all(request.as_bytes()).await.unwrap();
            read_until(&mut client, &format!("{who} GET /{number} ")).await;
        }
    }
}
