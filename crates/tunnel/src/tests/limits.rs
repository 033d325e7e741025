//! Limits of a tunnel, and readers that stall.

use std::sync::atomic::Ordering;

use http_body_util::BodyExt as _;

use super::hub::{Setup, Tunnel, eventually};
use super::service::{PART, get, read_pattern, text};
use crate::flow::INITIAL_WINDOW;
use crate::{Error, Limit, Limits, Session};

async fn open_with(limits: Limits) -> (Tunnel, Session) {
    let mut setup = Setup::default();
    setup.acceptor.limits = limits;
    Tunnel::open_with(setup).await
}

async fn limit(session: &Session) -> Option<Limit> {
    match get(session, "/bytes/10000000").await {
        Err(Error::Limited(limit)) => Some(limit),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn streams_are_limited_and_a_stream_that_ends_makes_room() {
    let (_tunnel, session) = open_with(Limits {
        streams: 2,
        ..Limits::default()
    })
    .await;
    let first = get(&session, "/bytes/10000000").await.unwrap();
    let _second = get(&session, "/bytes/10000000").await.unwrap();
    assert_eq!(limit(&session).await, Some(Limit::Streams(2)));
    assert_eq!(session.statistics().refused, 1);
    drop(first);
    let response = get(&session, "/hello").await.unwrap();
    assert_eq!(text(response).await.unwrap(), "hello");
}

#[tokio::test]
async fn new_streams_are_limited() {
    let (_tunnel, session) = open_with(Limits {
        new_streams_per_second: 1,
        ..Limits::default()
    })
    .await;
    let _first = get(&session, "/hello").await;
    let mut limits = Vec::new();
    while limits.is_empty() {
        if let Err(Error::Limited(limit)) = get(&session, "/hello").await {
            limits.push(limit);
        }
    }
    assert_eq!(limits, [Limit::NewStreams(1)]);
}

#[tokio::test]
async fn bytes_in_flight_are_limited() {
    let bytes_in_flight = 3 * INITIAL_WINDOW;
    let (_tunnel, session) = open_with(Limits {
        bytes_in_flight,
        ..Limits::default()
    })
    .await;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(get(&session, "/bytes/10000000").await.unwrap());
    }
    let expected = Limit::BytesInFlight(bytes_in_flight);
    assert_eq!(limit(&session).await, Some(expected));
    // Streams that are read go on with what there is.
    let body = held.pop().unwrap().into_body();
    read_pattern(body, 10_000_000).await.unwrap();
    assert!(get(&session, "/hello").await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_readers_cost_little_and_do_not_stop_others() {
    const STALLED: u64 = 200;
    const LENGTH: usize = 8_000_000;
    let (tunnel, session) = Tunnel::open().await;
    let mut stalled = Vec::new();
    for _ in 0..STALLED {
        let mut response = get(&session, "/bytes/100000000").await.unwrap();
        // They stall after they have taken a little.
        response.body_mut().frame().await.unwrap().unwrap();
        stalled.push(response);
    }
    let response = get(&session, &format!("/bytes/{LENGTH}")).await.unwrap();
    read_pattern(response.into_body(), LENGTH).await.unwrap();
    // A stalled reader costs at most the usual window, and the parts that wait for it.
    let max = STALLED * (256 * 1024 + 3 * PART as u64) + LENGTH as u64;
    let produced = tunnel.agent.service.produced.load(Ordering::SeqCst);
    assert!(produced <= max, "{produced} of {max}");
    assert!(session.statistics().bytes_in_flight <= STALLED * 256 * 1024);
    drop(stalled);
    eventually("no stream is open", || session.statistics().streams == 0).await;
}
