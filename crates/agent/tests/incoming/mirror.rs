//! Sessions that get a copy.

use protocol::rpc::subscribe_event::Event;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::programs::{APPLICATION, Application, Client, soon};
use crate::session::{Session, copy_of, whole_port};
use crate::world::{FROM_OUTSIDE, TARGET_IPV4, socket_address, world};

#[tokio::test]
#[ignore = "needs root"]
async fn a_copy_has_what_the_client_said_and_nobody_hears_its_answer() {
    let Some(world) = world() else { return };
    let _application = Application::start(&world.target, 80);
    let session = Session::of(&world.agent()).await;
    let subscription = session.subscribe(copy_of(80, "Ada")).await.unwrap();
    for address in FROM_OUTSIDE {
        let to = socket_address(address, 80);
        let connecting = Client::connect(&world.client, to);
        let (mut client, taken) = tokio::join!(connecting, soon(subscription.accept()));
        let taken = taken.unwrap();
        assert_eq!(taken.arrived.client, client.own_address());
        let mut copy = taken.into_stream().await;
        copy.write_all(b"nobody hears this").await.unwrap();
        assert_eq!(client.who().await, APPLICATION);
        client.echo().await;
        client.stream.shutdown().await.unwrap();
        let mut rest = String::new();
        client.stream.read_to_string(&mut rest).await.unwrap();
        assert_eq!(rest, "");
        let mut copied = String::new();
        soon(copy.read_to_string(&mut copied)).await.unwrap();
        assert_eq!(copied, "hello");
    }
    drop(subscription);
    world.nothing_is_left().await;
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_copy_of_what_another_session_takes() {
    let Some(world) = world() else { return };
    let agent = world.agent();
    let ada = Session::of(&agent).await;
    let grace = Session::of(&agent).await;
    let taking = ada.subscribe(whole_port(80, "Ada")).await.unwrap();
    let copying = grace.subscribe(copy_of(80, "Grace")).await.unwrap();
    let connecting = Client::connect(&world.client, socket_address(TARGET_IPV4, 80));
    let (client, taken, copied) = tokio::join!(connecting, taking.accept(), copying.accept());
    let mut client = client;
    let mut taken = taken.unwrap().into_stream().await;
    let mut copied = copied.unwrap().into_stream().await;
    client.stream.write_all(b"hello").await.unwrap();
    for stream in [&mut taken, &mut copied] {
        let mut heard = [0; 5];
        soon(stream.read_exact(&mut heard)).await.unwrap();
        assert_eq!(&heard, b"hello");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root"]
async fn a_copy_that_nobody_reads_holds_nothing_up() {
    const MEBIBYTES: usize = 64;
    let Some(world) = world() else { return };
    let _application = Application::start(&world.target, 80);
    let session = Session::of(&world.agent()).await;
    let mut subscription = session.subscribe(copy_of(80, "Ada")).await.unwrap();
    let connecting = Client::connect(&world.client, socket_address(TARGET_IPV4, 80));
    let (client, unread) = tokio::join!(connecting, subscription.accept());
    let _unread = unread.unwrap();
    let mut client = client;
    assert_eq!(client.who().await, APPLICATION);
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
    let ((), echoed) = soon(async { tokio::join!(write, read) }).await;
    assert_eq!(echoed, MEBIBYTES as u64 * 1024 * 1024);
    loop {
        match subscription.event().await {
            Some(Event::TrafficSeen(true)) => {}
            Some(Event::CopyDropped(true)) => break,
            other => panic!("{other:?}"),
        }
    }
}
