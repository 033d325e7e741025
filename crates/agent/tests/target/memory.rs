//! Resets of a hostile session.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::environment::target;

/// So that a failure does not hang.
const TIMEOUT: Duration = Duration::from_secs(30);
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
/// `POST http://a/`, compressed.
const HEAD: &[u8] = &[0x83, 0x86, 0x84, 0x41, 1, b'a'];

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// Each stream costs the agent a call, and the client two small frames.
#[tokio::test]
#[ignore = "needs root"]
async fn a_session_that_resets_ten_thousand_streams_is_disconnected() {
    const HEADERS: u8 = 1;
    const RST_STREAM: u8 = 3;
    const END_HEADERS: u8 = 4;
    const CANCEL: [u8; 4] = [0, 0, 0, 8];
    let target = target();
    let agent = agent::Agent::for_process(target.pid).unwrap();
    let (mut client, served) = tokio::io::duplex(1024 * 1024);
    let serving = tokio::spawn(async move { agent.serve_connection(served).await });
    let mut frames = [PREFACE, SETTINGS].concat();
    for number in 0..10_000 {
        let stream = 2 * number + 1;
        frames.extend(frame(HEADERS, END_HEADERS, stream, HEAD));
        frames.extend(frame(RST_STREAM, 0, stream, &CANCEL));
    }
    client.write_all(&frames).await.unwrap();
    let mut received = Vec::new();
    let ended = timeout(TIMEOUT, client.read_to_end(&mut received)).await;
    ended.expect("the agent ends the connection").unwrap();
    let error = serving.await.unwrap().unwrap_err();
    let cause = std::error::Error::source(&error).expect("the error of the connection");
    assert!(cause.to_string().contains("excessive load"), "{cause}");
}
