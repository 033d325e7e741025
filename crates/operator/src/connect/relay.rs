//! Relays a session's bytes between the channels of the client's WebSocket and its agents. The relay does not interpret the
//! bytes, and has no state that is not in the session's object.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use api::MirrordClusterSession;
use api::connect::{AgentEndpoint, AgentEndpoints, SESSION_ENDED};
use api::session::SessionPod;
use jiff::Timestamp;
use link::channels::{Channel, Channels, Event};
use link::websocket::WebSocketStream;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional_with_sizes};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, interval, sleep, timeout};
use tokio_util::io::{InspectReader, InspectWriter};

use super::client_connection::ClientConnection;
use super::ports::PortTracker;
use super::resume::ClientSession as _;
use crate::Shared;
use crate::authorize::revocation::Authorization;
use crate::metrics::{DirectionLabels, Metrics};
use crate::unconfirmed::{SessionAgent, StoppedAgents, UNCONFIRMED};

/// The default interval at which the session's object records that the client is connected.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(15);
/// How long to retry connections to an agent: it listens a moment after its container runs.
const AGENT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const RETRY_DELAY: Duration = Duration::from_millis(50);
/// The timeout of one connection attempt.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the last messages to a client may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// As large as the messages of a WebSocket, so that each is one write.
const BUFFER_BYTES: usize = 128 * 1024;

pub(super) async fn relay<S>(
    shared: &Arc<Shared>,
    name: String,
    authorization: Authorization,
    socket: WebSocketStream<S>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (channels, events, driver) = Channels::over(socket);
    channels.reject_messages();
    let relay = Relay {
        shared: Arc::clone(shared),
        ports: PortTracker::new(shared, &name),
        authorization,
        client: ClientConnection::new(&shared.client, name, channels),
    };
    let _connection = shared.metrics.connection_guard();
    relay.heartbeat(true).await;
    let mut driver = pin!(driver);
    let ended = tokio::select! {
        result = &mut driver => result,
        // Queued messages are still sent.
        () = relay.serve(events) => timeout(CLOSE_TIMEOUT, driver).await.unwrap_or(Ok(())),
        () = relay.ports.run() => Ok(()),
    };
    if let Err(error) = ended {
        tracing::debug!(session = relay.client.name, %error, "client connection lost");
    }
    relay.ports.flush().await;
    relay.heartbeat(false).await;
}

struct Relay {
    shared: Arc<Shared>,
    authorization: Authorization,
    client: ClientConnection<MirrordClusterSession>,
    ports: Arc<PortTracker>,
}

impl Relay {
    async fn serve(&self, mut events: mpsc::UnboundedReceiver<Event>) {
        let mut changes = self.shared.sessions.subscribe();
        let mut heartbeats = interval(self.shared.settings.session.heartbeat(HEARTBEAT_INTERVAL));
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
            tokio::select! {
                event = events.recv() => match event {
                    Some(Event::Opened { endpoint, channel }) => self.open(endpoint, channel),
                    Some(Event::Finished) => {
                        self.ports.close().await;
                        return self.client.finish().await;
                    }
                    Some(Event::Message(_)) => {}
                    Some(Event::Closed(_)) | None => return,
                },
                changed = changes.changed() => {
                    let stored = self.stored();
                    let running = stored.as_deref().filter(|session| changed.is_ok() && !session.has_ended());
                    let Some(session) = running else {
                        return self.client.end(sent, stored.as_deref());
                    };
                    let endpoints = AgentEndpoints { draining: is_draining, ..endpoints(session) };
                    if sent.as_ref() != Some(&endpoints) {
                        self.client.send(&endpoints);
                        sent = Some(endpoints);
                    }
                }
                _ = heartbeats.tick() => self.heartbeat(false).await,
                message = &mut revoked => return self.client.end_denied(sent, message).await,
                () = self.shared.draining.cancelled(), if !is_draining => {
                    is_draining = true;
                    if let Some(session) = self.session() {
                        self.client.send(&AgentEndpoints { draining: true, ..endpoints(&session) });
                    }
                }
                () = &mut handover_deadline => {
                    return self.client.close("this replica is shutting down; reconnect");
                }
            }
        }
    }

    fn stored(&self) -> Option<Arc<MirrordClusterSession>> {
        self.shared.sessions.get(&self.client.name)
    }

    /// The session's object, or `None` when the session has ended.
    fn session(&self) -> Option<Arc<MirrordClusterSession>> {
        self.stored().filter(|session| !session.has_ended())
    }

    /// Connects a channel to the agent of an endpoint.
    fn open(&self, endpoint: u32, channel: Channel) {
        let Some(session) = self.session() else {
            return channel.refuse(SESSION_ENDED);
        };
        let address = match address_of(&session, endpoint) {
            Ok(address) => address,
            Err(reason) => return channel.refuse(&reason),
        };
        let (shared, agent) = (
            Arc::clone(&self.shared),
            (self.client.name.clone(), endpoint),
        );
        tokio::spawn(async move {
            let (metrics, stopped) = (&shared.metrics, &shared.stopped_agents);
            relay_to_agent(metrics, stopped, &agent, address, channel).await;
        });
    }

    async fn heartbeat(&self, is_first: bool) {
        let now = Timestamp::now().to_string();
        let mut fields = json!({"lastSeenTimestamp": now});
        let session = self.stored();
        let status = session.as_ref().and_then(|session| session.status.as_ref());
        let was_connected = status.is_some_and(|status| status.connected_timestamp.is_some());
        if is_first && !was_connected {
            fields["connectedTimestamp"] = json!(now);
        }
        self.client.heartbeat(&fields).await;
    }
}

pub(crate) fn endpoints(session: &MirrordClusterSession) -> AgentEndpoints {
    let pods = session.status.as_ref().map(|status| status.pods.as_slice());
    AgentEndpoints {
        endpoints: endpoints_of(pods.unwrap_or_default()),
        ..AgentEndpoints::default()
    }
}

pub(crate) fn endpoints_of(pods: &[SessionPod]) -> Vec<AgentEndpoint> {
    let endpoints = pods.iter().map(|pod| AgentEndpoint {
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
    endpoints.collect()
}

pub(crate) fn address_of(
    session: &MirrordClusterSession,
    endpoint: u32,
) -> Result<SocketAddr, String> {
    let pods = session.status.as_ref().map(|status| status.pods.as_slice());
    let pod = pods
        .unwrap_or_default()
        .iter()
        .find(|pod| pod.channel == endpoint)
        .ok_or_else(|| format!("the session has no pod {endpoint}"))?;
    let address = pod.address.as_deref();
    let not_yet = || format!("the agent in pod {} is not ready", pod.name);
    address
        .and_then(|address| address.parse().ok())
        .ok_or_else(not_yet)
}

/// Relays a client's channel to an agent, unless or until its traffic is stopped.
pub(crate) async fn relay_to_agent(
    metrics: &Metrics,
    stopped: &StoppedAgents,
    agent: &SessionAgent,
    address: SocketAddr,
    channel: Channel,
) {
    if stopped.contains(agent) {
        return channel.refuse(UNCONFIRMED);
    }
    let stream = match connect_to_agent(address).await {
        Ok(stream) => stream,
        Err(error) => {
            return channel.refuse(&format!("the agent at {address} is unreachable: {error}"));
        }
    };
    tokio::select! {
        // The client and the agent handle the end of the connection.
        relayed = relay_bytes(metrics, channel, stream) => drop(relayed),
        // Both connections are closed. The client's next channel is refused.
        () = stopped.until_stopped(agent) => {}
    }
}

async fn connect_to_agent(address: SocketAddr) -> io::Result<TcpStream> {
    let began = Instant::now();
    loop {
        let attempt = timeout(ATTEMPT_TIMEOUT, TcpStream::connect(address)).await;
        match attempt.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(stream) => {
                link::set_tcp_options(&stream)?;
                return Ok(stream);
            }
            Err(error) if began.elapsed() > AGENT_CONNECT_TIMEOUT => return Err(error),
            Err(_) => sleep(RETRY_DELAY).await,
        }
    }
}

/// Relays bytes until both ends have closed, or one is lost. After an error, the client's channel is returned.
pub(crate) async fn relay_bytes(
    metrics: &Metrics,
    mut client: Channel,
    agent: impl AsyncRead + AsyncWrite + Unpin,
) -> Result<(), (Channel, io::Error)> {
    let counter = |direction| {
        let counters = &metrics.relayed_bytes;
        let counter = counters.get_or_create(&DirectionLabels { direction });
        // Cloned, because the guard would lock the family as long as the connection lasts.
        let counter = counter.clone();
        move |bytes: &[u8]| {
            counter.inc_by(bytes.len() as u64);
        }
    };
    // Counted as they pass: a session may last for days, and its end may be abrupt.
    let agent = InspectWriter::new(agent, counter("to_agent"));
    let mut agent = InspectReader::new(agent, counter("to_client"));
    match copy_bidirectional_with_sizes(&mut client, &mut agent, BUFFER_BYTES, BUFFER_BYTES).await {
        Ok(_) => Ok(()),
        Err(error) => Err((client, error)),
    }
}
