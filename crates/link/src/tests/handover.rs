//! Handover of links from a working pipe to another one.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::sleep;

use super::network::{Network, NetworkState, SMALL, exchange, stream};
use crate::{Link, Status};

/// Panics if the link is ever disconnected before it ends.
async fn assert_always_connected(mut status: watch::Receiver<Status>) {
    loop {
        match &*status.borrow_and_update() {
            Status::Connected => {}
            Status::Finished => return,
            other => panic!("{other:?}"),
        }
        status.changed().await.unwrap();
    }
}

async fn exchange_both(client: Link, server: Link, length: usize) {
    let (up, down) = (stream(1, length), stream(2, length));
    let (at_client, at_server) =
        tokio::join!(exchange(client, up.clone()), exchange(server, down.clone()));
    assert_eq!(at_client.unwrap(), down);
    assert_eq!(at_server.unwrap(), up);
}

#[tokio::test(start_paused = true)]
async fn everything_is_delivered_without_a_disconnect_over_many_handovers() {
    for depth in [1, 7, 64, 5000] {
        let (network, client, server) = Network::connected(SMALL, depth).await;
        let watching = [client.status(), server.status()].map(assert_always_connected);
        let watching = watching.map(tokio::spawn);
        let meter = server.meter();
        let handing_over = async {
            // Each after a different number of bytes, so that handovers happen at every position in a frame.
            for step in 1..200 {
                let received = meter.statistics().bytes_received;
                while meter.statistics().bytes_received < received + step {
                    tokio::task::yield_now().await;
                }
                network.request_handover();
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = exchange_both(client, server, 60_000) => {}
            () = handing_over => unreachable!(),
        }
        assert!(meter.statistics().resumes > 5, "{:?}", meter.statistics());
        for watching in watching {
            watching.await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_link_without_another_pipe_keeps_the_current_one() {
    let (network, mut client, mut server) = Network::connected(SMALL, 1000).await;
    let (mut received, watching) = (
        [0; 5],
        tokio::spawn(assert_always_connected(server.status())),
    );
    network.set(NetworkState::Full);
    network.request_handover();
    sleep(Duration::from_secs(30)).await;
    assert!(network.dial_count() > 3, "{}", network.dial_count());
    client.write_all(b"still").await.unwrap();
    server.read_exact(&mut received).await.unwrap();
    assert_eq!(server.statistics().resumes, 0);
    network.set(NetworkState::Good);
    sleep(Duration::from_secs(30)).await;
    client.write_all(b"moved").await.unwrap();
    server.read_exact(&mut received).await.unwrap();
    assert_eq!(server.statistics().resumes, 1);
    assert!(!watching.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_pipe_that_is_lost_during_a_handover_is_handled_as_a_disconnect() {
    // The handshake is longer than each of these.
    for budget in 0..60 {
        let (network, client, server) = Network::connected(SMALL, 1000).await;
        network.set_budgets(vec![budget]);
        network.request_handover();
        exchange_both(client, server, 1000).await;
        assert!(network.dial_count() >= 2);
    }
}
