//! What a session does not answer, the application does. And what must stay the application's, stays so.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http_body_util::BodyExt as _;
use protocol::incoming::TAKEN;
use protocol::rpc::subscribe_event::Event;
use protocol::rpc::{Missed, MissedReason, SubscribeRequest};
use rustix::net::sockopt;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::programs::{APPLICATION, Application, Client, soon, who_answers};
use crate::session::{Session, Subscription, whole_port, with_header};
use crate::web::{Site, ask, serve};
use crate::world::{TARGET_IPV4, socket_address, world};

const ADA: &str = "x-user: ada\r\n";

async fn missed(subscription: &mut Subscription) -> Missed {
    loop {
        match subscription.event().await {
            Some(Event::TrafficSeen(true)) => {}
            Some(Event::Missed(missed)) => return missed,
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn when_the_session_is_gone_the_next_request_is_the_applications() {
    let Some(world) = world() else { return };
    let _site = Site::start(&world.target, 80, "original");
    let to = socket_address(TARGET_IPV4, 80);
    let session = Session::of(&world.agent()).await;
    let subscription = session.subscribe(with_header(80, "Ada", "x-user: ada"));
    let subscription = subscription.await.unwrap();
    let _serving = subscription.serve(|_, stream| serve(stream, "ada"));
    assert_eq!(ask(&world.client, to, "/", ADA).await, "ada / 0");
    session.lose_connection();
    assert_eq!(ask(&world.client, to, "/", ADA).await, "original / 0");
    world.nothing_is_left().await;
}

/// As when the developer's machine is gone in the middle of everything: each request is answered, by the one or the other.
#[tokio::test]
#[ignore = "needs root"]
async fn when_the_session_is_lost_under_load_no_request_is() {
    let Some(world) = world() else { return };
    let _site = Site::start(&world.target, 80, "original");
    let to = socket_address(TARGET_IPV4, 80);
    let session = Session::of(&world.agent()).await;
    let subscription = session.subscribe(with_header(80, "Ada", "x-user: ada"));
    let subscription = subscription.await.unwrap();
    let _serving = subscription.serve(|_, stream| serve(stream, "ada"));
    let answered = AtomicUsize::new(0);
    let clients = (0..8).map(async |_| {
        // Until this one, and so everybody after it, has seen both.
        loop {
            let answer = ask(&world.client, to, "/", ADA).await;
            answered.fetch_add(1, Ordering::Relaxed);
            match answer.as_str() {
                "ada / 0" => {}
                "original / 0" => return,
                other => panic!("{other}"),
            }
        }
    });
    let lose = async {
        while answered.load(Ordering::Relaxed) < 100 {
            tokio::task::yield_now().await;
        }
        session.lose_connection();
    };
    soon(async { tokio::join!(join_all(clients), lose) }).await;
    assert!(answered.load(Ordering::Relaxed) > 100);
    world.nothing_is_left().await;
}

#[tokio::test]
#[ignore = "needs root"]
async fn what_is_not_taken_or_not_answered_goes_to_the_application_and_is_told() {
    let Some(world) = world() else { return };
    let _site = Site::start(&world.target, 80, "original");
    let to = socket_address(TARGET_IPV4, 80);
    let session = Session::of(&world.agent()).await;
    let wanted = SubscribeRequest {
        answer_within_milliseconds: 300,
        ..with_header(80, "Ada", "x-user: ada")
    };
    // Not taken.
    let mut subscription = session.subscribe(wanted.clone()).await.unwrap();
    let refuse = async { drop(subscription.accept().await.unwrap()) };
    let (answer, ()) = tokio::join!(ask(&world.client, to, "/", ADA), refuse);
    assert_eq!(answer, "original / 0");
    let told = missed(&mut subscription).await;
    assert_eq!((told.reason(), told.lost), (MissedReason::NoAnswer, false));
    drop(subscription);

    // Taken, and then nothing: it hangs.
    let mut subscription = session.subscribe(wanted.clone()).await.unwrap();
    let hang = async {
        let taken = subscription.accept().await.unwrap();
        taken
            .to_client
            .send(Bytes::from_static(&[TAKEN]))
            .await
            .unwrap();
        taken
    };
    let (answer, _hanging) = tokio::join!(ask(&world.client, to, "/", ADA), hang);
    assert_eq!(answer, "original / 0");
    let told = missed(&mut subscription).await;
    assert_eq!((told.reason(), told.lost), (MissedReason::TooSlow, false));
    drop(subscription);

    // Nobody even asks for a connection.
    let mut subscription = session.subscribe(wanted).await.unwrap();
    assert_eq!(ask(&world.client, to, "/", ADA).await, "original / 0");
    let told = missed(&mut subscription).await;
    assert_eq!((told.reason(), told.lost), (MissedReason::TooSlow, false));
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_connection_that_is_not_taken_is_the_applications_with_all_that_was_said() {
    let Some(world) = world() else { return };
    let _application = Application::start(&world.target, 80);
    let session = Session::of(&world.agent()).await;
    let subscription = session.subscribe(whole_port(80, "Ada")).await.unwrap();
    let connecting = Client::connect(&world.client, socket_address(TARGET_IPV4, 80));
    let (mut client, offered) = tokio::join!(connecting, subscription.accept());
    let mut offered = offered.unwrap();
    client.stream.write_all(b"hello").await.unwrap();
    let first = soon(offered.from_client.frame()).await.unwrap().unwrap();
    assert_eq!(first.into_data().unwrap(), "hello");
    drop(offered);
    assert_eq!(client.who().await, APPLICATION);
    let mut back = [0; 5];
    soon(client.stream.read_exact(&mut back)).await.unwrap();
    assert_eq!(&back, b"hello");
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_reset_is_a_reset_on_the_other_side() {
    let Some(world) = world() else { return };
    let session = Session::of(&world.agent()).await;
    let subscription = session.subscribe(whole_port(80, "Ada")).await.unwrap();
    let to = socket_address(TARGET_IPV4, 80);
    // By the application of the session.
    let (mut client, taken) =
        tokio::join!(Client::connect(&world.client, to), subscription.accept());
    let taken = taken.unwrap();
    let (taken, to_client) = (taken.from_client, taken.to_client);
    to_client
        .send(Bytes::from_static(&[TAKEN, b'a']))
        .await
        .unwrap();
    let mut first = [0];
    soon(client.stream.read_exact(&mut first)).await.unwrap();
    to_client.send(Bytes::new()).await.unwrap();
    let ended = soon(client.stream.read(&mut first)).await;
    assert_eq!(
        ended.unwrap_err().kind(),
        std::io::ErrorKind::ConnectionReset
    );
    drop(taken);

    // By the client.
    let (client, taken) = tokio::join!(Client::connect(&world.client, to), subscription.accept());
    let mut taken = taken.unwrap();
    taken
        .to_client
        .send(Bytes::from_static(&[TAKEN]))
        .await
        .unwrap();
    sockopt::set_socket_linger(&client.stream, Some(Duration::ZERO)).unwrap();
    drop(client);
    let ended = soon(taken.from_client.frame()).await;
    assert!(ended.unwrap().is_err());

    // An end is an end.
    let (client, taken) = tokio::join!(Client::connect(&world.client, to), subscription.accept());
    let mut taken = taken.unwrap();
    taken
        .to_client
        .send(Bytes::from_static(&[TAKEN]))
        .await
        .unwrap();
    drop(client);
    // Whatever comes is an end.
    while let Some(frame) = soon(taken.from_client.frame()).await {
        assert_eq!(frame.unwrap().into_data().unwrap(), "");
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn health_probes_stay_the_applications_unless_they_are_wanted() {
    let Some(world) = world() else { return };
    let _site = Site::start(&world.target, 80, "original");
    let to = socket_address(TARGET_IPV4, 80);
    let session = Session::of(&world.agent()).await;
    for (takes_probes, probed) in [(false, "original"), (true, "ada")] {
        let wanted = SubscribeRequest {
            takes_probes,
            probe_paths: vec!["/healthy?now".to_owned()],
            ..whole_port(80, "Ada")
        };
        let subscription = session.subscribe(wanted).await.unwrap();
        let _serving = subscription.serve(|_, stream| serve(stream, "ada"));
        let by_agent = ask(&world.client, to, "/", "user-agent: kube-probe/1.34\r\n").await;
        assert_eq!(by_agent, format!("{probed} / 0"));
        let by_path = ask(&world.client, to, "/healthy?now", "").await;
        assert_eq!(by_path, format!("{probed} /healthy 0"));
        assert_eq!(
            ask(&world.client, to, "/healthy", "").await,
            "ada /healthy 0"
        );
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn open_connections_are_reset_when_asked() {
    let Some(world) = world() else { return };
    let _application = Application::start(&world.target, 80);
    let to = socket_address(TARGET_IPV4, 80);
    let mut before = Client::connect(&world.client, to).await;
    assert_eq!(before.who().await, APPLICATION);
    let session = Session::of(&world.agent()).await;
    let untouched = session.subscribe(whole_port(80, "Ada")).await.unwrap();
    before.echo().await;
    assert_eq!(untouched.subscribed.flushed, 0);
    drop(untouched);
    world.nothing_is_left().await;
    let wanted = SubscribeRequest {
        flush_connections: true,
        ..whole_port(80, "Ada")
    };
    let subscription = session.subscribe(wanted).await.unwrap();
    assert_eq!(subscription.subscribed.flushed, 1);
    let ended = before.try_echo().await;
    assert!(ended.is_err());
    drop(subscription);
    world.nothing_is_left().await;
    assert_eq!(who_answers(&world.client, to).await, APPLICATION);
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_subscription_to_which_nothing_arrives_is_refused() {
    let Some(world) = world() else { return };
    world.target.feed(
        "nft -f -",
        "table inet other {\n chain first {\n type filter hook prerouting priority -300\n th dport 80 drop\n }\n }\n",
    );
    let before = world.tables();
    let session = Session::of(&world.agent()).await;
    let Err(failure) = session.subscribe(whole_port(80, "Ada")).await else {
        panic!("it is refused");
    };
    assert!(failure.detail.contains("nft list ruleset"), "{failure:?}");
    soon(async {
        while world.tables() != before {
            tokio::task::yield_now().await;
        }
    })
    .await;
}
