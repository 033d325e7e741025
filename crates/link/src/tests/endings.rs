use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use super::network::{Network, SMALL, Weather, exchange, stream};
use crate::{Abort, Link, LinkError, Status};

async fn ended(link: &Link) -> Status {
    let mut status = link.status();
    let over = |status: &Status| matches!(status, Status::Finished | Status::Failed(_));
    status.wait_for(over).await.unwrap().clone()
}

/// Waits until the server has nothing left of any link.
async fn forgotten(network: &Network) {
    while network.server().links() > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_link_that_ended_well_leaves_nothing_and_takes_no_time() {
    let (network, client, server) = Network::connected(SMALL, 1000).await;
    let start = Instant::now();
    let statuses = [client.status(), server.status()];
    let (down, up) = tokio::join!(
        exchange(client, vec![1; 9000]),
        exchange(server, vec![2; 9000])
    );
    assert_eq!((down.unwrap(), up.unwrap()), (vec![2; 9000], vec![1; 9000]));
    for mut status in statuses {
        status
            .wait_for(|status| matches!(status, Status::Finished))
            .await
            .unwrap();
    }
    forgotten(&network).await;
    assert!(
        start.elapsed() < Duration::from_secs(1),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(network.dialled(), 1);
}

#[tokio::test(start_paused = true)]
async fn dropping_a_link_tells_the_peer() {
    let (network, client, mut server) = Network::connected(SMALL, 1000).await;
    drop(client);
    let error = server.read(&mut [0; 10]).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the other end gave the link up: its user is gone"
    );
    forgotten(&network).await;
}

#[tokio::test(start_paused = true)]
async fn an_abort_has_a_reason() {
    let (_network, mut client, server) = Network::connected(SMALL, 1000).await;
    let reason = Abort {
        code: 9,
        text: "the target is gone".to_owned(),
    };
    server.abort(reason.clone());
    let error = client.read(&mut [0; 10]).await.unwrap_err();
    let inner = error.get_ref().unwrap().downcast_ref::<LinkError>();
    assert!(
        matches!(inner, Some(LinkError::Aborted(abort)) if *abort == reason),
        "{inner:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_abort_while_the_client_is_away_is_told_when_it_comes_back() {
    let (network, mut client, server) = Network::connected(SMALL, 1000).await;
    network.set(Weather::Down);
    drop(
        server
            .status()
            .wait_for(|status| matches!(status, Status::Reconnecting { .. }))
            .await,
    );
    server.abort(Abort {
        code: 9,
        text: "enough".to_owned(),
    });
    forgotten(&network).await;
    network.set(Weather::Good);
    let error = client.read(&mut [0; 10]).await.unwrap_err();
    assert_eq!(error.to_string(), "the other end gave the link up: enough");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_dropped_without_a_connection_still_tries_to_say_so() {
    let (network, client, server) = Network::connected(SMALL, 1000).await;
    network.set(Weather::Down);
    drop(
        client
            .status()
            .wait_for(|status| matches!(status, Status::Reconnecting { .. }))
            .await,
    );
    drop(client);
    network.set(Weather::Good);
    assert!(matches!(
        ended(&server).await,
        Status::Failed(LinkError::Aborted(_))
    ));
    forgotten(&network).await;
}

#[tokio::test(start_paused = true)]
async fn what_was_shut_down_arrives_after_the_link_is_dropped() {
    let (network, mut client, mut server) = Network::connected(SMALL, 1000).await;
    network.set(Weather::Down);
    drop(
        client
            .status()
            .wait_for(|status| matches!(status, Status::Reconnecting { .. }))
            .await,
    );
    client.write_all(&stream(5, 3500)).await.unwrap();
    // There is no connection, so this cannot be done yet; it is asked for nevertheless.
    let shutdown = tokio::time::timeout(Duration::from_secs(1), client.shutdown()).await;
    assert!(shutdown.is_err());
    drop(client);
    network.set(Weather::Good);
    let mut arrived = Vec::new();
    server.read_to_end(&mut arrived).await.unwrap();
    assert_eq!(arrived, stream(5, 3500));
    server.shutdown().await.unwrap();
    forgotten(&network).await;
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_talks_on_to_nobody_is_told_so() {
    let (network, mut client, mut server) = Network::connected(SMALL, 1000).await;
    client.shutdown().await.unwrap();
    drop(client);
    let start = Instant::now();
    let error = loop {
        if let Err(error) = server.write_all(&[0; 1000]).await {
            break error;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert_eq!(
        error.to_string(),
        "the other end gave the link up: its user is gone"
    );
    assert!(start.elapsed() < Duration::from_secs(7));
    forgotten(&network).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_can_give_up_all_links_at_once() {
    let (network, mut client, _server) = Network::connected(SMALL, 1000).await;
    network.server().abort_all(&Abort {
        code: 1,
        text: "shutting down".to_owned(),
    });
    let error = client.read(&mut [0; 10]).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the other end gave the link up: shutting down"
    );
    forgotten(&network).await;
}
