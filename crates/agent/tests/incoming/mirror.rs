//! Sessions that mirror connections.

use protocol::rpc::subscribe_event::Event;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::environment::{FROM_OUTSIDE, TARGET_IPV4, environment, socket_address};
use crate::programs::{APPLICATION, Application, Client, with_timeout};
use crate::session::{Session, mirrored_port, whole_port};

#[tokio::test]
#[ignore = "needs root"]
async fn a_mirror_has_the_bytes_of_the_client_and_its_responses_are_discarded() {
    let environment = environment();
    let _application = Application::start(&environment.target, 80);
    let session = Session::of(&environment.agent()).await;
    let subscription = session.subscribe(mirrored_port(80, "Ada")).await.unwrap();
    for address in FROM_OUTSIDE {
        let to = socket_address(address, 80);
        let connecting = Client::connect(&environment.client, to);
        let (mut client, mirrored) = tokio::join!(connecting, with_timeout(subscription.accept()));
        let mirrored = mirrored.unwrap();
        assert_eq!(mirrored.meta.client, client.own_address());
        let mut mirror = mirrored.into_stream().await;
        mirror.write_all(b"discarded").await.unwrap();
        assert_eq!(client.server_name().await, APPLICATION);
        client.echo().await;
        client.stream.shutdown().await.unwrap();
        let mut rest = String::new();
        client.stream.read_to_string(&mut rest).await.unwrap();
        assert_eq!(rest, "");
        let mut received = String::new();
        with_timeout(mirror.read_to_string(&mut received))
            .await
            .unwrap();
        assert_eq!(received, "hello");
    }
    drop(subscription);
    environment.wait_until_clean().await;
}

#[tokio::test]
#[ignore = "needs root"]
async fn stolen_connections_of_another_session_can_be_mirrored() {
    let environment = environment();
    let agent = environment.agent();
    let ada = Session::of(&agent).await;
    let grace = Session::of(&agent).await;
    let stealing = ada.subscribe(whole_port(80, "Ada")).await.unwrap();
    let mirroring = grace.subscribe(mirrored_port(80, "Grace")).await.unwrap();
    let connecting = Client::connect(&environment.client, socket_address(TARGET_IPV4, 80));
    let (client, stolen, mirrored) =
        tokio::join!(connecting, stealing.accept(), mirroring.accept());
    let mut client = client;
    let mut stolen = stolen.unwrap().into_stream().await;
    let mut mirrored = mirrored.unwrap().into_stream().await;
    client.stream.write_all(b"hello").await.unwrap();
    for stream in [&mut stolen, &mut mirrored] {
        let mut received = [0; 5];
        with_timeout(stream.read_exact(&mut received))
            .await
            .unwrap();
        assert_eq!(&received, b"hello");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root"]
async fn a_mirror_that_is_not_read_does_not_block_the_connection() {
    const MEBIBYTES: usize = 64;
    let environment = environment();
    let _application = Application::start(&environment.target, 80);
    let session = Session::of(&environment.agent()).await;
    let mut subscription = session.subscribe(mirrored_port(80, "Ada")).await.unwrap();
    let connecting = Client::connect(&environment.client, socket_address(TARGET_IPV4, 80));
    let (client, unread) = tokio::join!(connecting, subscription.accept());
    let _unread = unread.unwrap();
    let mut client = client;
    assert_eq!(client.server_name().await, APPLICATION);
    let (mut reading, mut writing) = client.stream.into_split();
    let write = async {
        let mebibyte = vec![7; 1024 * 1024];
        for _ in 0..MEBIBYTES {
            writing.write_all(&mebibyte).await.unwrap();
        }
        writing.shutdown().await.unwrap();
    };
    let read = async {
        let mut sink = tokio::io::sink();
        tokio::io::copy(&mut reading, &mut sink).await.unwrap()
    };
    let ((), echoed) = with_timeout(async { tokio::join!(write, read) }).await;
    assert_eq!(echoed, MEBIBYTES as u64 * 1024 * 1024);
    loop {
        match subscription.event().await {
            Some(Event::TrafficSeen(true)) => {}
            Some(Event::MirrorDropped(true)) => break,
            other => panic!("{other:?}"),
        }
    }
}
