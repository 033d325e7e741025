//! A client's connection to one cluster. It reconnects as long as the client is connected to the Primary.
//!
//! A replica of the member's operator announces its shutdown. The connection is then handed over to another replica before the
//! client reopens its channels, so that no agent loses its client.

use std::sync::Arc;
use std::time::Duration;

use api::connect::{AgentEndpoint, ConnectParameters};
use api::multicluster::{CHILD_HEADER, child_name};
use api::{GROUP_VERSION, MirrordMultiClusterSession};
use backoff::Backoff;
use error_chain::error_chain;
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use hyper_util::rt::TokioIo;
use kube::{Client, ResourceExt as _};
use link::channels::{Channels, websocket_config};
use link::websocket::{Role, Upgrade, WebSocketStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

mod replica;

use self::replica::{Disconnected, MemberEvent, ReplicaConnection};
use crate::Shared;
use crate::connect::ports::PortTracker;
use crate::connect::relay;
use crate::multicluster::bounds;

const MIN_BACKOFF: Duration = Duration::from_millis(200);
const MAX_BACKOFF: Duration = Duration::from_secs(5);
/// The child is ready, so a member responds at once.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// A replica that shuts down relays its sessions for some more seconds, in which another replica has to be found.
const MAX_HANDOVER_BACKOFF: Duration = Duration::from_secs(1);
/// How long the client may take to close its channels of the old connection.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(10);

/// The connection to one cluster. Dropping it closes it.
pub(super) struct MemberConnection {
    pub(super) cluster: String,
    /// The name of the child's object.
    pub(super) child: String,
    pub(super) is_local: bool,
    pub(super) state: watch::Receiver<MemberState>,
    task: AbortHandle,
}

#[derive(Clone, Debug, Default)]
pub(super) struct MemberState {
    /// With the numbers of the cluster.
    pub(super) endpoints: Vec<AgentEndpoint>,
    /// Why there is no connection.
    pub(super) error: Option<String>,
    /// Absent without a connection, and in this cluster, which needs none.
    pub(super) channels: Option<Channels>,
    /// How often the connection was handed over to another replica.
    pub(super) handovers: u32,
}

impl MemberState {
    /// The connection is lost. The endpoints are kept, because links resume when the cluster is reachable again. They are
    /// removed when the member's session has ended, or when its agents cannot be resumed any more.
    fn disconnect(&mut self, reason: Disconnected, has_expired: bool) {
        self.channels = None;
        if reason.session_ended || has_expired {
            self.endpoints.clear();
        }
        self.error = Some(reason.text);
    }
}

impl Drop for MemberConnection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl MemberConnection {
    pub(super) fn start(
        shared: &Arc<Shared>,
        parent: &MirrordMultiClusterSession,
        cluster: &str,
    ) -> Self {
        let child = child_name(&parent.name_any(), cluster);
        let is_local = parent.spec.primary_cluster == cluster;
        // The stored endpoints are those that the client knew: a restart of the Primary must not remove any.
        let status = parent.status.as_ref();
        let stored = status.and_then(|status| status.cluster_sessions.get(cluster));
        let (state_sender, state) = watch::channel(MemberState {
            endpoints: stored.map_or_else(Vec::new, |child| relay::endpoints_of(&child.pods)),
            error: Some("it is being connected".to_owned()),
            ..MemberState::default()
        });
        let shared = Arc::clone(shared);
        let task = if is_local {
            let ports = PortTracker::new(&shared, &child);
            let following = follow_local_child(shared, child.clone(), state_sender);
            tokio::spawn(async move {
                tokio::join!(following, ports.run());
            })
        } else {
            let connector = MemberConnector {
                path: path(parent),
                cluster: cluster.to_owned(),
                child: child.clone(),
                resume_window: Duration::from_secs(parent.spec.resume_window_secs)
                    .max(shared.settings.session.time_to_live),
            };
            tokio::spawn(async move { connector.run(&shared, &state_sender).await })
        };
        Self {
            cluster: cluster.to_owned(),
            child,
            is_local,
            state,
            task: task.abort_handle(),
        }
    }
}

/// Follows the child in this cluster, which is in the cache of sessions.
async fn follow_local_child(shared: Arc<Shared>, child: String, state: watch::Sender<MemberState>) {
    let mut changes = shared.sessions.subscribe();
    while changes.changed().await.is_ok() {
        let session = shared.sessions.get(&child);
        if session.is_none() && !shared.sessions.is_filled() {
            continue;
        }
        let next = MemberState {
            endpoints: session
                .as_deref()
                .map(|session| relay::endpoints(session).endpoints)
                .unwrap_or_default(),
            error: session
                .is_none()
                .then(|| "its child in this cluster does not exist yet".to_owned()),
            ..MemberState::default()
        };
        state.send_if_modified(|state| {
            let is_new = state.endpoints != next.endpoints || state.error != next.error;
            *state = next;
            is_new
        });
    }
}

fn path(parent: &MirrordMultiClusterSession) -> String {
    let parameters = ConnectParameters {
        connect: true,
        label_target: parent.spec.label_target.clone(),
        on_concurrent_steal: parent.spec.on_concurrent_steal,
        profile: parent.spec.profile.clone(),
        multi_cluster: Some(false),
        ..ConnectParameters::default()
    };
    format!(
        "/apis/{GROUP_VERSION}/proxy/namespaces/{}/targets/{}?{}",
        parent.spec.namespace,
        parent.spec.target_alias,
        parameters.query()
    )
}

/// Connects to a member, and reconnects.
struct MemberConnector {
    path: String,
    cluster: String,
    child: String,
    /// How long an agent waits for the client.
    resume_window: Duration,
}

impl MemberConnector {
    async fn run(&self, shared: &Shared, state: &watch::Sender<MemberState>) {
        let Some(members) = &shared.members else {
            return;
        };
        let mut backoff = Backoff::new(MIN_BACKOFF, MAX_BACKOFF);
        let mut lost = Instant::now();
        loop {
            let reason = match self.attempt(members).await {
                Ok(connection) => {
                    let began = Instant::now();
                    let reason = tokio::select! {
                        reason = follow(connection, state, || self.attempt(members)) => reason,
                        // A network outage does not close the connection.
                        reason = members.unreachable(&self.cluster) => Disconnected::temporary(reason),
                    };
                    lost = Instant::now();
                    if began.elapsed() > MAX_BACKOFF {
                        backoff.reset();
                    }
                    reason
                }
                Err(reason) => reason,
            };
            tracing::debug!(
                session = self.child,
                cluster = self.cluster,
                error = reason.text,
                "member disconnected, reconnecting"
            );
            let has_expired = lost.elapsed() > self.resume_window;
            state.send_modify(|state| state.disconnect(reason, has_expired));
            sleep(backoff.next_delay()).await;
        }
    }

    async fn attempt(
        &self,
        members: &super::MemberClusters,
    ) -> Result<ReplicaConnection, Disconnected> {
        let client = members
            .client_of(&self.cluster)
            .map_err(Disconnected::temporary)?;
        match timeout(CONNECT_TIMEOUT, self.connect(client)).await {
            Ok(socket) => socket.map(ReplicaConnection::over),
            Err(_) => {
                let text = format!("no response within {} s", CONNECT_TIMEOUT.as_secs());
                Err(Disconnected::temporary(text))
            }
        }
    }

    async fn connect(
        &self,
        client: Client,
    ) -> Result<WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>, Disconnected> {
        let upgrade = Upgrade::to(link::upgrade::PROTOCOL);
        let request = upgrade
            .add_headers(Request::get(&self.path))
            .header(CHILD_HEADER, &self.child)
            .body(kube::client::Body::empty())
            .map_err(|error| Disconnected::temporary(error.to_string()))?;
        let response = client
            .send(request)
            .await
            .map_err(|error| Disconnected::temporary(error_chain(&error)))?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(read_refusal(response).await);
        }
        if !upgrade.is_accepted(response.headers()) {
            let text = "the member's operator uses an incompatible protocol";
            return Err(Disconnected::temporary(text));
        }
        let upgraded = hyper::upgrade::on(response)
            .await
            .map_err(|error| Disconnected::temporary(error_chain(&error)))?;
        let socket = TokioIo::new(upgraded);
        Ok(WebSocketStream::from_raw_socket(socket, Role::Client, Some(websocket_config())).await)
    }
}

/// Follows the events of a member until it closes the connection, and returns the reason. When the replica announces its
/// shutdown, the connection is handed over to a replica that `connect` finds.
async fn follow<Connecting>(
    mut connection: ReplicaConnection,
    state: &watch::Sender<MemberState>,
    connect: impl Fn() -> Connecting,
) -> Disconnected
where
    Connecting: Future<Output = Result<ReplicaConnection, Disconnected>>,
{
    state.send_modify(|state| {
        state.channels = Some(connection.channels.clone());
        state.error = None;
    });
    loop {
        match connection.next().await {
            MemberEvent::Closed(reason) => return reason,
            MemberEvent::Endpoints(endpoints) if endpoints.draining => {
                let next = tokio::select! {
                    next = connect_to_another(&connect) => next,
                    reason = connection.closed() => return reason,
                };
                state.send_modify(|state| {
                    state.channels = Some(next.channels.clone());
                    state.handovers += 1;
                });
                let old = std::mem::replace(&mut connection, next);
                tokio::spawn(timeout(HANDOVER_TIMEOUT, old.drain()));
            }
            MemberEvent::Endpoints(endpoints) => {
                state.send_modify(|state| state.endpoints = endpoints.endpoints);
            }
        }
    }
}

async fn connect_to_another<Connecting>(connect: &impl Fn() -> Connecting) -> ReplicaConnection
where
    Connecting: Future<Output = Result<ReplicaConnection, Disconnected>>,
{
    let mut backoff = Backoff::new(MIN_BACKOFF, MAX_HANDOVER_BACKOFF);
    loop {
        match connect().await {
            Ok(connection) => return connection,
            Err(reason) => tracing::debug!(error = reason.text, "no other replica reachable"),
        }
        sleep(backoff.next_delay()).await;
    }
}

/// Reads a refusal, which is a Kubernetes `Status`.
async fn read_refusal(response: http::Response<kube::client::Body>) -> Disconnected {
    let code = response.status();
    let body = response.into_body().collect().await;
    let bytes = body
        .map(http_body_util::Collected::to_bytes)
        .unwrap_or_default();
    let message = serde_json::from_slice::<serde_json::Value>(&bytes)
        .ok()
        .and_then(|status| Some(status.get("message")?.as_str()?.to_owned()));
    let message = message.as_deref().map(bounds::text);
    Disconnected {
        text: message.unwrap_or_else(|| format!("the API server responded with {code}")),
        session_ended: code == StatusCode::GONE,
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use api::connect::{AgentEndpoints, SESSION_ENDED};
    use link::channels::Event;
    use parking_lot::Mutex;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio::sync::mpsc;

    use super::*;

    /// A connection to a replica of a member, and that replica's end of it.
    async fn replica() -> (ReplicaConnection, Channels, mpsc::UnboundedReceiver<Event>) {
        let (ours, theirs) = duplex(64 * 1024);
        let ours =
            WebSocketStream::from_raw_socket(ours, Role::Client, Some(websocket_config())).await;
        let theirs =
            WebSocketStream::from_raw_socket(theirs, Role::Server, Some(websocket_config())).await;
        let (channels, events, driver) = Channels::over(theirs);
        tokio::spawn(driver);
        (ReplicaConnection::over(ours), channels, events)
    }

    fn send(replica: &Channels, endpoints: &AgentEndpoints) {
        replica.send_message(serde_json::to_vec(endpoints).unwrap().into());
    }

    async fn opened(events: &mut mpsc::UnboundedReceiver<Event>) -> link::channels::Channel {
        match events.recv().await {
            Some(Event::Opened {
                endpoint: 7,
                channel,
            }) => channel,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_draining_replica_is_used_until_the_client_has_moved() {
        let (connection, old, mut old_events) = replica().await;
        let (next, new, mut new_events) = replica().await;
        let results = Mutex::new(vec![
            Ok(next),
            Err(Disconnected::temporary("none is ready")),
        ]);
        let (state, mut observed) = watch::channel(MemberState::default());
        let followed = tokio::spawn(async move {
            let connect = || ready(results.lock().pop().unwrap());
            follow(connection, &state, connect).await.text
        });
        let before = observed.wait_for(|state| state.channels.is_some()).await;
        let before = before.unwrap().channels.clone().unwrap();
        let mut used = before.open(7);
        let mut agent_end = opened(&mut old_events).await;
        send(
            &old,
            &AgentEndpoints {
                draining: true,
                ..AgentEndpoints::default()
            },
        );
        let after = observed.wait_for(|state| state.handovers == 1).await;
        let after = after.unwrap().channels.clone().unwrap();
        let _reopened = after.open(7);
        let _agent = opened(&mut new_events).await;
        // Data in flight over the old connection still arrives.
        used.write_all(b"last").await.unwrap();
        let mut bytes = [0; 4];
        agent_end.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"last");
        drop((used, before));
        while let Some(event) = old_events.recv().await {
            assert!(matches!(event, Event::Closed(_)), "{event:?}");
        }
        // Messages of the new replica are received.
        send(
            &new,
            &AgentEndpoints {
                endpoints: vec![AgentEndpoint::default()],
                ..AgentEndpoints::default()
            },
        );
        observed
            .wait_for(|state| state.endpoints.len() == 1)
            .await
            .unwrap();
        new.end(SESSION_ENDED);
        assert_eq!(followed.await.unwrap(), SESSION_ENDED);
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_exits_before_a_handover_disconnects() {
        let (connection, old, _events) = replica().await;
        let (state, observed) = watch::channel(MemberState::default());
        let followed = tokio::spawn(async move {
            let connect = || ready(Err(Disconnected::temporary("none is ready")));
            follow(connection, &state, connect).await.text
        });
        send(
            &old,
            &AgentEndpoints {
                draining: true,
                ..AgentEndpoints::default()
            },
        );
        sleep(Duration::from_secs(3)).await;
        old.end("this replica is shutting down; reconnect");
        assert_eq!(
            followed.await.unwrap(),
            "this replica is shutting down; reconnect"
        );
        assert_eq!(observed.borrow().handovers, 0);
    }

    #[test]
    fn endpoints_are_removed_when_they_cannot_be_resumed() {
        let state = || MemberState {
            endpoints: vec![AgentEndpoint::default()],
            ..MemberState::default()
        };
        let ended = || Disconnected {
            text: SESSION_ENDED.to_owned(),
            session_ended: true,
        };
        let cases = [
            (Disconnected::temporary("no route"), false, 1),
            (Disconnected::temporary("no route"), true, 0),
            (ended(), false, 0),
        ];
        for (reason, has_expired, remaining) in cases {
            let mut state = state();
            let text = reason.text.clone();
            state.disconnect(reason, has_expired);
            assert_eq!(state.endpoints.len(), remaining, "{text}");
            assert_eq!(state.error, Some(text));
        }
    }
}
