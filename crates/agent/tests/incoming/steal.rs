//! Sessions that steal connections and requests.

use protocol::rpc::RedirectCheck;
use protocol::rpc::subscribe_event::Event;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::environment::{FROM_INSIDE, FROM_OUTSIDE, TARGET_IPV4, environment, socket_address};
use crate::programs::{APPLICATION, Application, Client, identify_server};
use crate::session::{Session, whole_port, with_header};
use crate::web::{Site, get, serve};

/// The name of the session's server. It has the same length as the application's name.
const SESSION: &str = "the session";

#[tokio::test]
#[ignore = "needs root"]
async fn a_whole_port_goes_to_the_session_with_the_real_addresses() {
    let environment = environment();
    let mut application = Application::start(&environment.target, 80);
    let session = Session::of(&environment.agent()).await;
    let mut subscription = session.subscribe(whole_port(80, "Ada")).await.unwrap();
    assert_eq!(subscription.subscribed.check(), RedirectCheck::Loopback);
    assert_eq!(subscription.subscribed.mesh, "");

    for (network, address) in [
        (&environment.client, FROM_OUTSIDE[0]),
        (&environment.client, FROM_OUTSIDE[1]),
        (&environment.target, FROM_INSIDE[0]),
        (&environment.target, FROM_INSIDE[1]),
    ] {
        let to = socket_address(address, 80);
        let connecting = Client::connect(network, to);
        let (mut client, stolen) = tokio::join!(connecting, subscription.accept());
        let stolen = stolen.unwrap();
        assert_eq!(stolen.meta.client, client.own_address());
        assert_eq!(stolen.meta.server, to);
        assert_eq!(stolen.meta.tls, None);
        // The session may send first.
        let mut stream = stolen.into_stream().await;
        stream.write_all(SESSION.as_bytes()).await.unwrap();
        assert_eq!(client.server_name().await, SESSION);
        // Each direction is closed independently.
        client.stream.write_all(b"request").await.unwrap();
        client.stream.shutdown().await.unwrap();
        let mut received = String::new();
        stream.read_to_string(&mut received).await.unwrap();
        assert_eq!(received, "request");
        stream.write_all(b"response").await.unwrap();
        drop(stream);
        let mut response = String::new();
        client.stream.read_to_string(&mut response).await.unwrap();
        assert_eq!(response, "response");
    }
    assert_eq!(subscription.event().await, Some(Event::TrafficSeen(true)));
    assert!(application.peers.try_recv().is_err());

    // After the subscription the application gets the connections again.
    drop(subscription);
    environment.wait_until_clean().await;
    let to = socket_address(TARGET_IPV4, 80);
    assert_eq!(identify_server(&environment.client, to).await, APPLICATION);
}

#[tokio::test]
#[ignore = "needs root"]
async fn requests_that_match_go_to_the_session_and_all_others_to_the_application() {
    let environment = environment();
    let _site = Site::start(&environment.target, 80, "original");
    let session = Session::of(&environment.agent()).await;
    let request = with_header(80, "Ada", "x-user: ada");
    let subscription = session.subscribe(request).await.unwrap();
    let _serving = subscription.serve(|_, stream| serve(stream, "ada"));
    for address in FROM_OUTSIDE {
        let to = socket_address(address, 80);
        let response = get(&environment.client, to, "/a", "x-user: ada\r\n").await;
        assert_eq!(response, "ada /a 0");
        let response = get(&environment.client, to, "/b", "x-user: grace\r\n").await;
        assert_eq!(response, "original /b 0");
        assert_eq!(
            get(&environment.client, to, "/c", "").await,
            "original /c 0"
        );
    }
    drop(subscription);
    environment.wait_until_clean().await;
    let to = socket_address(TARGET_IPV4, 80);
    let response = get(&environment.client, to, "/a", "x-user: ada\r\n").await;
    assert_eq!(response, "original /a 0");
}
