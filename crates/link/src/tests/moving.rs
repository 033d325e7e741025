//! Links that leave a pipe for another one while it still works.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::sleep;

use super::network::{Network, SMALL, Weather, exchange, stream};
use crate::{Link, Status};

/// Panics when there is a moment without a connection, until the link has ended.
async fn is_never_missed(mut status: watch::Receiver<Status>) {
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
async fn everything_arrives_and_nobody_is_missed_however_often_a_link_moves() {
    for depth in [1, 7, 64, 5000] {
        let (network, client, server) = Network::connected(SMALL, depth).await;
        let watching = [client.status(), server.status()].map(is_never_missed);
        let watching = watching.map(tokio::spawn);
        let meter = server.meter();
        let moving = async {
            // Each after another piece of the way, so that they hit every place in a frame.
            for step in 1..200 {
                let arrived = meter.statistics().bytes_received;
                while meter.statistics().bytes_received < arrived + step {
                    tokio::task::yield_now().await;
                }
                network.ask_to_move();
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = exchange_both(client, server, 60_000) => {}
            () = moving => unreachable!(),
        }
        assert!(meter.statistics().resumes > 5, "{:?}", meter.statistics());
        for watching in watching {
            watching.await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_link_that_finds_no_other_pipe_stays_where_it_is() {
    let (network, mut client, mut server) = Network::connected(SMALL, 1000).await;
    let (mut heard, watching) = ([0; 5], tokio::spawn(is_never_missed(server.status())));
    network.set(Weather::Full);
    network.ask_to_move();
    sleep(Duration::from_secs(30)).await;
    assert!(network.dialled() > 3, "{}", network.dialled());
    client.write_all(b"still").await.unwrap();
    server.read_exact(&mut heard).await.unwrap();
    assert_eq!(server.statistics().resumes, 0);
    network.set(Weather::Good);
    sleep(Duration::from_secs(30)).await;
    client.write_all(b"moved").await.unwrap();
    server.read_exact(&mut heard).await.unwrap();
    assert_eq!(server.statistics().resumes, 1);
    assert!(!watching.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_pipe_that_breaks_while_a_link_moves_to_it_is_one_more_loss() {
    // The greeting and its answer are longer than each of these.
    for budget in 0..60 {
        let (network, client, server) = Network::connected(SMALL, 1000).await;
        network.set_budgets(vec![budget]);
        network.ask_to_move();
        exchange_both(client, server, 1000).await;
        assert!(network.dialled() >= 2);
    }
}
