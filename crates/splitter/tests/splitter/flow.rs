use std::sync::Arc;
use std::time::Duration;

use splitter::{Filter, Mode, OnConflict, Port, Settings};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::time::timeout;

use super::fixture::{ToTest, claim, meta, read_until};

/// More than may be buffered for one connection.
const MUCH: usize = 1024 * 1024;

/// Sends a request head to alice or to the application, and returns the client's and the server's end.
async fn send(who: &str, head: &str) -> (DuplexStream, DuplexStream) {
    let (to_application, mut application) = ToTest::new();
    let (to_alice, mut alice) = ToTest::new();
    let settings = Settings {
        response_timeout: None,
        ..Settings::default()
    };
    let port = Arc::new(Port::new(to_application, settings));
    let filter = Filter::header("^x-for: alice$").unwrap();
    let alices = claim("alice", Mode::Steal, Some(filter), to_alice);
    let guard = port.claims().claim(alices, OnConflict::Abort).unwrap();
    let (mut client, served) = tokio::io::duplex(64 * 1024);
    tokio::spawn(async move {
        port.serve(Box::new(served), meta()).await;
        drop(guard);
    });
    let head = format!("{head}X-For: {who}\r\n\r\n");
    client.write_all(head.as_bytes()).await.unwrap();
    let server = match who {
        "alice" => alice.recv().await,
        _ => application.recv().await,
    };
    let mut server = server.unwrap();
    let mut seen = vec![0; head.len()];
    server.read_exact(&mut seen).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&seen), head);
    (client, server)
}

/// Writes until backpressure stops it, and returns how many bytes were written. Time is paused, so it advances when all
/// tasks are idle.
async fn fill(stream: &mut (impl AsyncWrite + Unpin)) -> usize {
    let mut written = 0;
    while written < 2 * MUCH {
        match timeout(Duration::from_secs(1), stream.write(&[b'x'; 4096])).await {
            Ok(count) => written += count.unwrap(),
            Err(_) => break,
        }
    }
    written
}

async fn drain(stream: &mut (impl AsyncRead + Unpin), count: usize) {
    let mut bytes = vec![0; count];
    stream.read_exact(&mut bytes).await.unwrap();
    assert!(bytes.iter().all(|byte| *byte == b'x'));
}

/// Backpressure is end to end, so a body may have any length.
#[tokio::test(start_paused = true)]
async fn a_reader_that_stalls_stops_its_writer() {
    for who in ["alice", "other"] {
        let head = "POST / HTTP/1.1\r\nContent-Length: 9000000000\r\n";
        let (mut client, mut server) = send(who, head).await;
        let sent = fill(&mut client).await;
        assert!(sent < MUCH, "{who}: {sent}");
        drain(&mut server, sent).await;
        assert!(fill(&mut client).await > 0, "{who}: it continues");

        let (mut client, mut server) = send(who, "GET / HTTP/1.1\r\n").await;
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 9000000000\r\n\r\n";
        server.write_all(head.as_bytes()).await.unwrap();
        let sent = fill(&mut server).await;
        assert!(sent < MUCH, "{who}: {sent}");
        read_until(&mut client, "\r\n\r\n").await;
        drain(&mut client, sent).await;
        assert!(fill(&mut server).await > 0, "{who}: it continues");
    }
}

/// For example server-sent events, which have no end.
#[tokio::test(start_paused = true)]
async fn each_part_of_a_response_is_forwarded_immediately() {
    let parts = [
        (
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n",
            ["data: 1\n\n", "data: 2\n\n", "data: 3\n\n"],
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
            [
                "9\r\ndata: 1\n\n\r\n",
                "9\r\ndata: 2\n\n\r\n",
                "9\r\ndata: 3\n\n\r\n",
            ],
        ),
    ];
    for who in ["alice", "other"] {
        for (head, events) in parts {
            let (mut client, mut server) = send(who, "GET /events HTTP/1.1\r\n").await;
            for part in [head].into_iter().chain(events) {
                server.write_all(part.as_bytes()).await.unwrap();
                let mut seen = vec![0; part.len()];
                // The next part is not sent before this one has been received.
                let received = timeout(Duration::from_secs(3600), client.read_exact(&mut seen));
                received.await.expect("the part is not buffered").unwrap();
                assert_eq!(String::from_utf8_lossy(&seen), part, "{who}");
            }
        }
    }
}
