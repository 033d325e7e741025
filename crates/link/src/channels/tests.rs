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

/// An end that speaks the WebSocket by hand, and an end of ours.
async fn by_hand() -> (WebSocketStream<DuplexStream>, End) {
    let (one, other) = duplex(64 * 1024);
    let by_hand = WebSocketStream::from_raw_socket(one, Role::Client, None).await;
    let socket = WebSocketStream::from_raw_socket(other, Role::Server, Some(limits())).await;
    let (channels, events, driver) = Channels::over(socket);
    channels.hear_no_news();
    let end = End {
        channels,
        events,
        driver: tokio::spawn(driver),
    };
    (by_hand, end)
}

#[tokio::test]
async fn what_makes_no_sense_ends_the_connection() {
    let open = |channel| Frame::Open { channel, place: 1 };
    let data = |bytes: Vec<u8>| Frame::Data {
        channel: 1,
        bytes: bytes.into(),
    };
    let cases = [
        (
            "empty",
            vec![open(1), data(Vec::new())],
            "a message has no bytes",
        ),
        (
            "twice",
            vec![open(1), open(1)],
            "a channel was opened twice",
        ),
        (
            "news",
            vec![Frame::News(Bytes::new())],
            "nothing was to be said",
        ),
        (
            "long",
            vec![open(1), data(vec![0; 2 * MESSAGE])],
            "Space limit exceeded",
        ),
    ];
    for (what, frames, expected) in cases {
        let (mut by_hand, end) = by_hand().await;
        for frame in frames {
            // The other end may be gone before all is said.
            let _ = by_hand.send(Message::Binary(frame.encode())).await;
        }
        let error = end.driver.await.unwrap().unwrap_err();
        assert!(error.to_string().contains(expected), "{what}: {error}");
    }
}

#[tokio::test]
async fn the_other_end_cannot_open_channels_without_bound() {
    let (mut by_hand, mut end) = by_hand().await;
    let most = u32::try_from(MOST_CHANNELS).unwrap();
    for channel in 0..=most {
        let open = Frame::Open { channel, place: 1 };
        by_hand.send(Message::Binary(open.encode())).await.unwrap();
    }
    let refused = by_hand.next().await.unwrap().unwrap();
    let Frame::Close { channel, why } = Frame::decode(refused.into_data()).unwrap() else {
        panic!("it was not refused");
    };
    assert_eq!(channel, most);
    assert!(why.contains("no more can be opened"), "{why}");
    // One that goes makes room for another.
    drop(end.opened().await);
    let again = Frame::Open {
        channel: most + 1,
        place: 9,
    };
    by_hand.send(Message::Binary(again.encode())).await.unwrap();
    for _ in 1..most {
        drop(end.opened().await);
    }
    assert_eq!(end.opened().await.0, 9);
}

#[tokio::test]
async fn who_asks_and_does_not_listen_is_left() {
    let (mut by_hand, mut end) = by_hand().await;
    let refusing = tokio::spawn(async move {
        while let Some(Event::Opened { channel, .. }) = end.events.recv().await {
            channel.refuse(&"no ".repeat(100));
        }
    });
    for channel in 0.. {
        let open = Frame::Open { channel, place: 1 };
        if by_hand.send(Message::Binary(open.encode())).await.is_err() {
            break;
        }
    }
    let error = end.driver.await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "more is asked than is listened to");
    refusing.await.unwrap();
}
