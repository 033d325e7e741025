use std::sync::Arc;

use bytes::Bytes;
use splitter::{Filter, Mode};
use tokio::io::AsyncWriteExt;

use super::http2_stage::{Http2Place, Http2Stage, name, request, send_all};
use super::stage::{Manner, Stage, read_until};

/// Streams of one client that wait for a session.
const WAITING: usize = 200;

/// A session that takes nothing has many connections and all that they carry before it. The clock stands still, so whoever
/// had to wait for it would wait for ever.
#[tokio::test(start_paused = true)]
async fn a_session_that_is_stuck_and_flooded_holds_up_nobody_else() {
    let stage = Stage::with(Manner::Answers, |settings| settings.answer_within = None);
    let (alice, _alices) = stage.session("alice", Manner::Stuck);
    let (_bob, _bobs) = stage.session("bob", Manner::Answers);
    let flood: Vec<_> = (0..1000)
        .map(|_| {
            let mut client = stage.connect();
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
        let mut client = stage.connect();
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

/// The same with streams of one connection, where windows are shared.
#[tokio::test]
async fn streams_that_wait_for_a_session_hold_up_no_other_of_their_connection() {
    let mut stage = Http2Stage::with(|settings| settings.answer_within = None);
    let bob = Filter::header("^x-for: bob$").unwrap();
    stage.claim(Http2Place::new("bob"), Mode::Steal, bob);
    let client = stage.connect().await;
    let mut flood = Vec::new();
    for _ in 0..WAITING {
        let mut client = client.clone().ready().await.unwrap();
        let (response, mut send) = client
            .send_request(request("/silent", "alice"), false)
            .unwrap();
        flood.push(tokio::spawn(async move {
            send_all(&mut send, vec![b'x'; 1024 * 1024].into()).await;
            response.await
        }));
    }
    stage
        .alice
        .wait_until(|streams| streams.len() == WAITING)
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

/// Each of many clients sends a byte now and then and never a whole request. The application gets what there is of them,
/// and others are served meanwhile.
#[tokio::test(start_paused = true)]
async fn clients_that_never_finish_a_head_hold_up_nobody() {
    let stage = Arc::new(Stage::new(Manner::Answers));
    let (alice, _alices) = stage.session("alice", Manner::Answers);
    let head = "GET /slow HTTP/1.1\r\nX-For: alice\r\nX-More: ";
    let slow: Vec<_> = (0..500)
        .map(|_| {
            let mut client = stage.connect();
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
        let mut client = stage.connect();
        client.write_all(quick.as_bytes()).await.unwrap();
        read_until(&mut client, "alice GET /quick").await;
    }
    let requests = alice.got();
    // The head is given up long before it is whole, and goes on as it comes.
    while stage.application.got_length() < slow.len() * (head.len() + 10) {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
    let mut client = stage.connect();
    client.write_all(quick.as_bytes()).await.unwrap();
    read_until(&mut client, "alice GET /quick").await;
    assert_eq!(alice.got(), requests + quick, "nothing of the slow clients");
    for client in slow {
        client.abort();
    }
}

/// A filter that would need longer than the universe has existed does not match, and everybody is served.
#[tokio::test]
async fn a_filter_that_explodes_costs_its_session_the_request_and_nobody_else() {
    let stage = Stage::new(Manner::Answers);
    let explodes = Filter::header("^x-text: (a*)*(?!b)\\1c$").unwrap();
    let (_alice, _alices) = stage.claim("alice", Manner::Answers, Mode::Steal, Some(explodes));
    let (_bob, _bobs) = stage.session("bob", Manner::Answers);
    let text = "a".repeat(4000);
    for (session, who) in [("bob", "bob"), ("x", "application")] {
        let mut client = stage.connect();
        for number in 0..20 {
            let request =
                format!("GET /{number} HTTP/1.1\r\nX-Text: {text}\r\nX-For: {session}\r\n\r\n");
            client.write_all(request.as_bytes()).await.unwrap();
            read_until(&mut client, &format!("{who} GET /{number} ")).await;
        }
    }
}
