//! Sessions that take connections and requests instead of the application.

use protocol::rpc::Proof;
use protocol::rpc::subscribe_event::Event;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::programs::{APPLICATION, Application, Client, who_answers};
use crate::session::{Session, whole_port, with_header};
use crate::web::{Site, ask, serve};
use crate::world::{FROM_INSIDE, FROM_OUTSIDE, TARGET_IPV4, socket_address, world};

/// As long as the application's.
const SESSION: &str = "the session";

#[tokio::test]
#[ignore = "needs root"]
async fn a_whole_port_goes_to_the_session_with_the_real_addresses() {
    let Some(world) = world() else { return };
    let mut application = Application::start(&world.target, 80);
    let session = Session::of(&world.agent()).await;
    let mut subscription = session.subscribe(whole_port(80, "Ada")).await.unwrap();
    assert_eq!(subscription.subscribed.proof(), Proof::Loopback);
    assert_eq!(subscription.subscribed.mesh, "");

    for (network, address) in [
        (&world.client, FROM_OUTSIDE[0]),
        (&world.client, FROM_OUTSIDE[1]),
        (&world.target, FROM_INSIDE[0]),
        (&world.target, FROM_INSIDE[1]),
    ] {
        let to = socket_address(address, 80);
        let connecting = Client::connect(network, to);
        let (mut client, taken) = tokio::join!(connecting, subscription.accept());
        let taken = taken.unwrap();
        assert_eq!(taken.arrived.client, client.own_address());
        assert_eq!(taken.arrived.server, to);
        assert_eq!(taken.arrived.tls, None);
        // The session may speak first.
        let mut stream = taken.into_stream().await;
        stream.write_all(SESSION.as_bytes()).await.unwrap();
        assert_eq!(client.who().await, SESSION);
        // Each direction ends by itself.
        client.stream.write_all(b"question").await.unwrap();
        client.stream.shutdown().await.unwrap();
        let mut question = String::new();
        stream.read_to_string(&mut question).await.unwrap();
        assert_eq!(question, "question");
        stream.write_all(b"answer").await.unwrap();
        drop(stream);
        let mut answer = String::new();
        client.stream.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "answer");
    }
    assert_eq!(subscription.event().await, Some(Event::TrafficSeen(true)));
    assert!(application.peers.try_recv().is_err());

    // Afterwards everything is as before.
    drop(subscription);
    world.nothing_is_left().await;
    let to = socket_address(TARGET_IPV4, 80);
    assert_eq!(who_answers(&world.client, to).await, APPLICATION);
}

#[tokio::test]
#[ignore = "needs root"]
async fn requests_that_match_go_to_the_session_and_all_others_to_the_application() {
    let Some(world) = world() else { return };
    let _site = Site::start(&world.target, 80, "original");
    let session = Session::of(&world.agent()).await;
    let wanted = with_header(80, "Ada", "x-user: ada");
    let subscription = session.subscribe(wanted).await.unwrap();
    let _serving = subscription.serve(|_, stream| serve(stream, "ada"));
    for address in FROM_OUTSIDE {
        let to = socket_address(address, 80);
        let answer = ask(&world.client, to, "/a", "x-user: ada\r\n").await;
        assert_eq!(answer, "ada /a 0");
        let answer = ask(&world.client, to, "/b", "x-user: grace\r\n").await;
        assert_eq!(answer, "original /b 0");
        assert_eq!(ask(&world.client, to, "/c", "").await, "original /c 0");
    }
    drop(subscription);
    world.nothing_is_left().await;
    let to = socket_address(TARGET_IPV4, 80);
    let answer = ask(&world.client, to, "/a", "x-user: ada\r\n").await;
    assert_eq!(answer, "original /a 0");
}
