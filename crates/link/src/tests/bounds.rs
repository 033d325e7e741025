use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, split};
use tokio::time::{sleep, timeout};

use super::network::{Network, NetworkState, SMALL, stream};
use crate::Buffers;

#[tokio::test(start_paused = true)]
async fn backpressure_stops_the_writer_and_buffers_stay_within_their_limits() {
    let (_network, mut client, server) = Network::connected(SMALL, 500).await;
    let everything = client.write_all(&[7; 1_000_000]);
    assert!(
        timeout(Duration::from_secs(3600), everything)
            .await
            .is_err()
    );
    assert_eq!(server.statistics().bytes_to_read, 3000);
    assert_eq!(client.statistics().bytes_to_acknowledge, 4000);
    // The connection stays alive: keep-alives are not blocked by unread bytes.
    assert_eq!(client.statistics().resumes, 0);
}

#[tokio::test(start_paused = true)]
async fn while_disconnected_writes_wait_when_the_buffer_is_full() {
    let (network, mut client, mut server) = Network::connected(SMALL, 500).await;
    network.set(NetworkState::Down);
    let text = stream(1, 10_000);
    let writing = async {
        client.write_all(&text).await.unwrap();
        client.shutdown().await.unwrap();
    };
    let repairing = async {
        sleep(Duration::from_secs(100)).await;
        network.set(NetworkState::Good);
        let mut received = Vec::new();
        server.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, text);
    };
    tokio::join!(writing, repairing);
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_gets_everything() {
    let (_network, mut client, mut server) = Network::connected(SMALL, 500).await;
    let text = stream(1, 30_000);
    let writing = async {
        client.write_all(&text).await.unwrap();
        client.shutdown().await.unwrap();
    };
    let reading = async {
        let (mut received, mut buffer) = (Vec::new(), [0; 77]);
        loop {
            sleep(Duration::from_secs(1)).await;
            match server.read(&mut buffer).await.unwrap() {
                0 => return received,
                length => received.extend_from_slice(&buffer[..length]),
            }
            assert!(server.statistics().bytes_to_read <= 3000);
        }
    };
    let ((), received) = tokio::join!(writing, reading);
    assert!(received == text);
}

#[tokio::test(start_paused = true)]
async fn a_stalled_direction_does_not_stop_the_other() {
    let (_network, client, server) = Network::connected(SMALL, 500).await;
    let (mut client_in, mut client_out) = split(client);
    let (_server_in, mut server_out) = split(server);
    // The server does not read, so this never completes.
    tokio::spawn(async move { client_out.write_all(&[0; 100_000]).await });
    let text = stream(2, 200_000);
    let sent = text.clone();
    let writing =
        tokio::spawn(async move { server_out.write_all(&sent).await.map(|()| server_out) });
    let mut received = vec![0; text.len()];
    client_in.read_exact(&mut received).await.unwrap();
    assert!(received == text);
    writing.await.unwrap().unwrap();
}

/// A cancelled read must not consume the wakeup of a writer.
#[tokio::test(start_paused = true)]
async fn a_cancelled_read_does_not_delay_a_writer() {
    let (_network, client, mut server) = Network::connected(SMALL, 500).await;
    let (mut client_in, mut client_out) = split(client);
    let mut byte = [0];
    assert!(
        timeout(Duration::from_millis(1), client_in.read(&mut byte))
            .await
            .is_err()
    );
    let start = tokio::time::Instant::now();
    let writing = tokio::spawn(async move {
        client_out
            .write_all(&[1; 50_000])
            .await
            .map(|()| client_out)
    });
    let mut received = vec![0; 50_000];
    server.read_exact(&mut received).await.unwrap();
    writing.await.unwrap().unwrap();
    assert!(
        start.elapsed() < Duration::from_secs(1),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn large_reads_bypass_the_buffers_and_lose_nothing() {
    let buffers = Buffers::default();
    let (network, mut client, mut server) = Network::connected(buffers, 100_000).await;
    let text = stream(9, 3_000_000);
    network.set_budgets(vec![700_000, 500_001, 300_013]);
    network.cut().await;
    let writing = async {
        client.write_all(&text).await.unwrap();
        client.shutdown().await.unwrap();
    };
    let reading = async {
        let (mut received, mut buffer) = (Vec::new(), vec![0; 200_000]);
        while let length @ 1.. = server.read(&mut buffer).await.unwrap() {
            received.extend_from_slice(&buffer[..length]);
        }
        received
    };
    let ((), received) = tokio::join!(writing, reading);
    assert!(received == text);
    assert!(server.statistics().resumes >= 3);
}
