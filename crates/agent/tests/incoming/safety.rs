//! Requests that a session does not respond to go to the application, and so does all traffic that is not claimed.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http_body_util::BodyExt as _;
use protocol::incoming::ACCEPTED;
use protocol::rpc::subscribe_event::Event;
use protocol::rpc::{MissedReason, MissedTraffic, SubscribeRequest};
use rustix::net::sockopt;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::environment::{TARGET_IPV4, environment, socket_address};
use crate::programs::{APPLICATION, Application, Client, identify_server, with_timeout};
use crate::session::{Session, Subscription, whole_port, with_header};
use crate::web::{Site, get, serve};

const ADA: &str = "x-user: ada\r\n";

async fn missed(subscription: &mut Subscription) -> MissedTraffic {
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
async fn requests_go_to_the_application_after_the_session_is_lost() {
    let environment = environment();
    let _site = Site::start(&environment.target, 80, "original");
    let to = socket_address(TARGET_IPV4, 80);
    let session = Session::of(&environment.agent()).await;
    let subscription = session.subscribe(with_header(80, "Ada", "x-user: ada"));
    let subscription = subscription.await.unwrap();
    let _serving = subscription.serve(|_, stream| serve(stream, "ada"));
    assert_eq!(get(&environment.client, to, "/", ADA).await, "ada / 0");
    session.lose_connection();
    assert_eq!(get(&environment.client, to, "/", ADA).await, "original / 0");
    environment.wait_until_clean().await;
}

/// The client fails under load: every request gets a response, from the session or from the application.
#[tokio::test]
#[ignore = "needs root"]
async fn no_request_is_lost_when_the_session_is_lost_under_load() {
    let environment = environment();
    let _site = Site::start(&environment.target, 80, "original");
    let to = socket_address(TARGET_IPV4, 80);
    let session = Session::of(&environment.agent()).await;
    let subscription = session.subscribe(with_header(80, "Ada", "x-user: ada"));
    let subscription = subscription.await.unwrap();
    let _serving = subscription.serve(|_, stream| serve(stream, "ada"));
    let responses = AtomicUsize::new(0);
    let clients = (0..8).map(async |_| {
        // Until the application responds.
        loop {
            let response = get(&environment.client, to, "/", ADA).await;
            responses.fetch_add(1, Ordering::Relaxed);
            match response.as_str() {
                "ada / 0" => {}
                "original / 0" => return,
                other => panic!("{other}"),
            }
        }
    });
    let lose = async {
        while responses.load(Ordering::Relaxed) < 100 {
            tokio::task::yield_now().await;
        }
        session.lose_connection();
    };
    with_timeout(async { tokio::join!(join_all(clients), lose) }).await;
    assert!(responses.load(Ordering::Relaxed) > 100);
    environment.wait_until_clean().await;
}

#[tokio::test]
#[ignore = "needs root"]
async fn requests_without_a_response_go_to_the_application_and_are_reported() {
    let environment = environment();
    let _site = Site::start(&environment.target, 80, "original");
    let to = socket_address(TARGET_IPV4, 80);
    let session = Session::of(&environment.agent()).await;
    let request = SubscribeRequest {
        response_timeout_milliseconds: 300,
        ..with_header(80, "Ada", "x-user: ada")
    };
    // The session rejects the connection.
    let mut subscription = session.subscribe(request.clone()).await.unwrap();
    let reject = async { drop(subscription.accept().await.unwrap()) };
    let (response, ()) = tokio::join!(get(&environment.client, to, "/", ADA), reject);
    assert_eq!(response, "original / 0");
    let event = missed(&mut subscription).await;
    assert_eq!(
        (event.reason(), event.lost),
        (MissedReason::NoResponse, false)
    );
    drop(subscription);

    // The session accepts the connection and never responds.
    let mut subscription = session.subscribe(request.clone()).await.unwrap();
    let hang = async {
        let stolen = subscription.accept().await.unwrap();
        stolen
            .to_client
            .send(Bytes::from_static(&[ACCEPTED]))
            .await
            .unwrap();
        stolen
    };
    let (response, _hanging) = tokio::join!(get(&environment.client, to, "/", ADA), hang);
    assert_eq!(response, "original / 0");
    let event = missed(&mut subscription).await;
    assert_eq!((event.reason(), event.lost), (MissedReason::TooSlow, false));
    drop(subscription);

    // The session has no pending accept request.
    let mut subscription = session.subscribe(request).await.unwrap();
    assert_eq!(get(&environment.client, to, "/", ADA).await, "original / 0");
    let event = missed(&mut subscription).await;
    assert_eq!((event.reason(), event.lost), (MissedReason::TooSlow, false));
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_rejected_connection_goes_to_the_application_with_all_bytes() {
    let environment = environment();
    let _application = Application::start(&environment.target, 80);
    let session = Session::of(&environment.agent()).await;
    let subscription = session.subscribe(whole_port(80, "Ada")).await.unwrap();
    let connecting = Client::connect(&environment.client, socket_address(TARGET_IPV4, 80));
    let (mut client, offered) = tokio::join!(connecting, subscription.accept());
    let mut offered = offered.unwrap();
    client.stream.write_all(b"hello").await.unwrap();
    let first = with_timeout(offered.from_client.frame())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(first.into_data().unwrap(), "hello");
    drop(offered);
    assert_eq!(client.server_name().await, APPLICATION);
    let mut back = [0; 5];
    with_timeout(client.stream.read_exact(&mut back))
        .await
        .unwrap();
    assert_eq!(&back, b"hello");
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_reset_is_propagated_to_the_other_side() {
    let environment = environment();
    let session = Session::of(&environment.agent()).await;
    let subscription = session.subscribe(whole_port(80, "Ada")).await.unwrap();
    let to = socket_address(TARGET_IPV4, 80);
    // A reset by the session's application.
    let (mut client, stolen) = tokio::join!(
        Client::connect(&environment.client, to),
        subscription.accept()
    );
    let stolen = stolen.unwrap();
    let (from_client, to_client) = (stolen.from_client, stolen.to_client);
    to_client
        .send(Bytes::from_static(&[ACCEPTED, b'a']))
        .await
        .unwrap();
    let mut first = [0];
    with_timeout(client.stream.read_exact(&mut first))
        .await
        .unwrap();
    to_client.send(Bytes::new()).await.unwrap();
    let ended = with_timeout(client.stream.read(&mut first)).await;
    assert_eq!(
        ended.unwrap_err().kind(),
        std::io::ErrorKind::ConnectionReset
    );
    drop(from_client);

    // A reset by the client.
    let (client, stolen) = tokio::join!(
        Client::connect(&environment.client, to),
        subscription.accept()
    );
    let mut stolen = stolen.unwrap();
    stolen
        .to_client
        .send(Bytes::from_static(&[ACCEPTED]))
        .await
        .unwrap();
    sockopt::set_socket_linger(&client.stream, Some(Duration::ZERO)).unwrap();
    drop(client);
    let ended = with_timeout(stolen.from_client.frame()).await;
    assert!(ended.unwrap().is_err());

    // A normal close.
    let (client, stolen) = tokio::join!(
        Client::connect(&environment.client, to),
        subscription.accept()
    );
    let mut stolen = stolen.unwrap();
    stolen
        .to_client
        .send(Bytes::from_static(&[ACCEPTED]))
        .await
        .unwrap();
    drop(client);
    // The body ends without an error.
    while let Some(frame) = with_timeout(stolen.from_client.frame()).await {
        assert_eq!(frame.unwrap().into_data().unwrap(), "");
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn health_probes_go_to_the_application_unless_the_session_includes_them() {
    let environment = environment();
    let _site = Site::start(&environment.target, 80, "original");
    let to = socket_address(TARGET_IPV4, 80);
    let session = Session::of(&environment.agent()).await;
    for (takes_probes, probed) in [(false, "original"), (true, "ada")] {
        let request = SubscribeRequest {
            takes_probes,
            probe_paths: vec!["/healthy?now".to_owned()],
            ..whole_port(80, "Ada")
        };
        let subscription = session.subscribe(request).await.unwrap();
        let _serving = subscription.serve(|_, stream| serve(stream, "ada"));
        let by_agent = get(
            &environment.client,
            to,
            "/",
            "user-agent: kube-probe/1.34\r\n",
        )
        .await;
        assert_eq!(by_agent, format!("{probed} / 0"));
        let by_path = get(&environment.client, to, "/healthy?now", "").await;
        assert_eq!(by_path, format!("{probed} /healthy 0"));
        assert_eq!(
            get(&environment.client, to, "/healthy", "").await,
            "ada /healthy 0"
        );
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn open_connections_are_reset_on_request() {
    let environment = environment();
    let _application = Application::start(&environment.target, 80);
    let to = socket_address(TARGET_IPV4, 80);
    let mut before = Client::connect(&environment.client, to).await;
    assert_eq!(before.server_name().await, APPLICATION);
    let session = Session::of(&environment.agent()).await;
    let untouched = session.subscribe(whole_port(80, "Ada")).await.unwrap();
    before.echo().await;
    assert_eq!(untouched.subscribed.flushed, 0);
    drop(untouched);
    environment.wait_until_clean().await;
    let request = SubscribeRequest {
        flush_connections: true,
        ..whole_port(80, "Ada")
    };
    let subscription = session.subscribe(request).await.unwrap();
    assert_eq!(subscription.subscribed.flushed, 1);
    let ended = before.try_echo().await;
    assert!(ended.is_err());
    drop(subscription);
    environment.wait_until_clean().await;
    assert_eq!(identify_server(&environment.client, to).await, APPLICATION);
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_subscription_fails_if_the_redirection_does_not_work() {
    let environment = environment();
    environment.target.feed(
        "nft -f -",
        "table inet other {\n chain first {\n type filter hook prerouting priority -300\n th dport 80 drop\n }\n }\n",
    );
    let before = environment.tables();
    let session = Session::of(&environment.agent()).await;
    let Err(failure) = session.subscribe(whole_port(80, "Ada")).await else {
        panic!("expected a rejection");
    };
    assert!(failure.detail.contains("nft list ruleset"), "{failure:?}");
    with_timeout(async {
        while environment.tables() != before {
            tokio::task::yield_now().await;
        }
    })
    .await;
}
