//! One cluster's part of a client's connection. It is made again and again as long as the client is there.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use api::connect::{ConnectParameters, Place, Places};
use api::multicluster::{CHILD_HEADER, child_name};
use api::{GROUP_VERSION, MirrordMultiClusterSession, SUBPROTOCOL};
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
        let (state, known) = watch::channel(LegState {
            error: Some("it is being connected".to_owned()),
            ..LegState::default()
        });
        let shared = Arc::clone(shared);
        let task = if is_here {
            tokio::spawn(follow_here(shared, child.clone(), state))
        } else {
            let question = Question {
                path: path(parent),
                cluster: cluster.to_owned(),
                child: child.clone(),
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
}

impl Question {
    async fn keep(&self, shared: &Shared, state: &watch::Sender<LegState>) {
        let Some(envoy) = &shared.envoy else {
            return;
        };
        let mut pause = FIRST_PAUSE;
        loop {
            let attempt = async {
                let client = envoy.client_of(&self.cluster).map_err(io::Error::other)?;
                self.connect(client).await
            };
            let connected = timeout(PATIENCE, attempt).await;
            let error = match connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                Ok(socket) => {
                    let began = Instant::now();
                    let why = self.use_connection(socket, envoy, state).await;
                    if began.elapsed() > LONGEST_PAUSE {
                        pause = FIRST_PAUSE;
                    }
                    why
                }
                Err(error) => error.to_string(),
            };
            tracing::debug!(
                session = self.child,
                cluster = self.cluster,
                error,
                "a member is not connected"
            );
            state.send_modify(|state| {
                state.channels = None;
                state.error = Some(error);
            });
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
    ) -> String
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
                Ok(()) => "the connection has ended".to_owned(),
                Err(error) => format!("the connection is lost: {error}"),
            },
            () = listen(events, state) => "the connection has ended".to_owned(),
            // A network that is cut says nothing.
            why = envoy.unreachable(&self.cluster) => why,
        }
    }

    async fn connect(
        &self,
        client: Client,
    ) -> io::Result<WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>> {
        let upgrade = Upgrade::to(SUBPROTOCOL);
        let request = upgrade
            .ask(Request::get(&self.path))
            .header(CHILD_HEADER, &self.child)
            .body(kube::client::Body::empty())
            .map_err(io::Error::other)?;
        let answer = client
            .send(request)
            .await
            .map_err(|error| io::Error::other(chain(&error)))?;
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(refused(answer).await);
        }
        if !upgrade.is_accepted(answer.headers()) {
            let text = "another operator, which this one does not understand, answers there";
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let upgraded = hyper::upgrade::on(answer).await.map_err(io::Error::other)?;
        let socket = TokioIo::new(upgraded);
        Ok(WebSocketStream::from_raw_socket(socket, Role::Client, Some(limits())).await)
    }
}

async fn listen(mut events: mpsc::UnboundedReceiver<Event>, state: &watch::Sender<LegState>) {
    while let Some(event) = events.recv().await {
        if let Event::News(news) = event
            && let Ok(places) = serde_json::from_slice::<Places>(&news)
        {
            state.send_modify(|state| state.places = places.places);
        }
    }
}

/// A refusal is a `Status`, as everywhere in Kubernetes.
async fn refused(answer: http::Response<kube::client::Body>) -> io::Error {
    let code = answer.status();
    let body = answer.into_body().collect().await;
    let bytes = body
        .map(http_body_util::Collected::to_bytes)
        .unwrap_or_default();
    let message = serde_json::from_slice::<serde_json::Value>(&bytes)
        .ok()
        .and_then(|status| Some(status.get("message")?.as_str()?.to_owned()));
    io::Error::other(message.unwrap_or_else(|| format!("the API server answers {code}")))
}
