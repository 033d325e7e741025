//! Lost connections, shorter and longer than the resume window.

use std::time::Duration;

use super::hub::{Setup, Tunnel, is_connected, is_interrupted, wait_until};
use super::service::{get, pattern, read_pattern, text};
use super::upgrades::{open_echo, read_exactly};
use crate::{EndReason, Error, Status};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_go_on_after_an_interruption_without_lost_or_repeated_bytes() {
    const LENGTH: usize = 60_000_000;
    let (tunnel, session) = Tunnel::open().await;
    let mut echo = open_echo(&session).await;
    let response = get(&session, &format!("/bytes/{LENGTH}")).await.unwrap();
    let download = tokio::spawn(read_pattern(response.into_body(), LENGTH));
    for round in 0..5 {
        let sent = pattern(round * 1000, 5000);
        echo.writer.send_data(sent.clone().into()).await.unwrap();
        tunnel.relay.cut();
        wait_until(&session, is_interrupted).await;
        // A request during the interruption waits.
        let waiting = tokio::spawn({
            let session = session.clone();
            async move { text(get(&session, "/hello").await?).await }
        });
        tunnel.relay.heal();
        wait_until(&session, is_connected).await;
        let received = read_exactly(&mut echo.reader, 5000).await.unwrap();
        assert!(received == sent, "in round {round}");
        assert_eq!(waiting.await.unwrap().unwrap(), "hello");
    }
    download.await.unwrap().unwrap();
    assert_eq!(session.statistics().resumes, 5);
}

#[tokio::test]
async fn after_a_longer_interruption_streams_fail_and_a_new_session_begins() {
    let mut setup = Setup::default();
    setup.settings.resume_window = Duration::from_millis(200);
    let (mut tunnel, session) = Tunnel::open_with(setup).await;
    let mut echo = open_echo(&session).await;
    tunnel.relay.cut();
    let lost = EndReason::Lost(Duration::from_millis(200));
    assert_eq!(session.ended().await, lost);
    let error = read_exactly(&mut echo.reader, 1).await.unwrap_err();
    assert!(
        matches!(&error, Error::Disconnected { reason, is_sent: true } if *reason == lost),
        "{error:?}"
    );
    let error = get(&session, "/hello").await.unwrap_err();
    assert!(error.is_unsent(), "{error:?}");
    let error = tunnel.agent.error().await;
    assert!(!error.is_empty());
    tunnel.relay.heal();
    let session = tunnel.next_session().await;
    let response = get(&session, "/hello").await.unwrap();
    assert_eq!(text(response).await.unwrap(), "hello");
    let mut status = tunnel.agent.status.clone();
    let connected = status.wait_for(|status| matches!(status, Status::Connected { .. }));
    drop(connected.await.unwrap());
}

#[tokio::test]
async fn a_hub_that_was_restarted_gets_a_new_session() {
    let (mut tunnel, session) = Tunnel::open().await;
    // Only the state of the session is lost, as in a restart that takes no time.
    session.close("restarting");
    drop(session);
    let session = tunnel.next_session().await;
    let response = get(&session, "/hello").await.unwrap();
    assert_eq!(text(response).await.unwrap(), "hello");
}
