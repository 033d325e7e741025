use std::time::Duration;

use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::network::{Network, NetworkState, SMALL, exchange, stream};
use crate::{Buffers, Status};

/// An exchange in both directions over pipes with limited budgets, and then over an unlimited one.
async fn check(buffers: Buffers, depth: usize, lengths: [usize; 2], budgets: Vec<u64>) -> u32 {
    let (network, client, server) = Network::connected(buffers, depth).await;
    network.set_budgets(budgets);
    network.cut().await;
    let (up, down) = (stream(1, lengths[0]), stream(2, lengths[1]));
    let (meter, server_meter) = (client.meter(), server.meter());
    let exchanged =
        async { tokio::join!(exchange(client, up.clone()), exchange(server, down.clone())) };
    let watched = async {
        loop {
            for meter in [&meter, &server_meter] {
                let statistics = meter.statistics();
                assert!(statistics.bytes_to_acknowledge <= buffers.replay_capacity as usize);
                assert!(statistics.bytes_to_read <= buffers.receive_window as usize);
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    };
    let (at_client, at_server) = tokio::select! {
        biased;
        () = watched => unreachable!(),
        exchanged = exchanged => exchanged,
    };
    assert_eq!(at_client.unwrap(), down);
    assert_eq!(at_server.unwrap(), up);
    network.dial_count()
}

#[tokio::test(start_paused = true)]
async fn everything_is_delivered_when_the_pipe_is_cut_at_any_byte() {
    for budget in 1..1400 {
        let dial_count = check(SMALL, 64, [600, 400], vec![budget]).await;
        assert!(dial_count >= 2);
    }
}

#[tokio::test(start_paused = true)]
async fn everything_is_delivered_after_thousands_of_resumes() {
    let budgets = vec![600; 2100];
    let dial_count = check(SMALL, 200, [600_000, 500_000], budgets).await;
    assert!(dial_count > 2000, "{dial_count}");
}

/// Each connection makes progress, so the backoff stays short. Time is paused: the elapsed time is the sum of all delays.
#[tokio::test(start_paused = true)]
async fn a_network_that_cuts_every_connection_slows_a_link_and_does_not_stop_it() {
    let started = tokio::time::Instant::now();
    let dial_count = check(SMALL, 200, [60_000, 50_000], vec![600; 210]).await;
    assert!(dial_count > 100, "{dial_count}");
    let paused = started.elapsed();
    assert!(
        paused < dial_count * Duration::from_millis(150),
        "{paused:?}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn everything_is_delivered_with_any_buffers_lengths_and_cuts(
        replay_capacity in 1_u32..100_000,
        receive_window in 1_u32..100_000,
        depth in 1_usize..5000,
        lengths in prop::array::uniform2(0_usize..100_000),
        budgets in prop::collection::vec(1_u64..20_000, 0..20),
    ) {
        let shrink = if depth.min(receive_window as usize).min(replay_capacity as usize) < 100 { 100 } else { 1 };
        let buffers = Buffers { replay_capacity, receive_window, ..Buffers::default() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(check(buffers, depth, lengths.map(|length| length / shrink), budgets));
    }
}

#[tokio::test(start_paused = true)]
async fn a_half_closed_link_stays_half_closed_when_it_resumes() {
    let (network, mut client, mut server) = Network::connected(SMALL, 1000).await;
    client.write_all(b"question").await.unwrap();
    client.shutdown().await.unwrap();
    network.cut().await;
    let mut question = String::new();
    server.read_to_string(&mut question).await.unwrap();
    assert_eq!(question, "question");
    network.cut().await;
    server.write_all(b"answer").await.unwrap();
    network.cut().await;
    server.shutdown().await.unwrap();
    let mut response = String::new();
    client.read_to_string(&mut response).await.unwrap();
    assert_eq!(response, "answer");
    assert!(client.statistics().resumes > 0);
    assert!(client.write_all(b"more").await.is_err());
}

#[tokio::test(start_paused = true)]
async fn the_status_reports_disconnects_and_reconnects() {
    let (network, client, mut server) = Network::connected(SMALL, 1000).await;
    let mut status = client.status();
    assert!(matches!(*status.borrow(), Status::Connected));
    network.set(NetworkState::Down);
    let is_trying = |status: &Status| matches!(status, Status::Reconnecting { attempts: 3, .. });
    {
        let seen = status.wait_for(is_trying).await.unwrap();
        let Status::Reconnecting { last_error, .. } = &*seen else {
            unreachable!()
        };
        assert_eq!(
            last_error,
            "the other end cannot be reached: connection refused"
        );
    }
    network.set(NetworkState::Good);
    status
        .wait_for(|status| matches!(status, Status::Connected))
        .await
        .unwrap();
    server.write_all(b"x").await.unwrap();
    assert_eq!(client.statistics().resumes, 1);
}

#[tokio::test(start_paused = true)]
async fn a_newer_connection_replaces_one_that_only_seems_alive() {
    let (network, mut client, mut server) = Network::connected(SMALL, 1000).await;
    server.write_all(b"before").await.unwrap();
    let mut before = [0; 6];
    client.read_exact(&mut before).await.unwrap();
    // The bytes are dropped silently, so both ends seem to be connected. The client detects the loss first.
    network.set(NetworkState::Silent);
    client.write_all(b"lost on the way").await.unwrap();
    tokio::time::sleep(Duration::from_secs(14)).await;
    network.cut().await;
    let mut received = [0; 15];
    server.read_exact(&mut received).await.unwrap();
    assert_eq!(&received, b"lost on the way");
}
