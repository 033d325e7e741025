//! Requests through a tunnel.

use std::sync::atomic::Ordering;

use http::Request;
use http_body_util::BodyExt as _;

use super::hub::{Tunnel, eventually};
use super::service::{full, get, pattern, read_pattern, text};
use crate::{Error, RESERVED_PATH, body, lines};

#[tokio::test]
async fn a_request_is_served() {
    let (_tunnel, session) = Tunnel::open().await;
    let response = get(&session, "/hello").await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(text(response).await.unwrap(), "hello");
    let request = Request::post("/echo").body(full("body")).unwrap();
    let response = session.send(request).await.unwrap();
    assert_eq!(text(response).await.unwrap(), "body");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_bodies_are_carried_in_both_directions() {
    const LENGTH: usize = 20_000_003;
    let (_tunnel, session) = Tunnel::open().await;
    let response = get(&session, &format!("/bytes/{LENGTH}")).await.unwrap();
    read_pattern(response.into_body(), LENGTH).await.unwrap();
    let (mut sender, body) = body(1);
    let sending = tokio::spawn(async move {
        for start in (0..LENGTH).step_by(100_000) {
            let part = pattern(start, 100_000.min(LENGTH - start));
            sender.send_data(part.into()).await.unwrap();
        }
    });
    let request = Request::post("/echo").body(body.boxed_unsync()).unwrap();
    let response = session.send(request).await.unwrap();
    read_pattern(response.into_body(), LENGTH).await.unwrap();
    sending.await.unwrap();
}

#[tokio::test]
async fn a_request_that_fails_ends_only_its_own_stream() {
    let (_tunnel, session) = Tunnel::open().await;
    let error = get(&session, "/fail").await.unwrap_err();
    assert!(matches!(error, Error::Stream(_)), "{error:?}");
    let response = get(&session, "/hello").await.unwrap();
    assert_eq!(text(response).await.unwrap(), "hello");
}

#[tokio::test]
async fn a_cancelled_request_is_cancelled_at_the_agent() {
    let (tunnel, session) = Tunnel::open().await;
    let pending = &tunnel.agent.service.pending;
    let requests: Vec<_> = (0..10)
        .map(|_| {
            let session = session.clone();
            tokio::spawn(async move { get(&session, "/never").await.map(drop) })
        })
        .collect();
    eventually("all requests are pending", || {
        pending.load(Ordering::SeqCst) == 10
    })
    .await;
    requests.iter().for_each(tokio::task::JoinHandle::abort);
    eventually("no request is pending", || {
        pending.load(Ordering::SeqCst) == 0
    })
    .await;
    eventually("no stream is open", || session.statistics().streams == 0).await;
}

#[tokio::test]
async fn messages_are_exchanged_as_lines() {
    let (_tunnel, session) = Tunnel::open().await;
    let (mut sender, body) = lines::channel::<String>();
    let request = Request::post("/echo").body(body.boxed_unsync()).unwrap();
    let response = session.send(request).await.unwrap();
    let mut receiver = lines::LineReceiver::<_, String>::new(response.into_body());
    for message in ["one", "two", "with\nline"] {
        sender.send(&message.to_owned()).await.unwrap();
        assert_eq!(receiver.next().await.unwrap().as_deref(), Some(message));
    }
    drop(sender);
    assert_eq!(receiver.next().await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_streams_leave_nothing_behind() {
    let (tunnel, session) = Tunnel::open().await;
    let mut requests = tokio::task::JoinSet::new();
    for number in 0..3000 {
        let session = session.clone();
        requests.spawn(async move {
            // The limit of new streams per second is not what is tested.
            let response = loop {
                match get(&session, "/bytes/100000").await {
                    Err(Error::Limited(_)) => tokio::task::yield_now().await,
                    response => break response.unwrap(),
                }
            };
            match number % 3 {
                0 => drop(response),
                1 => {
                    let mut body = response.into_body();
                    body.frame().await.unwrap().unwrap();
                }
                _ => read_pattern(response.into_body(), 100_000).await.unwrap(),
            }
        });
    }
    while let Some(request) = requests.join_next().await {
        request.unwrap();
    }
    eventually("no stream is open", || {
        let statistics = session.statistics();
        statistics.streams == 0 && statistics.bytes_in_flight == 0 && session.sending() == 0
    })
    .await;
    let producing = &tunnel.agent.service.producing;
    eventually("the agent produces nothing", || {
        producing.load(Ordering::SeqCst) == 0
    })
    .await;
}

#[test]
fn the_paths_of_the_tunnel_are_reserved() {
    assert!(crate::flow::path().starts_with(RESERVED_PATH));
}
