//! One cluster's part of a client's connection. It is made again and again as long as the client is there.
//!
//! A replica of the member's operator that is about to end says so: there is then a connection to another one before the
//! client hears that it should open its channels anew, and no agent misses its client.

use std::sync::Arc;
use std::time::Duration;

use api::connect::{ConnectParameters, Place};
use api::multicluster::{CHILD_HEADER, child_name};
use api::{GROUP_VERSION, MirrordMultiClusterSession};
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use hyper_util::rt::TokioIo;
use kube::{Client, ResourceExt as _};
use link::channels::{Channels, limits};
use link::websocket::{Role, Upgrade, WebSocketStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

mod line;

use self::line::{Line, NotConnected, Word};
use crate::Shared;
use crate::connect::ports::PortBook;
use crate::connect::relay;
use crate::error::chain;

const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The child is ready, so a member answers at once, or not.
const PATIENCE: Duration = Duration::from_secs(15);
/// A replica that ends carries its sessions for some seconds more; another one is to be found within them.
const LONGEST_PAUSE_OF_A_MOVE: Duration = Duration::from_secs(1);
/// How long the client may take to leave a connection for the next.
const MOVED_WITHIN: Duration = Duration::from_secs(10);

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
    /// How often these channels have replaced others that still worked.
    pub(super) moves: u32,
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
            ..LegState::default()
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
            ..LegState::default()
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
            let why = match self.attempt(envoy).await {
                Ok(line) => {
                    let began = Instant::now();
                    let why = tokio::select! {
                        why = follow(line, state, || self.attempt(envoy)) => why,
                        // A network that is cut says nothing.
                        why = envoy.unreachable(&self.cluster) => NotConnected::for_now(why),
                    };
                    lost = Instant::now();
                    if began.elapsed() > LONGEST_PAUSE {
                        pause = FIRST_PAUSE;
                    }
                    why
                }
                Err(why) => why,
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

    async fn attempt(&self, envoy: &super::Envoy) -> Result<Line, NotConnected> {
        let client = envoy
            .client_of(&self.cluster)
            .map_err(NotConnected::for_now)?;
        match timeout(PATIENCE, self.connect(client)).await {
            Ok(socket) => socket.map(Line::over),
            Err(_) => {
                let text = format!("no answer within {} s", PATIENCE.as_secs());
                Err(NotConnected::for_now(text))
            }
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

/// Says what the member says, until it ends the connection; then why. A replica that is about to end is left for the one
/// that `connect` finds.
async fn follow<Connecting>(
    mut line: Line,
    state: &watch::Sender<LegState>,
    connect: impl Fn() -> Connecting,
) -> NotConnected
where
    Connecting: Future<Output = Result<Line, NotConnected>>,
{
    state.send_modify(|state| {
        state.channels = Some(line.channels.clone());
        state.error = None;
    });
    loop {
        match line.next().await {
            Word::End(why) => return why,
            Word::Places(places) if places.leaving => {
                let next = tokio::select! {
                    next = find_another(&connect) => next,
                    why = line.end() => return why,
                };
                state.send_modify(|state| {
                    state.channels = Some(next.channels.clone());
                    state.moves += 1;
                });
                let left = std::mem::replace(&mut line, next);
                tokio::spawn(timeout(MOVED_WITHIN, left.leave()));
            }
            Word::Places(places) => state.send_modify(|state| state.places = places.places),
        }
    }
}

async fn find_another<Connecting>(connect: &impl Fn() -> Connecting) -> Line
where
    Connecting: Future<Output = Result<Line, NotConnected>>,
{
    let mut pause = FIRST_PAUSE;
    loop {
        match connect().await {
            Ok(line) => return line,
            Err(why) => tracing::debug!(error = why.text, "no other replica is there yet"),
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE_OF_A_MOVE);
    }
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
    use std::future::ready;
    use std::sync::Mutex;

    use api::connect::{Places, SESSION_IS_OVER};
    use link::channels::Event;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio::sync::mpsc;

    use super::*;

    /// A connection to a replica of a member, and that replica's end of it.
    async fn replica() -> (Line, Channels, mpsc::UnboundedReceiver<Event>) {
        let (ours, theirs) = duplex(64 * 1024);
        let ours = WebSocketStream::from_raw_socket(ours, Role::Client, Some(limits())).await;
        let theirs = WebSocketStream::from_raw_socket(theirs, Role::Server, Some(limits())).await;
        let (channels, events, driver) = Channels::over(theirs);
        tokio::spawn(driver);
        (Line::over(ours), channels, events)
    }

    fn tell(replica: &Channels, places: &Places) {
        replica.say(serde_json::to_vec(places).unwrap().into());
    }

    async fn opened(events: &mut mpsc::UnboundedReceiver<Event>) -> link::channels::Channel {
        match events.recv().await {
            Some(Event::Opened { place: 7, channel }) => channel,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_leaves_is_used_until_the_client_has_left_it() {
        let (line, old, mut old_events) = replica().await;
        let (next, new, mut new_events) = replica().await;
        let answers = Mutex::new(vec![Ok(next), Err(NotConnected::for_now("none is ready"))]);
        let (state, mut known) = watch::channel(LegState::default());
        let followed = tokio::spawn(async move {
            let connect = || ready(answers.lock().unwrap().pop().unwrap());
            follow(line, &state, connect).await.text
        });
        let before = known.wait_for(|state| state.channels.is_some()).await;
        let before = before.unwrap().channels.clone().unwrap();
        let mut used = before.open(7);
        let mut at_the_agent = opened(&mut old_events).await;
        tell(
            &old,
            &Places {
                leaving: true,
                ..Places::default()
            },
        );
        let after = known.wait_for(|state| state.moves == 1).await;
        let after = after.unwrap().channels.clone().unwrap();
        let _moved = after.open(7);
        let _agent = opened(&mut new_events).await;
        // What is under way over the old one still arrives.
        used.write_all(b"last").await.unwrap();
        let mut bytes = [0; 4];
        at_the_agent.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"last");
        drop((used, before));
        while let Some(event) = old_events.recv().await {
            assert!(matches!(event, Event::Closed(_)), "{event:?}");
        }
        // And the new one is listened to.
        tell(
            &new,
            &Places {
                places: vec![Place::default()],
                ..Places::default()
            },
        );
        known
            .wait_for(|state| state.places.len() == 1)
            .await
            .unwrap();
        new.end(SESSION_IS_OVER);
        assert_eq!(followed.await.unwrap(), SESSION_IS_OVER);
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_ends_before_another_is_there_is_lost() {
        let (line, old, _events) = replica().await;
        let (state, known) = watch::channel(LegState::default());
        let followed = tokio::spawn(async move {
            let connect = || ready(Err(NotConnected::for_now("none is ready")));
            follow(line, &state, connect).await.text
        });
        tell(
            &old,
            &Places {
                leaving: true,
                ..Places::default()
            },
        );
        sleep(Duration::from_secs(3)).await;
        old.end("this replica ends; come back");
        assert_eq!(followed.await.unwrap(), "this replica ends; come back");
        assert_eq!(known.borrow().moves, 0);
    }

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
