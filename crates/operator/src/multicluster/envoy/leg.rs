//! One cluster's part of a client's connection. It is made again and again as long as the client is there.

use std::sync::Arc;
use std::time::Duration;

use api::connect::{ConnectParameters, Place, Places, SESSION_IS_OVER};
use api::multicluster::{CHILD_HEADER, child_name};
use api::{GROUP_VERSION, MirrordMultiClusterSession};
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use hyper_util::rt::TokioIo;
use kube::{Client, ResourceExt as _};
use link::channels::{Channels, Event, limits};
use link::websocket::{Role, Upgrade, WebSocketStream};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::Shared;
use crate::connect::ports::PortBook;
use crate::connect::relay;
use crate::error::chain;

const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The child is ready, so a member answers at once, or not.
const PATIENCE: Duration = Duration::from_secs(15);

/// Ends when it is dropped.
pub(super) struct Leg {
    pub(super) cluster: String,
    /// The name of the child's object.
    pub(super) child: String,
    pub(super) is_here: bool,
    pub(super) state: watch::Receiver<LegState>,
    task: AbortHandle,
}

#[derive(Clone, Debug, Default)]
pub(super) struct LegState {
    /// As the cluster numbers them.
    pub(super) places: Vec<Place>,
    /// Why there is no connection now.
    pub(super) error: Option<String>,
    /// Absent without a connection, and in this cluster, which needs none.
    pub(super) channels: Option<Channels>,
}

impl LegState {
    /// The connection is lost. Agents are still there as far as anybody knows, and links to them resume when the cluster is
    /// back, until the member says that they are gone or nobody can resume any more.
    fn lose(&mut self, why: NotConnected, is_for_good: bool) {
        self.channels = None;
        if why.is_over || is_for_good {
            self.places.clear();
        }
        self.error = Some(why.text);
    }
}

/// Why a member is not connected.
#[derive(Debug)]
struct NotConnected {
    text: String,
    /// The member has no such session, so no agent of it either.
    is_over: bool,
}

impl NotConnected {
    fn for_now(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            is_over: false,
        }
    }
}

impl Drop for Leg {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Leg {
    pub(super) fn begin(
        shared: &Arc<Shared>,
        parent: &MirrordMultiClusterSession,
        cluster: &str,
    ) -> Self {
        let child = child_name(&parent.name_any(), cluster);
        let is_here = parent.spec.primary_cluster == cluster;
        // What is known of agents is what the client knew: nothing is gone because we are new.
        let status = parent.status.as_ref();
        let before = status.and_then(|status| status.cluster_sessions.get(cluster));
        let (state, known) = watch::channel(LegState {
            places: before.map_or_else(Vec::new, |child| relay::places_of(&child.pods)),
            error: Some("it is being connected".to_owned()),
            channels: None,
        });
        let shared = Arc::clone(shared);
        let task = if is_here {
            let ports = PortBook::new(&shared, &child);
            let following = follow_here(shared, child.clone(), state);
            tokio::spawn(async move {
                tokio::join!(following, ports.keep());
            })
        } else {
            let question = Question {
                path: path(parent),
                cluster: cluster.to_owned(),
                child: child.clone(),
                window: Duration::from_secs(parent.spec.resume_window_secs)
                    .max(shared.settings.session.time_to_live),
            };
            tokio::spawn(async move { question.keep(&shared, &state).await })
        };
        Self {
            cluster: cluster.to_owned(),
            child,
            is_here,
            state: known,
            task: task.abort_handle(),
        }
    }
}

/// The child in this cluster is in this replica's own copy.
async fn follow_here(shared: Arc<Shared>, child: String, state: watch::Sender<LegState>) {
    let mut bell = shared.sessions.bell();
    while bell.changed().await.is_ok() {
        let session = shared.sessions.get(&child);
        if session.is_none() && !shared.sessions.is_filled() {
            continue;
        }
        let next = LegState {
            places: session
                .as_deref()
                .map(|session| relay::places(session).places)
                .unwrap_or_default(),
            error: session
                .is_none()
                .then(|| "its part here is not known yet".to_owned()),
            channels: None,
        };
        state.send_if_modified(|state| {
            let is_new = state.places != next.places || state.error != next.error;
            *state = next;
            is_new
        });
    }
}

fn path(parent: &MirrordMultiClusterSession) -> String {
    let parameters = ConnectParameters {
        connect: true,
        label_target: parent.spec.label_target.clone(),
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

/// What the member is asked for.
struct Question {
    path: String,
    cluster: String,
    child: String,
    /// How long an agent waits for the client.
    window: Duration,
}

impl Question {
    async fn keep(&self, shared: &Shared, state: &watch::Sender<LegState>) {
        let Some(envoy) = &shared.envoy else {
            return;
        };
        let mut pause = FIRST_PAUSE;
        let mut lost = Instant::now();
        loop {
            let attempt = async {
                let client = envoy.client_of(&self.cluster);
                self.connect(client.map_err(NotConnected::for_now)?).await
            };
            let why = match timeout(PATIENCE, attempt).await {
                Ok(Ok(socket)) => {
                    let began = Instant::now();
                    let why = self.use_connection(socket, envoy, state).await;
                    lost = Instant::now();
                    if began.elapsed() > LONGEST_PAUSE {
                        pause = FIRST_PAUSE;
                    }
                    why
                }
                Ok(Err(why)) => why,
                Err(_) => {
                    NotConnected::for_now(format!("no answer within {} s", PATIENCE.as_secs()))
                }
            };
            tracing::debug!(
                session = self.child,
                cluster = self.cluster,
                error = why.text,
                "a member is not connected"
            );
            let is_for_good = lost.elapsed() > self.window;
            state.send_modify(|state| state.lose(why, is_for_good));
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Until it ends; then why.
    async fn use_connection<S>(
        &self,
        socket: WebSocketStream<S>,
        envoy: &super::Envoy,
        state: &watch::Sender<LegState>,
    ) -> NotConnected
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        let (channels, events, driver) = Channels::over(socket);
        state.send_modify(|state| {
            state.channels = Some(channels);
            state.error = None;
        });
        tokio::select! {
            ended = driver => match ended {
                Ok(()) => NotConnected::for_now("the connection has ended"),
                Err(error) => NotConnected::for_now(format!("the connection is lost: {error}")),
            },
            ended = listen(events, state) => ended,
            // A network that is cut says nothing.
            why = envoy.unreachable(&self.cluster) => NotConnected::for_now(why),
        }
    }

    async fn connect(
        &self,
        client: Client,
    ) -> Result<WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>, NotConnected> {
        let upgrade = Upgrade::to(link::upgrade::PROTOCOL);
        let request = upgrade
            .ask(Request::get(&self.path))
            .header(CHILD_HEADER, &self.child)
            .body(kube::client::Body::empty())
            .map_err(|error| NotConnected::for_now(error.to_string()))?;
        let answer = client
            .send(request)
            .await
            .map_err(|error| NotConnected::for_now(chain(&error)))?;
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(refused(answer).await);
        }
        if !upgrade.is_accepted(answer.headers()) {
            let text = "another operator, which this one does not understand, answers there";
            return Err(NotConnected::for_now(text));
        }
        let upgraded = hyper::upgrade::on(answer)
            .await
            .map_err(|error| NotConnected::for_now(chain(&error)))?;
        let socket = TokioIo::new(upgraded);
        Ok(WebSocketStream::from_raw_socket(socket, Role::Client, Some(limits())).await)
    }
}

/// Until the member ends the connection; then why.
async fn listen(
    mut events: mpsc::UnboundedReceiver<Event>,
    state: &watch::Sender<LegState>,
) -> NotConnected {
    while let Some(event) = events.recv().await {
        match event {
            Event::News(news) => {
                if let Ok(places) = serde_json::from_slice::<Places>(&news) {
                    state.send_modify(|state| state.places = places.places);
                }
            }
            Event::Closed(text) => {
                let is_over = text == SESSION_IS_OVER;
                return NotConnected { text, is_over };
            }
            Event::Opened { .. } | Event::Farewell => {}
        }
    }
    NotConnected::for_now("the connection has ended")
}

/// A refusal is a `Status`, as everywhere in Kubernetes.
async fn refused(answer: http::Response<kube::client::Body>) -> NotConnected {
    let code = answer.status();
    let body = answer.into_body().collect().await;
    let bytes = body
        .map(http_body_util::Collected::to_bytes)
        .unwrap_or_default();
    let message = serde_json::from_slice::<serde_json::Value>(&bytes)
        .ok()
        .and_then(|status| Some(status.get("message")?.as_str()?.to_owned()));
    NotConnected {
        text: message.unwrap_or_else(|| format!("the API server answers {code}")),
        is_over: code == StatusCode::GONE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_are_forgotten_when_none_of_them_can_come_back() {
        let state = || LegState {
            places: vec![Place::default()],
            ..LegState::default()
        };
        let over = || NotConnected {
            text: SESSION_IS_OVER.to_owned(),
            is_over: true,
        };
        let cases = [
            (NotConnected::for_now("no route"), false, 1),
            (NotConnected::for_now("no route"), true, 0),
            (over(), false, 0),
        ];
        for (why, is_for_good, left) in cases {
            let mut state = state();
            let text = why.text.clone();
            state.lose(why, is_for_good);
            assert_eq!(state.places.len(), left, "{text}");
            assert_eq!(state.error, Some(text));
        }
    }
}
