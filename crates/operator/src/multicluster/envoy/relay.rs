//! The MultiClusterRouter of the Primary: carries a client's channels to the clusters of its session. Which operation goes
//! to which agent is decided at the client's end, so nothing is understood here.

use std::collections::BTreeMap;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use api::MirrordMultiClusterSession;
use api::connect::{Place, PlaceCluster, Places, SESSION_IS_OVER};
use bytes::Bytes;
use futures_util::future::select_all;
use jiff::Timestamp;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use link::channels::{Channel, Channels, Event};
use link::websocket::WebSocketStream;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::time::{interval, timeout};

use super::leg::{Leg, LegState};
use crate::Shared;
use crate::connect::relay;

/// How often the parent's object says that the client is there, where there is no reason to hurry.
const HEARTBEAT: Duration = Duration::from_secs(10);
const FAREWELL: Duration = Duration::from_secs(2);
/// A place's number has the cluster's in its upper bits.
const BITS: u32 = 20;

pub(crate) async fn relay<S>(shared: &Arc<Shared>, name: String, socket: WebSocketStream<S>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (channels, events, driver) = Channels::over(socket);
    let router = MultiClusterRouter {
        shared: Arc::clone(shared),
        name,
        channels,
    };
    let _connected = shared.metrics.connected();
    router.heartbeat().await;
    let mut driver = pin!(driver);
    let ended = tokio::select! {
        result = &mut driver => result,
        // What was said last still goes out.
        () = router.serve(events) => timeout(FAREWELL, driver).await.unwrap_or(Ok(())),
    };
    if let Err(error) = ended {
        tracing::debug!(session = router.name, %error, "a client's connection ended");
    }
    router.heartbeat().await;
}

struct MultiClusterRouter {
    shared: Arc<Shared>,
    name: String,
    channels: Channels,
}

impl MultiClusterRouter {
    async fn serve(&self, mut events: mpsc::UnboundedReceiver<Event>) {
        let Some(envoy) = &self.shared.envoy else {
            return;
        };
        let Some(parent) = self.parent() else {
            return self.channels.end(SESSION_IS_OVER);
        };
        let legs: Vec<Leg> = parent
            .spec
            .clusters
            .iter()
            .map(|cluster| Leg::begin(&self.shared, &parent, cluster))
            .collect();
        let mut bell = envoy.sessions.bell();
        let mut changes: Vec<_> = legs.iter().map(|leg| leg.state.clone()).collect();
        let mut heartbeats = interval(self.shared.settings.session.heartbeat(HEARTBEAT));
        heartbeats.tick().await;
        let mut said = None;
        let mut is_leaving = false;
        let mut left = pin!(self.shared.left());
        loop {
            let places = Places {
                leaving: is_leaving,
                ..places(&parent, &legs)
            };
            if said.as_ref() != Some(&places) {
                self.say(&places);
                said = Some(places);
            }
            let changed = select_all(changes.iter_mut().map(|state| Box::pin(state.changed())));
            tokio::select! {
                event = events.recv() => match event {
                    Some(Event::Opened { place, channel }) => self.open(&legs, place, channel),
                    Some(Event::Farewell) => return self.finish().await,
                    Some(Event::News(_)) => {}
                    Some(Event::Closed(_)) | None => return,
                },
                _ = changed => {}
                changed = bell.changed() => {
                    if changed.is_err() || self.parent().is_none() {
                        return self.channels.end(SESSION_IS_OVER);
                    }
                }
                _ = heartbeats.tick() => self.heartbeat().await,
                () = self.shared.leaving.cancelled(), if !is_leaving => is_leaving = true,
                () = &mut left => return self.channels.end("this replica ends; come back"),
            }
        }
    }

    /// None, when it is over.
    fn parent(&self) -> Option<Arc<MirrordMultiClusterSession>> {
        let parent = self.shared.envoy.as_ref()?.sessions.get(&self.name)?;
        let closed = parent
            .status
            .as_ref()
            .and_then(|status| status.closed.as_ref());
        let is_over = parent.metadata.deletion_timestamp.is_some() || closed.is_some();
        (!is_over).then_some(parent)
    }

    fn say(&self, places: &Places) {
        if let Ok(text) = serde_json::to_vec(places) {
            self.channels.say(Bytes::from(text));
        }
    }

    /// Connects a channel of the client with one of a member, or with an agent here.
    fn open(&self, legs: &[Leg], place: u32, channel: Channel) {
        let (leg, number) = split(place);
        let Some(leg) = legs.get(leg) else {
            return channel.refuse(&format!("the session has no place {place}"));
        };
        let shared = Arc::clone(&self.shared);
        if leg.is_here {
            let Some(session) = self.shared.sessions.get(&leg.child) else {
                return channel.refuse("the session's part here is over");
            };
            match relay::address_of(&session, number) {
                Ok(address) => tokio::spawn(async move {
                    match relay::reach(address).await {
                        Ok(agent) => drop(relay::carry(&shared, channel, agent).await),
                        Err(error) => channel
                            .refuse(&format!("the agent at {address} does not answer: {error}")),
                    }
                }),
                Err(why) => return channel.refuse(&why),
            };
            return;
        }
        let state = leg.state.borrow();
        match &state.channels {
            Some(channels) => {
                let member = channels.open(number);
                tokio::spawn(async move { carry_to_member(&shared, channel, member).await });
            }
            None => {
                let why = state.error.as_deref().unwrap_or("no connection");
                channel.refuse(&format!("{} cannot be reached now: {why}", leg.cluster));
            }
        }
    }

    /// The client is done: nobody has to wait for it.
    async fn finish(&self) {
        let parents: Api<MirrordMultiClusterSession> = Api::all(self.shared.client.clone());
        if let Err(error) = parents.delete(&self.name, &DeleteParams::default()).await {
            tracing::debug!(session = self.name, %error, "a session ends a little later");
        }
        self.channels.end(SESSION_IS_OVER);
    }

    /// Says in the object that the client is there. Nobody else writes this field.
    async fn heartbeat(&self) {
        let parents: Api<MirrordMultiClusterSession> = Api::all(self.shared.client.clone());
        let patch = json!({"status": {"connectedTimestamp": Timestamp::now().to_string()}});
        let patched = parents
            .patch_status(&self.name, &PatchParams::default(), &Patch::Merge(&patch))
            .await;
        if let Err(error) = patched {
            tracing::debug!(session = self.name, %error, "a heartbeat is lost");
        }
    }
}

async fn carry_to_member(shared: &Shared, client: Channel, member: Channel) {
    // The member's own words go on to the client. How else it ends is between both ends.
    if let Err((client, error)) = relay::carry(shared, client, member).await
        && error.kind() == io::ErrorKind::ConnectionRefused
    {
        client.refuse(&error.to_string());
    }
}

fn joined(leg: usize, number: u32) -> Option<u32> {
    let leg = u32::try_from(leg).ok()?;
    (leg < 1 << (u32::BITS - BITS) && number < 1 << BITS).then_some(leg << BITS | number)
}

fn split(place: u32) -> (usize, u32) {
    let leg = usize::try_from(place >> BITS).unwrap_or(usize::MAX);
    (leg, place & ((1 << BITS) - 1))
}

/// What the client is told: all places of all clusters, and how these are. Agents of a cluster that cannot be reached now
/// are still there, as far as anybody knows: links to them resume when it is back.
fn places(parent: &MirrordMultiClusterSession, legs: &[Leg]) -> Places {
    let states: BTreeMap<usize, LegState> = legs
        .iter()
        .enumerate()
        .map(|(index, leg)| (index, leg.state.borrow().clone()))
        .collect();
    let names = parent.spec.clusters.iter();
    merged(
        &names.map(String::as_str).collect::<Vec<_>>(),
        &parent.spec.default_cluster,
        &states,
    )
}

fn merged(names: &[&str], default: &str, states: &BTreeMap<usize, LegState>) -> Places {
    let mut all = Places::default();
    for (index, name) in names.iter().enumerate() {
        let state = states.get(&index).cloned().unwrap_or_default();
        all.clusters.push(PlaceCluster {
            name: (*name).to_owned(),
            is_default: *name == default,
            error: state.error.clone(),
            moves: state.moves,
        });
        for place in state.places {
            let Some(number) = joined(index, place.number) else {
                continue;
            };
            all.places.push(Place {
                number,
                cluster: Some((*name).to_owned()),
                ..place
            });
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(number: u32, pod: &str) -> Place {
        Place {
            number,
            pod: pod.to_owned(),
            ready: true,
            ..Place::default()
        }
    }

    #[test]
    fn places_of_all_clusters_have_numbers_of_their_own() {
        let east = LegState {
            places: vec![place(1, "web-a"), place(2, "web-b")],
            ..LegState::default()
        };
        let west = LegState {
            places: vec![place(1, "web-a")],
            error: Some("the connection is lost".to_owned()),
            ..LegState::default()
        };
        let states = BTreeMap::from([(0, east), (1, west)]);
        let all = merged(&["east", "west", "north"], "west", &states);
        let shown: Vec<_> = all
            .places
            .iter()
            .map(|place| (split(place.number), place.cluster.as_deref(), place.ready))
            .collect();
        assert_eq!(
            shown,
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
    fn numbers_that_do_not_fit_are_left_out() {
        assert_eq!(joined(0, 7), Some(7));
        assert_eq!(
            joined(4095, (1 << 20) - 1).map(split),
            Some((4095, (1 << 20) - 1))
        );
        assert_eq!(joined(4096, 1), None);
        assert_eq!(joined(0, 1 << 20), None);
    }
}
