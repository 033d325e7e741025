use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

use super::*;

fn pipes(depth: usize) -> (WebSocketPipe<DuplexStream>, WebSocketPipe<DuplexStream>) {
    let (client, server) = duplex(depth);
    (
        WebSocketPipe::new(client, Role::Client),
        WebSocketPipe::new(server, Role::Server),
    )
}

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|index| ((index * 31) >> 3) as u8).collect()
}

/// Writes everything in slices of odd sizes on one end, and reads it on the other.
async fn check(
    mut writer: WebSocketPipe<DuplexStream>,
    mut reader: WebSocketPipe<DuplexStream>,
    length: usize,
) {
    let sent = bytes(length);
    let mut received = Vec::new();
    let writing = async {
        let mut rest = &sent[..];
        while !rest.is_empty() {
            let (first, second) = rest.split_at(rest.len() / 3);
            let slices = [IoSlice::new(first), IoSlice::new(&[]), IoSlice::new(second)];
            let count = writer.write_vectored(&slices).await.unwrap();
            rest = &rest[count..];
        }
        writer.shutdown().await.unwrap();
        writer
    };
    let reading = reader.read_to_end(&mut received);
    let (_writer, read) = tokio::join!(writing, reading);
    read.unwrap();
    assert!(received == sent, "{} of {length} bytes", received.len());
}

#[tokio::test]
async fn bytes_of_any_number_are_carried_in_both_directions() {
    for length in [0, 1, 125, 126, 65_535, 65_536, 3 * MAX_PAYLOAD + 7] {
        for depth in [1, 100, 1_000_000] {
            if depth == 1 && length > 1000 {
                continue;
            }
            let (client, server) = pipes(depth);
            check(client, server, length).await;
            let (client, server) = pipes(depth);
            check(server, client, length).await;
        }
    }
}

#[tokio::test]
async fn a_ping_between_two_frames_is_answered_and_not_part_of_the_stream() {
    let (mut client, server) = duplex(10_000);
    let mut server = WebSocketPipe::new(server, Role::Server);
    let mut sent = Vec::new();
    let mask = Some([0; 4]);
    header::put(&mut sent, Opcode::Data, 3, mask);
    sent.extend_from_slice(b"one");
    header::put(&mut sent, Opcode::Ping, 4, mask);
    sent.extend_from_slice(b"ping");
    header::put(&mut sent, Opcode::Data, 3, mask);
    sent.extend_from_slice(b"two");
    client.write_all(&sent).await.unwrap();
    let mut received = [0; 6];
    server.read_exact(&mut received).await.unwrap();
    assert_eq!(&received, b"onetwo");
    let mut pong = [0; 6];
    client.read_exact(&mut pong).await.unwrap();
    assert_eq!(&pong, b"\x8a\x04ping");
}

#[tokio::test]
async fn a_connection_that_is_cut_in_a_frame_is_an_error() {
    let (mut client, server) = duplex(10_000);
    let mut server = WebSocketPipe::new(server, Role::Server);
    let mut sent = Vec::new();
    header::put(&mut sent, Opcode::Data, 30, Some([0; 4]));
    sent.extend_from_slice(b"one");
    client.write_all(&sent).await.unwrap();
    drop(client);
    let mut received = Vec::new();
    let error = server.read_to_end(&mut received).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    assert_eq!(received, b"one");
}

#[tokio::test]
async fn frames_without_the_mask_of_a_client_are_refused() {
    let (mut client, server) = duplex(10_000);
    let mut server = WebSocketPipe::new(server, Role::Server);
    client.write_all(b"\x82\x01x").await.unwrap();
    let error = server.read_u8().await.unwrap_err();
    assert_eq!(error.to_string(), "a client has to mask its frames");
}
