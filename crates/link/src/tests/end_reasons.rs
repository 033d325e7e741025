use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use super::network::{Network, NetworkState, SMALL, exchange, stream};
use crate::{Abort, Link, LinkError, Status};

async fn ended(link: &Link) -> Status {
    let mut status = link.status();
    let over = |status: &Status| matches!(status, Status::Finished | Status::Failed(_));
    status.wait_for(over).await.unwrap().clone()
}

/// Waits until the server has removed all links.
async fn wait_until_removed(network: &Network) {
    while network.server().links() > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_finished_link_is_removed_immediately() {
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
    wait_until_removed(&network).await;
    assert!(
        start.elapsed() < Duration::from_secs(1),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(network.dial_count(), 1);
}

#[tokio::test(start_paused = true)]
async fn dropping_a_link_aborts_it() {
    let (network, client, mut server) = Network::connected(SMALL, 1000).await;
    drop(client);
    let error = server.read(&mut [0; 10]).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the other end aborted the link: it was dropped"
    );
    wait_until_removed(&network).await;
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
async fn an_abort_while_the_client_is_disconnected_is_reported_when_it_reconnects() {
    let (network, mut client, server) = Network::connected(SMALL, 1000).await;
    network.set(NetworkState::Down);
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
    wait_until_removed(&network).await;
    network.set(NetworkState::Good);
    let error = client.read(&mut [0; 10]).await.unwrap_err();
    assert_eq!(error.to_string(), "the other end aborted the link: enough");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_dropped_while_disconnected_still_sends_its_abort() {
    let (network, client, server) = Network::connected(SMALL, 1000).await;
    network.set(NetworkState::Down);
    drop(
        client
            .status()
            .wait_for(|status| matches!(status, Status::Reconnecting { .. }))
            .await,
    );
    drop(client);
    network.set(NetworkState::Good);
    assert!(matches!(
        ended(&server).await,
        Status::Failed(LinkError::Aborted(_))
    ));
    wait_until_removed(&network).await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_was_shut_down_is_delivered_after_the_link_is_dropped() {
    let (network, mut client, mut server) = Network::connected(SMALL, 1000).await;
    network.set(NetworkState::Down);
    drop(
        client
            .status()
            .wait_for(|status| matches!(status, Status::Reconnecting { .. }))
            .await,
    );
    client.write_all(&stream(5, 3500)).await.unwrap();
    // The link is disconnected, so the shutdown cannot complete yet, but it has been requested.
    let shutdown = tokio::time::timeout(Duration::from_secs(1), client.shutdown()).await;
    assert!(shutdown.is_err());
    drop(client);
    network.set(NetworkState::Good);
    let mut received = Vec::new();
    server.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, stream(5, 3500));
    server.shutdown().await.unwrap();
    wait_until_removed(&network).await;
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_keeps_writing_to_a_dropped_link_gets_an_error() {
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
        "the other end aborted the link: it was dropped"
    );
    assert!(start.elapsed() < Duration::from_secs(7));
    wait_until_removed(&network).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_can_abort_all_links() {
    let (network, mut client, _server) = Network::connected(SMALL, 1000).await;
    network.server().abort_all(&Abort {
        code: 1,
        text: "shutting down".to_owned(),
    });
    let error = client.read(&mut [0; 10]).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the other end aborted the link: shutting down"
    );
    wait_until_removed(&network).await;
}
