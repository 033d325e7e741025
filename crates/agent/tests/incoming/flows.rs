//! Sessions that take datagrams, or copies of them.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use protocol::incoming::TAKEN;
use protocol::outgoing::{Datagram, DatagramDecoder};
use protocol::rpc::subscribe_event::Event;
use protocol::rpc::{IncomingTransport, OnConflict, SubscribeRequest};

use crate::datagrams::{client, exchange, start_application};
use crate::programs::soon;
use crate::session::{Session, Taken, copy_of, whole_port, with_header};
use crate::world::{FROM_INSIDE, FROM_OUTSIDE, TARGET_IPV4, socket_address, world};

fn of_udp(request: SubscribeRequest) -> SubscribeRequest {
    SubscribeRequest {
        transport: IncomingTransport::Udp.into(),
        ..request
    }
}

/// Answers every datagram of a flow with a word before it.
async fn answer(mut taken: Taken) {
    let _ = taken.to_client.send(Bytes::from_static(&[TAKEN])).await;
    let mut decoder = DatagramDecoder::default();
    while let Some(payload) = next(&mut taken.from_client, &mut decoder).await {
        let mut frame = BytesMut::new();
        let answer = Datagram::Payload {
            address: None,
            payload: [b"session:", &payload[..]].concat().into(),
        };
        answer.encode(&mut frame);
        let _ = taken.to_client.send(frame.freeze()).await;
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
async fn datagrams_go_to_the_session_and_back_to_the_client() {
    let Some(world) = world() else { return };
    start_application(&world.target, 53);
    let session = Session::of(&world.agent()).await;
    let wanted = of_udp(whole_port(53, "Ada"));
    let mut subscription = session.subscribe(wanted.clone()).await.unwrap();
    let outside = FROM_OUTSIDE.map(|address| (&world.client, address));
    let inside = FROM_INSIDE.map(|address| (&world.target, address));
    for (network, address) in outside.into_iter().chain(inside) {
        let to = socket_address(address, 53);
        let client = client(network, to).await;
        let taking = async {
            let taken = subscription.accept().await.unwrap();
            assert_eq!(taken.arrived.client, client.local_addr().unwrap());
            assert_eq!(taken.arrived.server, to);
            tokio::spawn(answer(taken));
        };
        let (first, ()) = tokio::join!(exchange(&client, b"one"), taking);
        assert_eq!(first, b"session:one");
        // The same flow, also with what fills a packet and with nothing.
        let large = vec![7; 1400];
        for payload in [&b""[..], &large] {
            let answered = exchange(&client, payload).await;
            assert_eq!(answered, [b"session:", payload].concat());
        }
    }
    assert_eq!(subscription.event().await, Some(Event::TrafficSeen(true)));

    let Err(failure) = session.subscribe(of_udp(whole_port(53, "Grace"))).await else {
        panic!("it is refused");
    };
    assert!(failure.detail.starts_with("Ada already"), "{failure:?}");
    let with_filter = of_udp(with_header(54, "Ada", "a: b"));
    assert!(session.subscribe(with_filter).await.is_err());
    let taken_away = SubscribeRequest {
        on_conflict: OnConflict::Override.into(),
        ..of_udp(whole_port(53, "Grace"))
    };
    let other = session.subscribe(taken_away).await.unwrap();
    let lost = subscription.event().await;
    assert_eq!(lost, Some(Event::LostTo("Grace".to_owned())));
    drop((subscription, other));
    world.nothing_is_left().await;
    let client = client(&world.client, socket_address(TARGET_IPV4, 53)).await;
    assert_eq!(exchange(&client, b"two").await, b"application:two");
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_flow_ends_with_its_subscription_and_the_next_datagram_is_the_applications() {
    let Some(world) = world() else { return };
    start_application(&world.target, 53);
    let agent = world.agent();
    let session = Session::of(&agent).await;
    let subscription = session.subscribe(of_udp(whole_port(53, "Ada"))).await;
    let subscription = subscription.unwrap();
    // Somebody else keeps the port redirected.
    let other = Session::of(&agent).await;
    let copying = other.subscribe(of_udp(copy_of(53, "Grace"))).await.unwrap();
    let client = client(&world.client, socket_address(TARGET_IPV4, 53)).await;
    let taking = async {
        tokio::spawn(answer(subscription.accept().await.unwrap()));
    };
    let (first, ()) = tokio::join!(exchange(&client, b"one"), taking);
    assert_eq!(first, b"session:one");
    drop(subscription);
    let back = async { while exchange(&client, b"two").await != b"application:two" {} };
    soon(back).await;
    drop(copying);
    world.nothing_is_left().await;
}

#[tokio::test]
#[ignore = "needs root"]
async fn what_a_session_does_not_take_goes_to_the_application() {
    let Some(world) = world() else { return };
    start_application(&world.target, 53);
    let session = Session::of(&world.agent()).await;
    let subscription = session.subscribe(of_udp(whole_port(53, "Ada"))).await;
    let mut subscription = subscription.unwrap();
    let client = client(&world.client, socket_address(TARGET_IPV4, 53)).await;
    let refusing = async { drop(subscription.accept().await.unwrap()) };
    let (first, ()) = tokio::join!(exchange(&client, b"one"), refusing);
    assert_eq!(first, b"application:one");
    assert_eq!(exchange(&client, b"two").await, b"application:two");
    assert_eq!(subscription.event().await, Some(Event::TrafficSeen(true)));
    let told = subscription.event().await;
    assert!(matches!(told, Some(Event::Missed(_))), "{told:?}");
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_copy_of_datagrams() {
    let Some(world) = world() else { return };
    start_application(&world.target, 53);
    let session = Session::of(&world.agent()).await;
    let subscription = session.subscribe(of_udp(copy_of(53, "Ada"))).await;
    let subscription = subscription.unwrap();
    let client = client(&world.client, socket_address(TARGET_IPV4, 53)).await;
    let (first, taken) = tokio::join!(exchange(&client, b"one"), subscription.accept());
    assert_eq!(first, b"application:one");
    let mut taken = taken.unwrap();
    taken
        .to_client
        .send(Bytes::from_static(&[TAKEN]))
        .await
        .unwrap();
    let mut decoder = DatagramDecoder::default();
    let copied = soon(next(&mut taken.from_client, &mut decoder)).await;
    assert_eq!(copied.as_deref(), Some(&b"one"[..]));
    assert_eq!(exchange(&client, b"two").await, b"application:two");
    let copied = soon(next(&mut taken.from_client, &mut decoder)).await;
    assert_eq!(copied.as_deref(), Some(&b"two"[..]));
    drop((subscription, taken));
    world.nothing_is_left().await;
}

/// So many clients are known at the same time.
const FLOWS: usize = 4096;

#[tokio::test]
#[ignore = "needs root"]
async fn a_client_that_comes_when_all_places_are_taken_is_served() {
    let Some(world) = world() else { return };
    start_application(&world.target, 53);
    let session = Session::of(&world.agent()).await;
    let subscription = session.subscribe(of_udp(whole_port(53, "Ada"))).await;
    let subscription = subscription.unwrap();
    let taking = tokio::spawn(async move {
        while let Ok(taken) = subscription.accept().await {
            tokio::spawn(answer(taken));
        }
    });
    // Clients that ask once, each from a port of its own, and one that stays.
    let to = socket_address(TARGET_IPV4, 53);
    let staying = client(&world.client, to).await;
    for number in 0..=FLOWS {
        let asking = client(&world.client, to).await;
        assert_eq!(exchange(&asking, b"one").await, b"session:one", "{number}");
        if number % 100 == 0 {
            assert_eq!(exchange(&staying, b"more").await, b"session:more");
        }
    }
    taking.abort();
}
