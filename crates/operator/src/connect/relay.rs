//! Carries a session's bytes: channels of the client's WebSocket on one side, agents on the other. Nothing is understood
//! here, and nothing is remembered that is not in the session's object.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use api::MirrordClusterSession;
use api::connect::{Place, Places, SESSION_IS_OVER};
use api::session::SessionPod;
use bytes::Bytes;
use jiff::Timestamp;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use link::channels::{Channel, Channels, Event};
use link::websocket::WebSocketStream;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional_with_sizes};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, interval, sleep, timeout};
use tokio_util::io::{InspectReader, InspectWriter};

use super::ports::PortBook;
use crate::Shared;
use crate::metrics::DirectionLabels;

/// How often the session's object says that the client is there, where there is no reason to hurry.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// An agent listens a moment after its container runs.
const AGENT_PATIENCE: Duration = Duration::from_secs(5);
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(50);
const ATTEMPT: Duration = Duration::from_secs(2);
/// As large as the messages of a WebSocket, so that each is one write.
const BUFFER: usize = 128 * 1024;

pub(super) async fn relay<S>(shared: &Arc<Shared>, name: String, socket: WebSocketStream<S>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (channels, events, driver) = Channels::over(socket);
    channels.hear_no_news();
    let relay = Relay {
        shared: Arc::clone(shared),
        ports: PortBook::new(shared, &name),
        name,
        channels,
    };
    let _connected = shared.metrics.connected();
    relay.heartbeat(true).await;
    let mut driver = pin!(driver);
    let ended = tokio::select! {
        result = &mut driver => result,
        // What was said last still goes out.
        () = relay.serve(events) => timeout(ATTEMPT, driver).await.unwrap_or(Ok(())),
        () = relay.ports.keep() => Ok(()),
    };
    if let Err(error) = ended {
        tracing::debug!(session = relay.name, %error, "a client's connection ended");
    }
    relay.ports.flush().await;
    relay.heartbeat(false).await;
}

struct Relay {
    shared: Arc<Shared>,
    name: String,
    channels: Channels,
    ports: Arc<PortBook>,
}

impl Relay {
    async fn serve(&self, mut events: mpsc::UnboundedReceiver<Event>) {
        let mut bell = self.shared.sessions.bell();
        let mut heartbeats = interval(self.shared.settings.session.heartbeat(HEARTBEAT));
        heartbeats.tick().await;
        let mut said = None;
        let mut is_leaving = false;
        let mut left = pin!(self.shared.left());
        loop {
            tokio::select! {
                event = events.recv() => match event {
                    Some(Event::Opened { place, channel }) => self.open(place, channel),
                    Some(Event::Farewell) => return self.finish().await,
                    Some(Event::News(_)) => {}
                    Some(Event::Closed(_)) | None => return,
                },
                changed = bell.changed() => {
                    let Some(session) = self.session().filter(|_| changed.is_ok()) else {
                        return self.channels.end(SESSION_IS_OVER);
                    };
                    let places = Places { leaving: is_leaving, ..places(&session) };
                    if said.as_ref() != Some(&places) {
                        self.say(&places);
                        said = Some(places);
                    }
                }
                _ = heartbeats.tick() => self.heartbeat(false).await,
                () = self.shared.leaving.cancelled(), if !is_leaving => {
                    is_leaving = true;
                    if let Some(session) = self.session() {
                        self.say(&Places { leaving: true, ..places(&session) });
                    }
                }
                () = &mut left => return self.channels.end("this replica ends; come back"),
            }
        }
    }

    /// None, when it is over.
    fn session(&self) -> Option<Arc<MirrordClusterSession>> {
        let session = self.shared.sessions.get(&self.name)?;
        let is_over = session.metadata.deletion_timestamp.is_some()
            || session
                .status
                .as_ref()
                .is_some_and(|status| status.closed.is_some());
        (!is_over).then_some(session)
    }

    fn say(&self, places: &Places) {
        if let Ok(text) = serde_json::to_vec(places) {
            self.channels.say(Bytes::from(text));
        }
    }

    /// Connects a channel with the agent of a place.
    fn open(&self, place: u32, channel: Channel) {
        let Some(session) = self.session() else {
            return channel.refuse(SESSION_IS_OVER);
        };
        let address = match address_of(&session, place) {
            Ok(address) => address,
            Err(why) => return channel.refuse(&why),
        };
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            match reach(address).await {
                // How it ends is between both ends.
                Ok(agent) => drop(carry(&shared, channel, agent).await),
                Err(error) => {
                    channel.refuse(&format!("the agent at {address} does not answer: {error}"));
                }
            }
        });
    }

    /// The client is done: nobody has to wait for it.
    async fn finish(&self) {
        self.ports.close().await;
        let sessions: Api<MirrordClusterSession> = Api::all(self.shared.client.clone());
        if let Err(error) = sessions.delete(&self.name, &DeleteParams::default()).await {
            tracing::debug!(session = self.name, %error, "a session ends a little later");
        }
        self.channels.end(SESSION_IS_OVER);
    }

    /// Says in the object that the client is there. Nobody else writes these fields.
    async fn heartbeat(&self, is_first: bool) {
        let now = Timestamp::now().to_string();
        let mut status = json!({"lastSeenTimestamp": now});
        let session = self.shared.sessions.get(&self.name);
        let was_connected = session
            .as_ref()
            .and_then(|session| session.status.as_ref())
            .is_some_and(|status| status.connected_timestamp.is_some());
        if is_first && !was_connected {
            status["connectedTimestamp"] = json!(now);
        }
        let sessions: Api<MirrordClusterSession> = Api::all(self.shared.client.clone());
        let patch = json!({"status": status});
        let patched = sessions
            .patch_status(&self.name, &PatchParams::default(), &Patch::Merge(&patch))
            .await;
        if let Err(error) = patched {
            tracing::debug!(session = self.name, %error, "a heartbeat is lost");
        }
    }
}

pub(crate) fn places(session: &MirrordClusterSession) -> Places {
    let pods = session.status.as_ref().map(|status| status.pods.as_slice());
    Places {
        places: places_of(pods.unwrap_or_default()),
        ..Places::default()
    }
}

pub(crate) fn places_of(pods: &[SessionPod]) -> Vec<Place> {
    let places = pods.iter().map(|pod| Place {
        number: pod.channel,
        cluster: None,
        pod: pod.name.clone(),
        container: pod.container.clone(),
        ready: pod.ready,
        certificate: pod.certificate.clone(),
        agent: pod.agent.clone(),
        grant: pod.grant.clone(),
        error: pod.error.clone(),
    });
    places.collect()
}

pub(crate) fn address_of(
    session: &MirrordClusterSession,
    place: u32,
) -> Result<SocketAddr, String> {
    let pods = session.status.as_ref().map(|status| status.pods.as_slice());
    let pod = pods
        .unwrap_or_default()
        .iter()
        .find(|pod| pod.channel == place)
        .ok_or_else(|| format!("the session has no pod {place}"))?;
    let address = pod.address.as_deref();
    let not_yet = || format!("the agent in pod {} is not ready", pod.name);
    address
        .and_then(|address| address.parse().ok())
        .ok_or_else(not_yet)
}

pub(crate) async fn reach(address: SocketAddr) -> io::Result<TcpStream> {
    let began = Instant::now();
    loop {
        let attempt = timeout(ATTEMPT, TcpStream::connect(address)).await;
        match attempt.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(stream) => {
                link::set_tcp_options(&stream)?;
                return Ok(stream);
            }
            Err(error) if began.elapsed() > AGENT_PATIENCE => return Err(error),
            Err(_) => sleep(BETWEEN_ATTEMPTS).await,
        }
    }
}

/// Carries bytes until both ends are done with it, or one is lost. Answers the client's end, if it is not.
pub(crate) async fn carry(
    shared: &Shared,
    mut client: Channel,
    agent: impl AsyncRead + AsyncWrite + Unpin,
) -> Result<(), (Channel, io::Error)> {
    let counter = |direction| {
        let counters = &shared.metrics.relayed_bytes;
        let counter = counters.get_or_create(&DirectionLabels { direction });
        // Not the table's lock, which would be held as long as the connection.
        let counter = counter.clone();
        move |bytes: &[u8]| {
            counter.inc_by(bytes.len() as u64);
        }
    };
    // Counted as they go: a session may last for days, and end by being cut.
    let agent = InspectWriter::new(agent, counter("to_agent"));
    let mut agent = InspectReader::new(agent, counter("to_client"));
    match copy_bidirectional_with_sizes(&mut client, &mut agent, BUFFER, BUFFER).await {
        Ok(_) => Ok(()),
        Err(error) => Err((client, error)),
    }
}
