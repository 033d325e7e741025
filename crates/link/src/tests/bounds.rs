use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, split};
use tokio::time::{sleep, timeout};

use super::network::{Network, SMALL, Weather, stream};
use crate::Buffers;

#[tokio::test(start_paused = true)]
async fn a_reader_that_does_not_read_holds_the_writer_and_neither_holds_more_than_it_may() {
    let (_network, mut client, server) = Network::connected(SMALL, 500).await;
    let everything = client.write_all(&[7; 1_000_000]);
    assert!(
        timeout(Duration::from_secs(3600), everything)
            .await
            .is_err()
    );
    assert_eq!(server.statistics().bytes_to_read, 3000);
    assert_eq!(client.statistics().bytes_to_acknowledge, 4000);
    // The connection is alive all the while: keep-alives pass the bytes that wait.
    assert_eq!(client.statistics().resumes, 0);
}

#[tokio::test(start_paused = true)]
async fn without_a_connection_writing_waits_when_the_buffer_is_full() {
    let (network, mut client, mut server) = Network::connected(SMALL, 500).await;
    network.set(Weather::Down);
    let text = stream(1, 10_000);
    let writing = async {
        client.write_all(&text).await.unwrap();
        client.shutdown().await.unwrap();
    };
    let repairing = async {
        sleep(Duration::from_secs(100)).await;
        network.set(Weather::Good);
        let mut arrived = Vec::new();
        server.read_to_end(&mut arrived).await.unwrap();
        assert_eq!(arrived, text);
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
        let (mut arrived, mut buffer) = (Vec::new(), [0; 77]);
        loop {
            sleep(Duration::from_secs(1)).await;
            match server.read(&mut buffer).await.unwrap() {
                0 => return arrived,
                length => arrived.extend_from_slice(&buffer[..length]),
            }
            assert!(server.statistics().bytes_to_read <= 3000);
        }
    };
    let ((), arrived) = tokio::join!(writing, reading);
    assert!(arrived == text);
}

#[tokio::test(start_paused = true)]
async fn a_direction_that_stalls_does_not_stop_the_other() {
    let (_network, client, server) = Network::connected(SMALL, 500).await;
    let (mut client_in, mut client_out) = split(client);
    let (_server_in, mut server_out) = split(server);
    // Nobody reads at the server, so this never ends.
    tokio::spawn(async move { client_out.write_all(&[0; 100_000]).await });
    let text = stream(2, 200_000);
    let sent = text.clone();
    let writing =
        tokio::spawn(async move { server_out.write_all(&sent).await.map(|()| server_out) });
    let mut arrived = vec![0; text.len()];
    client_in.read_exact(&mut arrived).await.unwrap();
    assert!(arrived == text);
    writing.await.unwrap().unwrap();
}

/// A read that was given up must not swallow the wake-up of a writer.
#[tokio::test(start_paused = true)]
async fn a_read_that_was_given_up_delays_nobody() {
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
    let mut arrived = vec![0; 50_000];
    server.read_exact(&mut arrived).await.unwrap();
    writing.await.unwrap().unwrap();
    assert!(
        start.elapsed() < Duration::from_secs(1),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn large_reads_go_past_the_buffers_and_lose_nothing() {
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
        let (mut arrived, mut buffer) = (Vec::new(), vec![0; 200_000]);
        while let length @ 1.. = server.read(&mut buffer).await.unwrap() {
            arrived.extend_from_slice(&buffer[..length]);
        }
        arrived
    };
    let ((), arrived) = tokio::join!(writing, reading);
    assert!(arrived == text);
    assert!(server.statistics().resumes >= 3);
}
