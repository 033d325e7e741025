//! The MultiClusterRouter of the Primary: relays a client's channels to the clusters of its session. The client decides which
//! operation uses which agent, so the relay does not interpret the bytes.

use std::collections::BTreeMap;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use api::MirrordMultiClusterSession;
use api::connect::{AgentEndpoint, AgentEndpoints, ClusterEndpoints};
use futures_util::future::select_all;
use jiff::Timestamp;
use link::channels::{Channel, Channels, Event};
use link::websocket::WebSocketStream;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::time::{interval, timeout};

use super::connection::{MemberConnection, MemberState};
use crate::Shared;
use crate::authorize::revocation::Authorization;
use crate::connect::client_connection::ClientConnection;
use crate::connect::relay;
use crate::connect::resume::ClientSession as _;

/// The default interval at which the parent's object records that the client is connected.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);
/// How long the last messages to a client may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// The lower bits of an endpoint number are the number within the cluster; the upper bits are the index of the cluster.
const NUMBER_BITS: u32 = 20;

pub(crate) async fn relay<S>(
    shared: &Arc<Shared>,
    name: String,
    authorization: Authorization,
    socket: WebSocketStream<S>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (channels, events, driver) = Channels::over(socket);
    let router = MultiClusterRouter {
        shared: Arc::clone(shared),
        authorization,
        client: ClientConnection::new(&shared.client, name, channels),
    };
    let _connection = shared.metrics.connection_guard();
    router.heartbeat().await;
    let mut driver = pin!(driver);
    let ended = tokio::select! {
        result = &mut driver => result,
        // Queued messages are still sent.
        () = router.serve(events) => timeout(CLOSE_TIMEOUT, driver).await.unwrap_or(Ok(())),
    };
    if let Err(error) = ended {
        tracing::debug!(session = router.client.name, %error, "client connection lost");
    }
    router.heartbeat().await;
}

struct MultiClusterRouter {
    shared: Arc<Shared>,
    authorization: Authorization,
    client: ClientConnection<MirrordMultiClusterSession>,
}

impl MultiClusterRouter {
    async fn serve(&self, mut events: mpsc::UnboundedReceiver<Event>) {
        let Some(members) = &self.shared.members else {
            return;
        };
        let Some(parent) = self.parent() else {
            return self.client.end(None, self.stored().as_deref());
        };
        let connections: Vec<MemberConnection> = parent
            .spec
            .clusters
            .iter()
            .map(|cluster| MemberConnection::start(&self.shared, &parent, cluster))
            .collect();
        let mut parent_changes = members.sessions.subscribe();
        let mut states: Vec<_> = connections
            .iter()
            .map(|connection| connection.state.clone())
            .collect();
        let mut heartbeats = interval(members.settings.session.heartbeat(HEARTBEAT_INTERVAL));
        heartbeats.tick().await;
        let mut sent = None;
        let mut is_draining = false;
        let mut handover_deadline = pin!(self.shared.handover_deadline());
        let review_interval = self.shared.settings.session.review_interval;
        let mut revoked = pin!(
            self.authorization
                .revoked(&self.shared.client, review_interval)
        );
        loop {
            let endpoints = AgentEndpoints {
                draining: is_draining,
                ..endpoints(&parent, &connections)
            };
            if sent.as_ref() != Some(&endpoints) {
                self.client.send(&endpoints);
                sent = Some(endpoints);
            }
            let changed = select_all(states.iter_mut().map(|state| Box::pin(state.changed())));
            tokio::select! {
                event = events.recv() => match event {
                    Some(Event::Opened { endpoint, channel }) => self.open(&connections, endpoint, channel),
                    Some(Event::Finished) => return self.client.finish().await,
                    Some(Event::Message(_)) => {}
                    Some(Event::Closed(_)) | None => return,
                },
                _ = changed => {}
                changed = parent_changes.changed() => {
                    if changed.is_err() || self.parent().is_none() {
                        return self.client.end(sent, self.stored().as_deref());
                    }
                }
                _ = heartbeats.tick() => self.heartbeat().await,
                message = &mut revoked => return self.client.end_denied(sent, message).await,
                () = self.shared.draining.cancelled(), if !is_draining => is_draining = true,
                () = &mut handover_deadline => {
                    return self.client.close("this replica is shutting down; reconnect");
                }
            }
        }
    }

    fn stored(&self) -> Option<Arc<MirrordMultiClusterSession>> {
        self.shared
            .members
            .as_ref()?
            .sessions
            .get(&self.client.name)
    }

    /// The parent's object, or `None` when the session has ended.
    fn parent(&self) -> Option<Arc<MirrordMultiClusterSession>> {
        self.stored().filter(|parent| !parent.has_ended())
    }

    /// Connects a channel of the client to a channel of a member, or to an agent in this cluster.
    fn open(&self, connections: &[MemberConnection], endpoint: u32, channel: Channel) {
        let (index, number) = split_number(endpoint);
        let Some(connection) = connections.get(index) else {
            return channel.refuse(&format!("the session has no endpoint {endpoint}"));
        };
        let shared = Arc::clone(&self.shared);
        if connection.is_local {
            let Some(session) = self.shared.sessions.get(&connection.child) else {
                return channel.refuse("the session's child in this cluster has ended");
            };
            match relay::address_of(&session, number) {
                Ok(address) => {
                    let agent = (connection.child.clone(), number);
                    tokio::spawn(async move {
                        let (metrics, stopped) = (&shared.metrics, &shared.stopped_agents);
                        relay::relay_to_agent(metrics, stopped, &agent, address, channel).await;
                    })
                }
                Err(reason) => return channel.refuse(&reason),
            };
            return;
        }
        let state = connection.state.borrow();
        match &state.channels {
            Some(channels) => {
                let member = channels.open(number);
                tokio::spawn(async move { relay_to_member(&shared, channel, member).await });
            }
            None => {
                let reason = state.error.as_deref().unwrap_or("no connection");
                channel.refuse(&format!("{} is unreachable: {reason}", connection.cluster));
            }
        }
    }

    async fn heartbeat(&self) {
        let now = Timestamp::now().to_string();
        let fields = json!({"connectedTimestamp": now});
        self.client.heartbeat(&fields).await;
    }
}

async fn relay_to_member(shared: &Shared, client: Channel, member: Channel) {
    // The member's refusal is forwarded to the client. The two ends handle all other errors.
    if let Err((client, error)) = relay::relay_bytes(&shared.metrics, client, member).await
        && error.kind() == io::ErrorKind::ConnectionRefused
    {
        client.refuse(&error.to_string());
    }
}

/// The number of an endpoint, from the index of its cluster and its number there. `None` if one of them is too large.
fn join_number(index: usize, number: u32) -> Option<u32> {
    let index = u32::try_from(index).ok()?;
    (index < 1 << (u32::BITS - NUMBER_BITS) && number < 1 << NUMBER_BITS)
        .then_some(index << NUMBER_BITS | number)
}

fn split_number(endpoint: u32) -> (usize, u32) {
    let index = usize::try_from(endpoint >> NUMBER_BITS).unwrap_or(usize::MAX);
    (index, endpoint & ((1 << NUMBER_BITS) - 1))
}

/// The message to the client: the endpoints of all clusters, and the state of the clusters. The agents of an unreachable
/// cluster stay in the list, because links to them resume when the cluster is reachable again.
fn endpoints(
    parent: &MirrordMultiClusterSession,
    connections: &[MemberConnection],
) -> AgentEndpoints {
    let states: BTreeMap<usize, MemberState> = connections
        .iter()
        .enumerate()
        .map(|(index, connection)| (index, connection.state.borrow().clone()))
        .collect();
    let names = parent.spec.clusters.iter();
    merge(
        &names.map(String::as_str).collect::<Vec<_>>(),
        &parent.spec.default_cluster,
        &states,
    )
}

fn merge(names: &[&str], default: &str, states: &BTreeMap<usize, MemberState>) -> AgentEndpoints {
    let mut all = AgentEndpoints::default();
    for (index, name) in names.iter().enumerate() {
        let state = states.get(&index).cloned().unwrap_or_default();
        all.clusters.push(ClusterEndpoints {
            name: (*name).to_owned(),
            is_default: *name == default,
            error: state.error.clone(),
            handovers: state.handovers,
        });
        for endpoint in state.endpoints {
            let Some(number) = join_number(index, endpoint.number) else {
                continue;
            };
            all.endpoints.push(AgentEndpoint {
                number,
                cluster: Some((*name).to_owned()),
                ..endpoint
            });
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(number: u32, pod: &str) -> AgentEndpoint {
        AgentEndpoint {
            number,
            pod: pod.to_owned(),
            ready: true,
            ..AgentEndpoint::default()
        }
    }

    #[test]
    fn endpoint_numbers_are_unique_across_clusters() {
        let east = MemberState {
            endpoints: vec![endpoint(1, "web-a"), endpoint(2, "web-b")],
            ..MemberState::default()
        };
        let west = MemberState {
            endpoints: vec![endpoint(1, "web-a")],
            error: Some("the connection is lost".to_owned()),
            ..MemberState::default()
        };
        let states = BTreeMap::from([(0, east), (1, west)]);
        let all = merge(&["east", "west", "north"], "west", &states);
        let endpoints: Vec<_> = all
            .endpoints
            .iter()
            .map(|endpoint| {
                (
                    split_number(endpoint.number),
                    endpoint.cluster.as_deref(),
                    endpoint.ready,
                )
            })
            .collect();
        assert_eq!(
            endpoints,
            [
                ((0, 1), Some("east"), true),
                ((0, 2), Some("east"), true),
                ((1, 1), Some("west"), true)
            ]
        );
        let clusters: Vec<_> = all
            .clusters
            .iter()
            .map(|cluster| {
                (
                    cluster.name.as_str(),
                    cluster.is_default,
                    cluster.error.is_some(),
                )
            })
            .collect();
        assert_eq!(
            clusters,
            [
                ("east", false, false),
                ("west", true, true),
                ("north", false, false)
            ]
        );
    }

    #[test]
    fn numbers_that_are_too_large_are_rejected() {
        assert_eq!(join_number(0, 7), Some(7));
        assert_eq!(
            join_number(4095, (1 << 20) - 1).map(split_number),
            Some((4095, (1 << 20) - 1))
        );
        assert_eq!(join_number(4096, 1), None);
        assert_eq!(join_number(0, 1 << 20), None);
    }
}
