use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio_tungstenite::tungstenite::protocol::Role;

use super::*;

struct End {
    channels: Channels,
    events: mpsc::UnboundedReceiver<Event>,
    driver: tokio::task::JoinHandle<io::Result<()>>,
}

impl End {
    async fn over(socket: DuplexStream, role: Role) -> Self {
        let socket = WebSocketStream::from_raw_socket(socket, role, None).await;
        let (channels, events, driver) = Channels::over(socket);
        Self {
            channels,
            events,
            driver: tokio::spawn(driver),
        }
    }

    async fn opened(&mut self) -> (u32, Channel) {
        match self.events.recv().await {
            Some(Event::Opened { place, channel }) => (place, channel),
            other => panic!("{other:?}"),
        }
    }
}

async fn ends() -> (End, End) {
    let (one, other) = duplex(64 * 1024);
    (
        End::over(one, Role::Client).await,
        End::over(other, Role::Server).await,
    )
}

#[test]
fn frames_are_read_as_they_were_written() {
    let frames = [
        Frame::Data {
            channel: 7,
            bytes: Bytes::from_static(b"abc"),
        },
        Frame::Open {
            channel: 1,
            place: u32::MAX,
        },
        Frame::Close {
            channel: 2,
            why: "because".to_owned(),
        },
        Frame::Credit {
            channel: 3,
            bytes: 9,
        },
        Frame::News(Bytes::from_static(b"{}")),
        Frame::Farewell,
    ];
    for frame in frames {
        assert_eq!(Frame::decode(frame.encode()).unwrap(), frame);
    }
    for wrong in [&b"\0\0\0\0"[..], b"\x01\0\0\0\0\0", b"\x63\0\0\0\0"] {
        assert!(Frame::decode(Bytes::from_static(wrong)).is_err());
    }
}

#[tokio::test]
async fn bytes_travel_both_ways_in_each_channel() {
    let (client, mut server) = ends().await;
    let mut first = client.channels.open(3);
    let mut second = client.channels.open(3);
    let (place, mut at_first) = server.opened().await;
    let (_, mut at_second) = server.opened().await;
    assert_eq!(place, 3);
    first.write_all(b"one").await.unwrap();
    second.write_all(b"two").await.unwrap();
    let mut bytes = [0; 3];
    at_second.read_exact(&mut bytes).await.unwrap();
    assert_eq!(&bytes, b"two");
    at_first.read_exact(&mut bytes).await.unwrap();
    assert_eq!(&bytes, b"one");
    at_first.write_all(b"back").await.unwrap();
    at_first.shutdown().await.unwrap();
    let mut all = Vec::new();
    first.read_to_end(&mut all).await.unwrap();
    assert_eq!(all, b"back");
}

#[tokio::test]
async fn a_channel_that_nobody_reads_stops_itself_and_no_other() {
    let (client, mut server) = ends().await;
    let mut stalled = client.channels.open(1);
    let (_, mut at_stalled) = server.opened().await;
    let whole = vec![7; CREDIT + PORTION];
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    let writing = tokio::spawn(async move {
        for part in whole.chunks(PORTION) {
            stalled.write_all(part).await.unwrap();
            counted.fetch_add(part.len(), Ordering::Relaxed);
        }
        stalled
    });
    // Others go on, also after the stalled one has used up its credit.
    let mut other = client.channels.open(2);
    let (_, mut at_other) = server.opened().await;
    while sent.load(Ordering::Relaxed) < CREDIT {
        other.write_all(b"x").await.unwrap();
        at_other.read_u8().await.unwrap();
    }
    for _ in 0..100 {
        other.write_all(b"x").await.unwrap();
        at_other.read_u8().await.unwrap();
    }
    assert_eq!(sent.load(Ordering::Relaxed), CREDIT);
    let mut read = vec![0; CREDIT + PORTION];
    at_stalled.read_exact(&mut read).await.unwrap();
    writing.await.unwrap();
    assert!(read.iter().all(|byte| *byte == 7));
}

#[tokio::test]
async fn a_refusal_tells_why() {
    let (client, mut server) = ends().await;
    let mut channel = client.channels.open(9);
    server.opened().await.1.refuse("nobody is there");
    let error = channel.read_u8().await.unwrap_err();
    assert_eq!(error.to_string(), "nobody is there");
    let error = channel.write_all(b"x").await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
}

#[tokio::test]
async fn news_and_farewells_arrive() {
    let (mut client, mut server) = ends().await;
    server.channels.say(Bytes::from_static(b"places"));
    match client.events.recv().await {
        Some(Event::News(news)) => assert_eq!(news, "places"),
        other => panic!("{other:?}"),
    }
    client.channels.say_farewell();
    assert!(matches!(server.events.recv().await, Some(Event::Farewell)));
}

#[tokio::test]
async fn channels_end_with_their_connection() {
    let (client, mut server) = ends().await;
    let mut channel = client.channels.open(1);
    let (_, mut at_server) = server.opened().await;
    server.channels.end("this replica ends");
    server.driver.await.unwrap().unwrap();
    client.driver.await.unwrap().unwrap();
    assert_eq!(channel.read(&mut [0; 1]).await.unwrap(), 0);
    assert!(channel.write_all(b"x").await.is_err());
    assert_eq!(at_server.read(&mut [0; 1]).await.unwrap(), 0);
    let mut late = client.channels.open(1);
    assert_eq!(late.read(&mut [0; 1]).await.unwrap(), 0);
    assert!(late.write_all(b"x").await.is_err());
}

#[tokio::test]
async fn the_reason_of_an_end_is_told() {
    let (mut client, server) = ends().await;
    server.channels.end("this replica ends");
    match client.events.recv().await {
        Some(Event::Closed(reason)) => assert_eq!(reason, "this replica ends"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn an_end_that_is_silent_is_lost_and_one_that_is_idle_is_not() {
    let (client, _server) = ends().await;
    tokio::time::sleep(10 * SILENCE).await;
    assert!(!client.driver.is_finished());
    // Nobody reads or writes at the other end, as if the network were cut.
    let (_held, silent) = duplex(64 * 1024);
    let cut = End::over(silent, Role::Client).await;
    let error = cut.driver.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
}

#[tokio::test]
async fn whoever_sends_more_than_it_may_is_cut_off() {
    let (client, mut server) = ends().await;
    let channel = client.channels.open(1);
    let (_, _not_reading) = server.opened().await;
    // As a client would that does not count.
    channel
        .outgoing
        .credit
        .store(usize::MAX / 2, Ordering::Relaxed);
    let mut channel = channel;
    let writing = tokio::spawn(async move {
        let part = vec![0; PORTION];
        while channel.write_all(&part).await.is_ok() {}
    });
    let error = server.driver.await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "more came than was allowed");
    writing.await.unwrap();
}
