//! A session's connection to the operator that reconnects when it is lost, through any replica that responds.
//!
//! The links of a session run over this connection and outlive it. A link dials again when its channel is lost. While the
//! operator is unreachable, a dial waits a moment and then fails with the reason. A replica that shuts down announces it:
//! the session then connects to another replica before the links leave the old connection (a handover), so that no agent
//! loses its client.

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use api::connect::{AgentEndpoints, SESSION_ENDED};
use api::session::SessionId;
use backoff::Backoff;
use error_chain::error_chain;
use link::Dial;
use link::channels::Channel;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use super::connection::{OperatorConnection, OperatorSession};
use crate::error::{Error, Result};

/// How long the first connection is retried while a replica shuts down or the operator is being replaced.
const FIRST_CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const FIRST_CONNECT_INTERVAL: Duration = Duration::from_millis(300);
const MIN_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(3);
/// A replica that shuts down serves its sessions for some seconds more. The handover must complete in that time.
const MAX_HANDOVER_BACKOFF: Duration = Duration::from_secs(1);
/// The timeout of one attempt. The operator may have to start new agents.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(90);
/// How long a dial waits for a connection to the operator.
const DIAL_TIMEOUT: Duration = Duration::from_secs(3);
/// How long the links may take to leave the old connection after a handover.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait for the operator to confirm the end of the session.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// A session's connection to the operator, which reconnects. It ends when this is dropped.
#[derive(Debug)]
pub struct ReconnectingOperator {
    id: SessionId,
    state: watch::Receiver<ConnectionState>,
    /// The last known endpoints of agents, sent by the reconnector.
    endpoints: watch::Receiver<AgentEndpoints>,
    reconnector: AbortHandle,
}

/// The state of the connection, sent by the reconnector to the dialers.
#[derive(Debug, Clone)]
enum ConnectionState {
    /// Ends when the connection is lost or replaced by another one.
    Connected(Arc<OperatorConnection>),
    /// Ends when the reconnector has a new connection or has given up. Holds the reason.
    Disconnected(String),
    /// The session was ended or refused. Final.
    Ended(String),
}

/// Dials the agent of one endpoint through the current connection.
#[derive(Debug, Clone)]
pub struct ReconnectingDialer {
    state: watch::Receiver<ConnectionState>,
    endpoint: u32,
    last_dial: Arc<Mutex<LastDial>>,
}

/// The connection of the last dial.
#[derive(Debug, Default)]
struct LastDial {
    connection: Weak<OperatorConnection>,
    /// The value of [`AgentEndpoints::handovers`] at the time of the dial.
    handovers: u32,
}

impl ReconnectingOperator {
    /// Connects for the first time. Must be called on a runtime.
    pub async fn start(session: OperatorSession) -> Result<Self> {
        let connection = Arc::new(connect_first(&session).await?);
        let connected = ConnectionState::Connected(Arc::clone(&connection));
        let (state_sender, state) = watch::channel(connected);
        let (endpoints_sender, endpoints) = watch::channel(connection.endpoints.borrow().clone());
        let id = session.id();
        let reconnector = Reconnector {
            session,
            state: state_sender,
            endpoints: endpoints_sender,
        };
        Ok(Self {
            id,
            state,
            endpoints,
            reconnector: tokio::spawn(reconnector.run(connection)).abort_handle(),
        })
    }

    pub fn id(&self) -> SessionId {
        self.id
    }

    /// The endpoints of agents. They keep their last value while there is no connection.
    pub fn endpoints(&self) -> watch::Receiver<AgentEndpoints> {
        self.endpoints.clone()
    }

    pub fn dialer(&self, endpoint: u32) -> ReconnectingDialer {
        ReconnectingDialer {
            state: self.state.clone(),
            endpoint,
            last_dial: Arc::default(),
        }
    }

    /// Completes when the session was ended or can no longer be resumed, with the reason.
    pub async fn ended(&self) -> String {
        let mut state = self.state.clone();
        loop {
            if let ConnectionState::Ended(why) = &*state.borrow_and_update() {
                return why.clone();
            }
            if state.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Notifies the operator of the end of the session, so that it does not wait for the client to resume it. Without a
    /// connection, the operator ends the session after the resume window.
    pub async fn end(&self) {
        let connection = match &*self.state.borrow() {
            ConnectionState::Connected(connection) => Arc::clone(connection),
            ConnectionState::Disconnected(_) | ConnectionState::Ended(_) => return,
        };
        connection.end_session();
        if timeout(END_TIMEOUT, connection.ended()).await.is_err() {
            tracing::debug!("operator did not confirm the end of the session");
        }
    }
}

impl Drop for ReconnectingOperator {
    fn drop(&mut self) {
        self.reconnector.abort();
    }
}

async fn connect_first(session: &OperatorSession) -> Result<OperatorConnection> {
    let started = Instant::now();
    loop {
        match session.connect().await {
            Err(error @ (Error::OperatorDown { .. } | Error::OperatorBusy(_)))
                if started.elapsed() < FIRST_CONNECT_TIMEOUT =>
            {
                tracing::info!(
                    error = error_chain(&error),
                    "operator connection failed, retrying"
                );
                sleep(FIRST_CONNECT_INTERVAL).await;
            }
            result => return result,
        }
    }
}

/// Why a connection must be replaced.
enum ReplaceReason {
    /// It has ended, for this reason.
    Ended(String),
    /// Its replica shuts down soon.
    Draining,
}

/// Replaces the connection whenever it is lost or its replica shuts down.
struct Reconnector {
    session: OperatorSession,
    state: watch::Sender<ConnectionState>,
    endpoints: watch::Sender<AgentEndpoints>,
}

impl Reconnector {
    async fn run(self, mut connection: Arc<OperatorConnection>) {
        loop {
            let why = match self.forward_endpoints(&connection).await {
                ReplaceReason::Ended(why) => why,
                ReplaceReason::Draining => match self.connect_successor(&connection).await {
                    Ok(next) => {
                        tracing::info!("session handed over to another operator replica");
                        self.set_state(ConnectionState::Connected(Arc::clone(&next)));
                        let old = std::mem::replace(&mut connection, next);
                        tokio::spawn(timeout(HANDOVER_TIMEOUT, async move { old.unused().await }));
                        continue;
                    }
                    Err(why) => why,
                },
            };
            tracing::info!(reason = why, "operator disconnected");
            if why == SESSION_ENDED {
                let reason = connection.endpoints.borrow().ended.clone();
                let reason = reason.unwrap_or_else(|| "it was ended in the cluster".to_owned());
                return self.set_state(ConnectionState::Ended(reason));
            }
            let why = if why.is_empty() { "it was lost" } else { &why };
            self.set_state(ConnectionState::Disconnected(format!(
                "the connection to the operator: {why}"
            )));
            connection = match self.reconnect().await {
                Ok(connection) => Arc::new(connection),
                Err(error) => {
                    return self.set_state(ConnectionState::Ended(error_chain(&error)));
                }
            };
            tracing::info!("operator reconnected");
            self.set_state(ConnectionState::Connected(Arc::clone(&connection)));
        }
    }

    /// Forwards updates of the endpoints until the connection must be replaced.
    async fn forward_endpoints(&self, connection: &OperatorConnection) -> ReplaceReason {
        let mut endpoints = connection.endpoints.clone();
        loop {
            tokio::select! {
                changed = endpoints.changed() => match changed {
                    Ok(()) => {
                        let now = endpoints.borrow_and_update().clone();
                        if now.draining {
                            return ReplaceReason::Draining;
                        }
                        // The last message. The operator closes the connection now.
                        if now.ended.is_some() {
                            continue;
                        }
                        self.endpoints.send_if_modified(|before| {
                            let is_new = *before != now;
                            *before = now;
                            is_new
                        });
                    }
                    Err(_) => return ReplaceReason::Ended(connection.ended().await),
                },
                why = connection.ended() => return ReplaceReason::Ended(why),
            }
        }
    }

    /// Connects to another replica while this connection is still used. Fails with the reason if this connection ends first.
    async fn connect_successor(
        &self,
        connection: &OperatorConnection,
    ) -> std::result::Result<Arc<OperatorConnection>, String> {
        let successor = async {
            let mut backoff = Backoff::new(MIN_BACKOFF, MAX_HANDOVER_BACKOFF);
            loop {
                match self.session.connect().await {
                    Ok(successor) => return Arc::new(successor),
                    Err(error) => {
                        tracing::debug!(error = error_chain(&error), "handover failed, retrying");
                    }
                }
                sleep(backoff.next_delay()).await;
            }
        };
        tokio::select! {
            successor = successor => Ok(successor),
            why = connection.ended() => Err(why),
        }
    }

    /// Retries until it succeeds or fails for good.
    async fn reconnect(&self) -> Result<OperatorConnection> {
        let mut backoff = Backoff::new(MIN_BACKOFF, MAX_BACKOFF);
        loop {
            let error = match timeout(CONNECT_TIMEOUT, self.session.connect()).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(error)) => error,
                Err(_) => Error::OperatorBusy("it does not respond".to_owned()),
            };
            if is_final(&error) {
                return Err(error);
            }
            let error = error_chain(&error);
            tracing::debug!(error, "operator connection failed, retrying");
            self.set_state(ConnectionState::Disconnected(error));
            sleep(backoff.next_delay()).await;
        }
    }

    fn set_state(&self, state: ConnectionState) {
        self.state.send_replace(state);
    }
}

/// Other errors are transient: an expired login may be renewed, and an API server that restarts responds with any error.
fn is_final(error: &Error) -> bool {
    matches!(
        error,
        Error::SessionOver(_)
            | Error::OperatorRefused(_)
            | Error::AccessDenied { .. }
            | Error::IncompatibleOperator
    )
}

impl ReconnectingDialer {
    fn open(&self, connection: &Arc<OperatorConnection>) -> Channel {
        *self.last_dial.lock() = LastDial {
            connection: Arc::downgrade(connection),
            handovers: connection
                .endpoints
                .borrow()
                .handovers(self.endpoint)
                .unwrap_or(0),
        };
        connection.open(self.endpoint)
    }

    fn uses(&self, connection: &Arc<OperatorConnection>) -> bool {
        let last_dial = self.last_dial.lock();
        std::ptr::eq(last_dial.connection.as_ptr(), Arc::as_ptr(connection))
    }

    /// Waits until the Primary has replaced its own connection to the endpoint's cluster.
    async fn member_handover(&self, mut endpoints: watch::Receiver<AgentEndpoints>) {
        let is_handed_over = |endpoints: &AgentEndpoints| {
            let now = endpoints.handovers(self.endpoint);
            now.is_some_and(|now| now != self.last_dial.lock().handovers)
        };
        if endpoints.wait_for(is_handed_over).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Dial for ReconnectingDialer {
    type Pipe = Channel;

    async fn handover(&self) {
        let mut state = self.state.clone();
        loop {
            // Only the endpoints are kept, not the connection: it ends when no link uses it any more.
            let endpoints = match &*state.borrow_and_update() {
                ConnectionState::Connected(connection) if !self.uses(connection) => return,
                ConnectionState::Connected(connection) => Some(connection.endpoints.clone()),
                ConnectionState::Disconnected(_) | ConnectionState::Ended(_) => None,
            };
            let member_handover = async {
                match endpoints {
                    Some(endpoints) => self.member_handover(endpoints).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = member_handover => return,
                changed = state.changed() => if changed.is_err() {
                    std::future::pending::<()>().await;
                },
            }
        }
    }

    async fn dial(&self) -> io::Result<Channel> {
        let mut state = self.state.clone();
        let is_settled =
            |state: &ConnectionState| !matches!(state, ConnectionState::Disconnected(_));
        let why = match timeout(DIAL_TIMEOUT, state.wait_for(is_settled)).await {
            Ok(Ok(state)) => match &*state {
                ConnectionState::Connected(connection) => return Ok(self.open(connection)),
                ConnectionState::Ended(why) | ConnectionState::Disconnected(why) => why.clone(),
            },
            Ok(Err(_)) => "the session has ended".to_owned(),
            Err(_) => match &*self.state.borrow() {
                ConnectionState::Disconnected(why) | ConnectionState::Ended(why) => why.clone(),
                ConnectionState::Connected(connection) => return Ok(self.open(connection)),
            },
        };
        Err(io::Error::new(io::ErrorKind::NotConnected, why))
    }
}

#[cfg(test)]
mod tests {
    use api::connect::{AgentEndpoint, ClusterEndpoints};
    use link::channels::{Channels, websocket_config};
    use link::websocket::{Role, WebSocketStream};
    use tokio::io::duplex;

    use super::*;

    fn endpoints(handovers: u32) -> AgentEndpoints {
        AgentEndpoints {
            endpoints: vec![AgentEndpoint {
                number: 7,
                cluster: Some("east".to_owned()),
                ..AgentEndpoint::default()
            }],
            clusters: vec![ClusterEndpoints {
                name: "east".to_owned(),
                handovers,
                ..ClusterEndpoints::default()
            }],
            ..AgentEndpoints::default()
        }
    }

    async fn has_handover(dialer: &ReconnectingDialer) -> bool {
        let handover = timeout(Duration::from_secs(1), dialer.handover()).await;
        handover.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_dialer_reports_handovers_of_its_connection_and_of_its_cluster() {
        let connect = async |sent: AgentEndpoints| {
            let (ours, theirs) = duplex(64 * 1024);
            let ours =
                WebSocketStream::from_raw_socket(ours, Role::Client, Some(websocket_config()))
                    .await;
            let theirs =
                WebSocketStream::from_raw_socket(theirs, Role::Server, Some(websocket_config()))
                    .await;
            let (primary, events, driver) = Channels::over(theirs);
            tokio::spawn(driver);
            primary.send_message(serde_json::to_vec(&sent).unwrap().into());
            let connection = Arc::new(OperatorConnection::over(ours));
            let mut received = connection.endpoints.clone();
            received
                .wait_for(|endpoints| *endpoints == sent)
                .await
                .unwrap();
            (connection, primary, events)
        };
        let (connection, primary, _events) = connect(endpoints(0)).await;
        let (state_sender, state) = watch::channel(ConnectionState::Connected(connection));
        let dialer = ReconnectingDialer {
            state,
            endpoint: 7,
            last_dial: Arc::default(),
        };
        let _pipe = dialer.dial().await.unwrap();
        assert!(!has_handover(&dialer).await);
        // An endpoint that was removed is no handover.
        primary.send_message(
            serde_json::to_vec(&AgentEndpoints::default())
                .unwrap()
                .into(),
        );
        assert!(!has_handover(&dialer).await);
        primary.send_message(serde_json::to_vec(&endpoints(1)).unwrap().into());
        assert!(has_handover(&dialer).await);
        let _pipe = dialer.dial().await.unwrap();
        assert!(!has_handover(&dialer).await);
        // Another replica of the Primary has its own counter.
        let (successor, _primary, _events) = connect(endpoints(1)).await;
        state_sender.send_replace(ConnectionState::Connected(successor));
        assert!(has_handover(&dialer).await);
        let _pipe = dialer.dial().await.unwrap();
        assert!(!has_handover(&dialer).await);
        state_sender.send_replace(ConnectionState::Disconnected("reset".to_owned()));
        assert!(!has_handover(&dialer).await);
    }
}
