//! Sessions that steal or mirror datagrams.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use protocol::incoming::ACCEPTED;
use protocol::outgoing::{Datagram, DatagramDecoder};
use protocol::rpc::subscribe_event::Event;
use protocol::rpc::{IncomingTransport, OnConflict, SubscribeRequest};

use crate::datagrams::{client, exchange, start_application};
use crate::environment::{FROM_INSIDE, FROM_OUTSIDE, TARGET_IPV4, environment, socket_address};
use crate::programs::with_timeout;
use crate::session::{OfferedConnection, Session, mirrored_port, whole_port, with_header};

fn udp(request: SubscribeRequest) -> SubscribeRequest {
    SubscribeRequest {
        transport: IncomingTransport::Udp.into(),
        ..request
    }
}

/// Replies to every datagram of a flow with a prefix and the datagram.
async fn reply_all(mut stolen: OfferedConnection) {
    let _ = stolen.to_client.send(Bytes::from_static(&[ACCEPTED])).await;
    let mut decoder = DatagramDecoder::default();
    while let Some(payload) = next(&mut stolen.from_client, &mut decoder).await {
        let mut frame = BytesMut::new();
        let response = Datagram::Payload {
            address: None,
            payload: [b"session:", &payload[..]].concat().into(),
        };
        response.encode(&mut frame);
        let _ = stolen.to_client.send(frame.freeze()).await;
    }
}

async fn next(body: &mut Incoming, decoder: &mut DatagramDecoder) -> Option<Bytes> {
    loop {
        match decoder.next_datagram().expect("frames") {
            Some(Datagram::Payload { payload, .. }) => return Some(payload),
            Some(Datagram::Failed(_)) => {}
            None => {
                let frame = body.frame().await?.ok()?;
                decoder.push(&frame.into_data().ok()?);
            }
        }
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn datagrams_go_to_the_session_and_replies_to_the_client() {
    let environment = environment();
    start_application(&environment.target, 53);
    let session = Session::of(&environment.agent()).await;
    let request = udp(whole_port(53, "Ada"));
    let mut subscription = session.subscribe(request.clone()).await.unwrap();
    let outside = FROM_OUTSIDE.map(|address| (&environment.client, address));
    let inside = FROM_INSIDE.map(|address| (&environment.target, address));
    for (network, address) in outside.into_iter().chain(inside) {
        let to = socket_address(address, 53);
        let client = client(network, to).await;
        let accepting = async {
            let stolen = subscription.accept().await.unwrap();
            assert_eq!(stolen.meta.client, client.local_addr().unwrap());
            assert_eq!(stolen.meta.server, to);
            tokio::spawn(reply_all(stolen));
        };
        let (first, ()) = tokio::join!(exchange(&client, b"one"), accepting);
        assert_eq!(first, b"session:one");
        // The same flow, also with an empty datagram and one that fills a packet.
        let large = vec![7; 1400];
        for payload in [&b""[..], &large] {
            let reply = exchange(&client, payload).await;
            assert_eq!(reply, [b"session:", payload].concat());
        }
    }
    assert_eq!(subscription.event().await, Some(Event::TrafficSeen(true)));

    let Err(failure) = session.subscribe(udp(whole_port(53, "Grace"))).await else {
        panic!("expected a rejection");
    };
    assert!(failure.detail.starts_with("Ada already"), "{failure:?}");
    let with_filter = udp(with_header(54, "Ada", "a: b"));
    assert!(session.subscribe(with_filter).await.is_err());
    let overriding = SubscribeRequest {
        on_conflict: OnConflict::Override.into(),
        ..udp(whole_port(53, "Grace"))
    };
    let other = session.subscribe(overriding).await.unwrap();
    let lost = subscription.event().await;
    assert_eq!(lost, Some(Event::LostTo("Grace".to_owned())));
    drop((subscription, other));
    environment.wait_until_clean().await;
    let client = client(&environment.client, socket_address(TARGET_IPV4, 53)).await;
    assert_eq!(exchange(&client, b"two").await, b"application:two");
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_flow_ends_with_its_subscription_and_the_next_datagram_goes_to_the_application() {
    let environment = environment();
    start_application(&environment.target, 53);
    let agent = environment.agent();
    let session = Session::of(&agent).await;
    let subscription = session.subscribe(udp(whole_port(53, "Ada"))).await;
    let subscription = subscription.unwrap();
    // Another session keeps the port redirected.
    let other = Session::of(&agent).await;
    let mirroring = other
        .subscribe(udp(mirrored_port(53, "Grace")))
        .await
        .unwrap();
    let client = client(&environment.client, socket_address(TARGET_IPV4, 53)).await;
    let accepting = async {
        tokio::spawn(reply_all(subscription.accept().await.unwrap()));
    };
    let (first, ()) = tokio::join!(exchange(&client, b"one"), accepting);
    assert_eq!(first, b"session:one");
    drop(subscription);
    let back = async { while exchange(&client, b"two").await != b"application:two" {} };
    with_timeout(back).await;
    drop(mirroring);
    environment.wait_until_clean().await;
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_flow_that_the_session_does_not_accept_goes_to_the_application() {
    let environment = environment();
    start_application(&environment.target, 53);
    let session = Session::of(&environment.agent()).await;
    let subscription = session.subscribe(udp(whole_port(53, "Ada"))).await;
    let mut subscription = subscription.unwrap();
    let client = client(&environment.client, socket_address(TARGET_IPV4, 53)).await;
    let rejecting = async { drop(subscription.accept().await.unwrap()) };
    let (first, ()) = tokio::join!(exchange(&client, b"one"), rejecting);
    assert_eq!(first, b"application:one");
    assert_eq!(exchange(&client, b"two").await, b"application:two");
    assert_eq!(subscription.event().await, Some(Event::TrafficSeen(true)));
    let event = subscription.event().await;
    assert!(matches!(event, Some(Event::Missed(_))), "{event:?}");
}

#[tokio::test]
#[ignore = "needs root"]
async fn datagrams_are_mirrored() {
    let environment = environment();
    start_application(&environment.target, 53);
    let session = Session::of(&environment.agent()).await;
    let subscription = session.subscribe(udp(mirrored_port(53, "Ada"))).await;
    let subscription = subscription.unwrap();
    let client = client(&environment.client, socket_address(TARGET_IPV4, 53)).await;
    let (first, mirrored) = tokio::join!(exchange(&client, b"one"), subscription.accept());
    assert_eq!(first, b"application:one");
    let mut mirrored = mirrored.unwrap();
    mirrored
        .to_client
        .send(Bytes::from_static(&[ACCEPTED]))
        .await
        .unwrap();
    let mut decoder = DatagramDecoder::default();
    let received = with_timeout(next(&mut mirrored.from_client, &mut decoder)).await;
    assert_eq!(received.as_deref(), Some(&b"one"[..]));
    assert_eq!(exchange(&client, b"two").await, b"application:two");
    let received = with_timeout(next(&mut mirrored.from_client, &mut decoder)).await;
    assert_eq!(received.as_deref(), Some(&b"two"[..]));
    drop((subscription, mirrored));
    environment.wait_until_clean().await;
}

/// The agent's limit of concurrent flows.
const MAX_FLOWS: usize = 4096;

#[tokio::test]
#[ignore = "needs root"]
async fn a_new_client_is_served_at_the_limit_of_flows() {
    let environment = environment();
    start_application(&environment.target, 53);
    let session = Session::of(&environment.agent()).await;
    let subscription = session.subscribe(udp(whole_port(53, "Ada"))).await;
    let subscription = subscription.unwrap();
    let accepting = tokio::spawn(async move {
        while let Ok(stolen) = subscription.accept().await {
            tokio::spawn(reply_all(stolen));
        }
    });
    // Many clients that send one request, each from its own port, and one client that stays.
    let to = socket_address(TARGET_IPV4, 53);
    let staying = client(&environment.client, to).await;
    for number in 0..=MAX_FLOWS {
        let short_lived = client(&environment.client, to).await;
        assert_eq!(
            exchange(&short_lived, b"one").await,
            b"session:one",
            "{number}"
        );
        if number % 100 == 0 {
            assert_eq!(exchange(&staying, b"more").await, b"session:more");
        }
    }
    accepting.abort();
}
