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
            Some(Event::Opened { endpoint, channel }) => (endpoint, channel),
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
fn frames_are_decoded_as_they_were_encoded() {
    let frames = [
        Frame::Data {
            channel: 7,
            bytes: Bytes::from_static(b"abc"),
        },
        Frame::Open {
            channel: 1,
            endpoint: u32::MAX,
        },
        Frame::Close {
            channel: 2,
            why: "because".to_owned(),
        },
        Frame::Credit {
            channel: 3,
            bytes: 9,
        },
        Frame::Message(Bytes::from_static(b"{}")),
        Frame::Finished,
    ];
    for frame in frames {
        assert_eq!(Frame::decode(frame.encode()).unwrap(), frame);
    }
    for wrong in [&b"\0\0\0\0"[..], b"\x01\0\0\0\0\0", b"\x63\0\0\0\0"] {
        assert!(Frame::decode(Bytes::from_static(wrong)).is_err());
    }
}

#[tokio::test]
async fn channels_carry_bytes_in_both_directions() {
    let (client, mut server) = ends().await;
    let mut first = client.channels.open(3);
    let mut second = client.channels.open(3);
    let (endpoint, mut at_first) = server.opened().await;
    let (_, mut at_second) = server.opened().await;
    assert_eq!(endpoint, 3);
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
async fn an_unread_channel_stops_only_its_own_sender() {
    let (client, mut server) = ends().await;
    let mut stalled = client.channels.open(1);
    let (_, mut at_stalled) = server.opened().await;
    let whole = vec![7; INITIAL_CREDIT + CREDIT_UPDATE];
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    let writing = tokio::spawn(async move {
        for part in whole.chunks(CREDIT_UPDATE) {
            stalled.write_all(part).await.unwrap();
            counted.fetch_add(part.len(), Ordering::Relaxed);
        }
        stalled
    });
    // Others continue, even after the stalled one has used up its credit.
    let mut other = client.channels.open(2);
    let (_, mut at_other) = server.opened().await;
    while sent.load(Ordering::Relaxed) < INITIAL_CREDIT {
        other.write_all(b"x").await.unwrap();
        at_other.read_u8().await.unwrap();
    }
    for _ in 0..100 {
        other.write_all(b"x").await.unwrap();
        at_other.read_u8().await.unwrap();
    }
    assert_eq!(sent.load(Ordering::Relaxed), INITIAL_CREDIT);
    let mut read = vec![0; INITIAL_CREDIT + CREDIT_UPDATE];
    at_stalled.read_exact(&mut read).await.unwrap();
    writing.await.unwrap();
    assert!(read.iter().all(|byte| *byte == 7));
}

#[tokio::test]
async fn a_refusal_has_a_reason() {
    let (client, mut server) = ends().await;
    let mut channel = client.channels.open(9);
    server.opened().await.1.refuse("no agent there");
    let error = channel.read_u8().await.unwrap_err();
    assert_eq!(error.to_string(), "no agent there");
    let error = channel.write_all(b"x").await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
}

#[tokio::test]
async fn messages_and_finished_are_received() {
    let (mut client, mut server) = ends().await;
    server.channels.send_message(Bytes::from_static(b"places"));
    match client.events.recv().await {
        Some(Event::Message(message)) => assert_eq!(message, "places"),
        other => panic!("{other:?}"),
    }
    client.channels.send_finished();
    assert!(matches!(server.events.recv().await, Some(Event::Finished)));
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
async fn the_reason_of_a_close_is_received() {
    let (mut client, server) = ends().await;
    server.channels.end("this replica ends");
    match client.events.recv().await {
        Some(Event::Closed(reason)) => assert_eq!(reason, "this replica ends"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_peer_is_detected_and_an_idle_one_is_not() {
    let (client, _server) = ends().await;
    tokio::time::sleep(10 * SILENCE_TIMEOUT).await;
    assert!(!client.driver.is_finished());
    // The other end is not driven, as if the network were cut.
    let (_held, silence_error) = duplex(64 * 1024);
    let cut = End::over(silence_error, Role::Client).await;
    let error = cut.driver.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
}

#[tokio::test]
async fn a_peer_that_exceeds_its_credit_is_disconnected() {
    let (client, mut server) = ends().await;
    let channel = client.channels.open(1);
    let (_, _not_reading) = server.opened().await;
    // Like a client that ignores its credit.
    channel
        .outgoing
        .credit
        .store(usize::MAX / 2, Ordering::Relaxed);
    let mut channel = channel;
    let writing = tokio::spawn(async move {
        let part = vec![0; CREDIT_UPDATE];
        while channel.write_all(&part).await.is_ok() {}
    });
    let error = server.driver.await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the peer exceeded its credit");
    writing.await.unwrap();
}

/// A raw WebSocket, and an end with channels.
async fn raw_end() -> (WebSocketStream<DuplexStream>, End) {
    let (one, other) = duplex(64 * 1024);
    let raw_end = WebSocketStream::from_raw_socket(one, Role::Client, None).await;
    let socket =
        WebSocketStream::from_raw_socket(other, Role::Server, Some(websocket_config())).await;
    let (channels, events, driver) = Channels::over(socket);
    channels.reject_messages();
    let end = End {
        channels,
        events,
        driver: tokio::spawn(driver),
    };
    (raw_end, end)
}

#[tokio::test]
async fn malformed_frames_end_the_connection() {
    let open = |channel| Frame::Open {
        channel,
        endpoint: 1,
    };
    let data = |bytes: Vec<u8>| Frame::Data {
        channel: 1,
        bytes: bytes.into(),
    };
    let cases = [
        (
            "empty",
            vec![open(1), data(Vec::new())],
            "a data message is empty",
        ),
        (
            "twice",
            vec![open(1), open(1)],
            "a channel was opened twice",
        ),
        (
            "message",
            vec![Frame::Message(Bytes::new())],
            "an application message was not expected",
        ),
        (
            "long",
            vec![open(1), data(vec![0; 2 * MAX_MESSAGE])],
            "Space limit exceeded",
        ),
    ];
    for (what, frames, expected) in cases {
        let (mut raw_end, end) = raw_end().await;
        for frame in frames {
            // The other end may have disconnected before everything is sent.
            let _ = raw_end.send(Message::Binary(frame.encode())).await;
        }
        let error = end.driver.await.unwrap().unwrap_err();
        assert!(error.to_string().contains(expected), "{what}: {error}");
    }
}

#[tokio::test]
async fn the_number_of_channels_is_limited() {
    let (mut raw_end, mut end) = raw_end().await;
    let max = u32::try_from(MAX_CHANNELS).unwrap();
    for channel in 0..=max {
        let open = Frame::Open {
            channel,
            endpoint: 1,
        };
        raw_end.send(Message::Binary(open.encode())).await.unwrap();
    }
    let refused = raw_end.next().await.unwrap().unwrap();
    let Frame::Close { channel, why } = Frame::decode(refused.into_data()).unwrap() else {
        panic!("the channel was not refused");
    };
    assert_eq!(channel, max);
    assert!(why.contains("no more can be opened"), "{why}");
    // After one is closed, another can be opened.
    drop(end.opened().await);
    let again = Frame::Open {
        channel: max + 1,
        endpoint: 9,
    };
    raw_end.send(Message::Binary(again.encode())).await.unwrap();
    for _ in 1..max {
        drop(end.opened().await);
    }
    assert_eq!(end.opened().await.0, 9);
}

#[tokio::test]
async fn a_peer_that_does_not_read_responses_is_disconnected() {
    let (mut raw_end, mut end) = raw_end().await;
    let refusing = tokio::spawn(async move {
        while let Some(Event::Opened { channel, .. }) = end.events.recv().await {
            channel.refuse(&"no ".repeat(100));
        }
    });
    for channel in 0.. {
        let open = Frame::Open {
            channel,
            endpoint: 1,
        };
        if raw_end.send(Message::Binary(open.encode())).await.is_err() {
            break;
        }
    }
    let error = end.driver.await.unwrap().unwrap_err();
    assert_eq!(
        error.to_string(),
        "the peer does not read responses to its requests"
    );
    refusing.await.unwrap();
}
