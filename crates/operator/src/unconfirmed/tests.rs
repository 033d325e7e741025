use std::sync::Mutex;

use link::channels::{Channels, Event};
use link::websocket::{Role, WebSocketStream};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::*;
use crate::connect::relay::relay_to_agent;
use crate::metrics::Metrics;

fn agent(session: &str, endpoint: u32) -> SessionAgent {
    (session.to_owned(), endpoint)
}

#[test]
fn agents_are_stopped_after_the_timeout_and_start_again() {
    let start = Instant::now();
    let timeout = Duration::from_secs(10);
    let one = || BTreeSet::from([agent("a", 1)]);
    let both = || BTreeSet::from([agent("a", 1), agent("b", 2)]);
    let none = BTreeSet::new;
    let mut tracker = Tracker::default();
    #[rustfmt::skip] // A table is read by its columns.
    let steps = [
        // second, unconfirmed, stopped, next deadline
        (0,  none(), none(), None),
        (1,  one(),  none(), Some(11)),
        (5,  both(), none(), Some(11)),
        (11, both(), one(),  Some(15)),
        (15, both(), both(), None),
        (16, one(),  one(),  None),
        (17, none(), none(), None),
        // The time begins again with the next change of policies.
        (18, one(),  none(), Some(28)),
        (20, none(), none(), None),
        (27, one(),  none(), Some(37)),
    ];
    for (second, unconfirmed, stopped, next) in steps {
        let at = |second| start + Duration::from_secs(second);
        let found = tracker.update(unconfirmed, at(second), timeout);
        assert_eq!(found, (stopped, next.map(at)), "second {second}");
    }
}

#[test]
fn only_running_agents_with_an_old_grant_are_unconfirmed() {
    let session = |name: &str, namespace: &str, pods: serde_json::Value| {
        let session: MirrordClusterSession = serde_json::from_value(json!({
            "apiVersion": "mirrord.metalbear.co/v1alpha", "kind": "MirrordClusterSession",
            "metadata": {"name": name},
            "spec": {
                "owner": {"userId": "", "username": "", "hostname": "", "k8sUsername": "anna"},
                "namespace": namespace, "target": "deployment/web", "resumeWindowSecs": 100,
                "clientCertificate": "",
            },
            "status": {"phase": "Ready", "pods": pods},
        }))
        .unwrap();
        Arc::new(session)
    };
    let pod = |channel: u32, address: Option<&str>, policies: Option<&str>| {
        json!({
            "name": "web", "uid": "1", "container": "web", "ready": address.is_some(),
            "channel": channel, "address": address, "policies": policies,
        })
    };
    let running = Some("10.0.0.1:20001");
    let sessions = [
        session(
            "a",
            "shop",
            json!([
                pod(1, running, Some("new of shop")),
                pod(2, running, Some("old")),
                pod(3, running, None),
                pod(4, None, Some("old")),
            ]),
        ),
        session("b", "other", json!([pod(1, running, Some("new of shop"))])),
        session("c", "other", json!([pod(1, running, Some("new of other"))])),
    ];
    let digest = |namespace: &str| format!("new of {namespace}");
    let expected = BTreeSet::from([agent("a", 2), agent("a", 3), agent("b", 1)]);
    assert_eq!(unconfirmed_agents(&sessions, digest), expected);
}

/// A client, the relay and an agent that does not confirm a change of policies.
#[tokio::test]
async fn the_traffic_of_an_agent_that_does_not_confirm_stops_until_it_does() {
    let agent = agent("session-1", 1);
    let unconfirmed = Arc::new(Mutex::new(BTreeSet::new()));
    let (change, mut changes) = mpsc::unbounded_channel();
    let (stopped, sessions) = (StoppedAgents::new(), Gauge::default());
    let tracking = {
        let (unconfirmed, stopped) = (Arc::clone(&unconfirmed), stopped.clone());
        let sessions = sessions.clone();
        async move {
            let observe = move || unconfirmed.lock().unwrap().clone();
            let changes = futures_util::stream::poll_fn(move |context| changes.poll_recv(context));
            let timeout = Duration::from_millis(50);
            track(observe, changes, timeout, &stopped, &sessions).await;
        }
    };
    tokio::spawn(tracking);

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut reading, mut writing) = stream.split();
                let _ = tokio::io::copy(&mut reading, &mut writing).await;
            });
        }
    });
    let client = client_of_relay(agent.clone(), address, stopped.clone()).await;

    let mut before = client.open(1);
    echo(&mut before).await.unwrap();
    // The policies have changed. The agent still serves, and then the timeout ends its channel.
    unconfirmed.lock().unwrap().insert(agent.clone());
    change.send(()).unwrap();
    echo(&mut before).await.unwrap();
    stopped.until_stopped(&agent).await;
    assert_eq!(sessions.get(), 1);
    let mut rest = Vec::new();
    let ended = before.read_to_end(&mut rest).await;
    assert!(ended.is_err() || rest.is_empty(), "{rest:?}");
    // Another channel is refused, with the reason.
    let mut refused = client.open(1);
    let error = echo(&mut refused).await.unwrap_err();
    assert!(error.to_string().contains(UNCONFIRMED), "{error}");
    // The agent has confirmed.
    unconfirmed.lock().unwrap().clear();
    change.send(()).unwrap();
    let mut running = stopped.0.subscribe();
    running.wait_for(BTreeSet::is_empty).await.unwrap();
    assert_eq!(sessions.get(), 0);
    echo(&mut client.open(1)).await.unwrap();
}

/// The client's end of a connection whose other end is relayed to the agent.
async fn client_of_relay(
    agent: SessionAgent,
    address: std::net::SocketAddr,
    stopped: StoppedAgents,
) -> Channels {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let limits = Some(link::channels::websocket_config());
    let near = WebSocketStream::from_raw_socket(near, Role::Client, limits).await;
    let far = WebSocketStream::from_raw_socket(far, Role::Server, limits).await;
    let (client, _events, driver) = Channels::over(near);
    tokio::spawn(driver);
    let (channels, mut events, driver) = Channels::over(far);
    tokio::spawn(driver);
    tokio::spawn(async move {
        let metrics = Arc::new(Metrics::new());
        while let Some(event) = events.recv().await {
            let Event::Opened { channel, .. } = event else {
                continue;
            };
            let (metrics, stopped) = (Arc::clone(&metrics), stopped.clone());
            let agent = agent.clone();
            tokio::spawn(async move {
                relay_to_agent(&metrics, &stopped, &agent, address, channel).await;
            });
        }
        drop(channels);
    });
    client
}

async fn echo(channel: &mut link::channels::Channel) -> std::io::Result<()> {
    channel.write_all(b"hello").await?;
    channel.flush().await?;
    let mut back = [0; 5];
    channel.read_exact(&mut back).await?;
    assert_eq!(&back, b"hello");
    Ok(())
}
