//! Tests with scripted agents behind real links.

use std::collections::BTreeMap;
use std::io;

use link::http2::{Windows, serve};
use link::{Accepted, Dial, Link, LinkServer, ServerSettings, Settings, SharedToken, Token};
use parking_lot::Mutex;
use protocol::control::VERSION;
use protocol::rpc::control_server::{Control, ControlServer};
use protocol::rpc::{HelloRequest, HelloResponse, PingRequest, PingResponse};
use tokio::io::DuplexStream;
use tokio::sync::{mpsc, watch};
use tonic::{Request, Response, Status};

use super::*;
use crate::error::Error;
use crate::event::Event;

/// An agent that only returns its name in the handshake.
#[derive(Clone)]
struct NamedAgent {
    name: String,
    was_connected: Arc<watch::Sender<bool>>,
}

#[tonic::async_trait]
impl Control for NamedAgent {
    async fn hello(&self, _: Request<HelloRequest>) -> Result<Response<HelloResponse>, Status> {
        self.was_connected.send_replace(true);
        Ok(Response::new(HelloResponse {
            version: Some(VERSION),
            agent: self.name.clone(),
            ..HelloResponse::default()
        }))
    }

    async fn ping(&self, _: Request<PingRequest>) -> Result<Response<PingResponse>, Status> {
        Ok(Response::new(PingResponse {
            target_alive: true,
            ..PingResponse::default()
        }))
    }
}

/// An endpoint whose agent a test can end, and whose connections a test can make fail.
#[derive(Debug, Clone)]
struct Stub {
    name: String,
    failure: Arc<watch::Sender<Option<&'static str>>>,
    kills: Arc<watch::Sender<u32>>,
    was_connected: Arc<watch::Sender<bool>>,
    /// It is not connected before this other agent.
    connects_after: Option<Arc<watch::Sender<bool>>>,
}

impl Stub {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            failure: Arc::new(watch::Sender::new(None)),
            kills: Arc::new(watch::Sender::new(0)),
            was_connected: Arc::new(watch::Sender::new(false)),
            connects_after: None,
        }
    }

    fn connects_after(name: &str, other: &Stub) -> Self {
        Self {
            connects_after: Some(Arc::clone(&other.was_connected)),
            ..Self::new(name)
        }
    }

    fn failing(name: &str, reason: &'static str) -> Self {
        let stub = Self::new(name);
        stub.failure.send_replace(Some(reason));
        stub
    }

    fn added(&self, preference: Preference) -> AgentChange<Stub> {
        AgentChange::Added(AgentEndpoint {
            id: AgentId::in_pod(&self.name),
            preference,
            connector: self.clone(),
        })
    }

    fn removed(&self) -> AgentChange<Stub> {
        AgentChange::Removed(AgentId::in_pod(&self.name), "it was deleted".to_owned())
    }
}

impl Dial for Stub {
    type Pipe = DuplexStream;

    async fn dial(&self) -> io::Result<DuplexStream> {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let server = LinkServer::new(ServerSettings::default(), SharedToken(Token::default()));
        let agent = NamedAgent {
            name: self.name.clone(),
            was_connected: Arc::clone(&self.was_connected),
        };
        tokio::spawn(async move {
            if let Ok(Accepted::New(link)) = server.accept(far).await {
                let forever = std::future::pending();
                let _ = serve(link, Windows::default(), ControlServer::new(agent), forever).await;
            }
        });
        Ok(near)
    }
}

impl Connector for Stub {
    async fn connect(&self) -> Result<Connected, Box<dyn std::error::Error + Send + Sync>> {
        if let Some(reason) = *self.failure.borrow() {
            return Err(reason.into());
        }
        if let Some(other) = &self.connects_after {
            other
                .subscribe()
                .wait_for(|was_connected| *was_connected)
                .await?;
        }
        let mut kills = self.kills.subscribe();
        Ok(Connected {
            link: Link::connect(self.clone(), Settings::default()).await?,
            token: String::new(),
            ended: Box::pin(async move {
                let _ = kills.changed().await;
                "it was killed".to_owned()
            }),
        })
    }

    async fn retry_ready(&self) {
        let mut failure = self.failure.subscribe();
        let _ = failure.changed().await;
    }
}

struct ScriptedSource {
    changes: mpsc::UnboundedReceiver<Vec<AgentChange<Stub>>>,
    is_on_demand: bool,
}

impl AgentSource for ScriptedSource {
    type Connector = Stub;

    async fn changes(&mut self) -> Vec<AgentChange<Stub>> {
        match self.changes.recv().await {
            Some(changes) => changes,
            None => std::future::pending().await,
        }
    }

    fn is_on_demand(&self) -> bool {
        self.is_on_demand
    }
}

/// The user's side of a session.
struct TestSession {
    changes: mpsc::UnboundedSender<Vec<AgentChange<Stub>>>,
    events: Mutex<mpsc::UnboundedReceiver<Event>>,
    first: FirstAgent,
}

impl TestSession {
    async fn start(changes: Vec<AgentChange<Stub>>) -> Result<Self, Error> {
        Self::start_with(changes, false).await
    }

    async fn start_with(
        changes: Vec<AgentChange<Stub>>,
        is_on_demand: bool,
    ) -> Result<Self, Error> {
        let (changes_sender, source) = mpsc::unbounded_channel();
        changes_sender.send(changes).unwrap();
        let (sender, events) = mpsc::unbounded_channel();
        let sink: EventSink = Arc::new(move |event| sender.send(event.clone()).unwrap());
        let source = ScriptedSource {
            changes: source,
            is_on_demand,
        };
        let first = FirstAgent::connect(source, sink).await?;
        Ok(Self {
            changes: changes_sender,
            events: Mutex::new(events),
            first,
        })
    }

    fn change(&self, changes: Vec<AgentChange<Stub>>) {
        self.changes.send(changes).unwrap();
    }

    async fn next(&self) -> Event {
        std::future::poll_fn(|context| self.events.lock().poll_recv(context))
            .await
            .unwrap()
    }

    #[track_caller]
    fn expect(&self, expected: Event) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move { assert_eq!(self.next().await, expected, "{caller}") }
    }

    async fn connect_all(&self) {
        self.first.agents.connect_all().await;
    }

    /// The pod of the stateful agent.
    fn stateful(&self) -> Option<String> {
        self.first.agents.router.stateful()?.0.pod
    }

    /// Calls the stateful agent, and returns its name.
    async fn call(&self) -> Result<String, Status> {
        let connection = self.first.agents.stateful.clone();
        let mut control = protocol::rpc::control_client::ControlClient::new(connection);
        let hello = control.hello(HelloRequest::default()).await?;
        Ok(hello.into_inner().agent)
    }
}

fn id(name: &str) -> AgentId {
    AgentId::in_pod(name)
}

fn lost(name: &str, reason: &str) -> Event {
    Event::AgentLost {
        agent: id(name),
        reason: reason.to_owned(),
    }
}

fn coverage(pods: usize) -> Event {
    Event::Coverage {
        pods,
        clusters: BTreeMap::new(),
    }
}

const READY: Preference = Preference::Preferred;

#[tokio::test]
async fn another_agent_replaces_the_stateful_agent() {
    let (a, b) = (Stub::new("a"), Stub::new("b"));
    let session = TestSession::start(vec![a.added(READY)]).await.unwrap();
    session.connect_all().await;
    assert_eq!(session.call().await.unwrap(), "a");
    session.change(vec![b.added(READY)]);
    session.expect(Event::AgentJoined(id("b"))).await;
    assert_eq!(session.call().await.unwrap(), "a");
    session.change(vec![a.removed()]);
    session.expect(lost("a", "it was deleted")).await;
    session.expect(Event::SessionRestored(id("b"))).await;
    assert_eq!(session.call().await.unwrap(), "b");
    assert_eq!(session.first.agents.router.all().len(), 1);
}

#[tokio::test]
async fn an_agent_that_ends_is_reconnected() {
    let (a, b) = (Stub::new("a"), Stub::new("b"));
    let session = TestSession::start(vec![a.added(READY), b.added(Preference::Fallback)]);
    let session = session.await.unwrap();
    session.expect(coverage(2)).await;
    b.kills.send_modify(|times| *times += 1);
    let left = Event::AgentLeft {
        agent: id("b"),
        reason: "it was killed".to_owned(),
    };
    session.expect(left).await;
    session.expect(Event::AgentJoined(id("b"))).await;
    assert_eq!(session.stateful().unwrap(), "a");
    a.kills.send_modify(|times| *times += 1);
    session.expect(lost("a", "it was killed")).await;
    session.expect(Event::SessionRestored(id("b"))).await;
    // The stateful agent stays stateful.
    session.expect(Event::AgentJoined(id("a"))).await;
    assert_eq!(session.stateful().unwrap(), "b");
}

#[tokio::test]
async fn a_restarted_container_gets_a_new_agent() {
    let a = Stub::new("a");
    let session = TestSession::start(vec![a.added(READY)]).await.unwrap();
    session.change(vec![a.removed(), a.added(READY)]);
    session.expect(lost("a", "it was deleted")).await;
    loop {
        // There is no agent for a moment, which may or may not be reported.
        match session.next().await {
            Event::NoTargetPods(_) => {}
            event => break assert_eq!(event, Event::SessionRestored(id("a"))),
        }
    }
    assert_eq!(session.call().await.unwrap(), "a");
}

#[tokio::test]
async fn the_error_of_the_best_agent_is_returned() {
    let check = async |changes: Vec<AgentChange<Stub>>, expected: &str| {
        let error = TestSession::start(changes).await.err().unwrap();
        assert_eq!(error.to_string(), expected);
    };
    let a = Stub::failing("a", "no rights");
    let b = Stub::failing("b", "no image");
    let c = Stub::new("c");
    check(vec![a.added(READY), b.added(READY)], "no rights").await;
    let fallback = Preference::Fallback;
    check(vec![a.added(fallback), b.added(READY)], "no image").await;
    // A traffic-only agent is not enough for a session.
    let traffic = c.added(Preference::TrafficOnly);
    check(vec![traffic, a.added(READY)], "no rights").await;
}

#[tokio::test]
async fn a_traffic_only_agent_that_connects_first_does_not_become_stateful() {
    let near = Stub::new("near");
    let default = Stub::connects_after("default", &near);
    let session = TestSession::start(vec![
        near.added(Preference::TrafficOnly),
        default.added(READY),
    ]);
    let session = session.await.unwrap();
    assert_eq!(session.first.hello.agent, "default");
    // No agent was lost, so no `SessionRestored` is emitted.
    session.expect(coverage(2)).await;
}

#[tokio::test]
async fn an_agent_that_fails_does_not_block_the_others() {
    let (a, b) = (Stub::failing("a", "no rights"), Stub::new("b"));
    let session = TestSession::start(vec![a.added(READY), b.added(READY)]);
    let session = session.await.unwrap();
    session.connect_all().await;
    assert_eq!(session.call().await.unwrap(), "b");
    a.failure.send_replace(None);
    session.expect(Event::AgentJoined(id("a"))).await;
    // Agents that are not ready are used when no other one can be connected.
    let (c, d) = (Stub::failing("c", "no rights"), Stub::new("d"));
    let session = TestSession::start(vec![c.added(READY), d.added(Preference::Fallback)]);
    assert_eq!(session.await.unwrap().call().await.unwrap(), "d");
}

#[tokio::test(start_paused = true)]
async fn calls_wait_for_an_agent_until_the_timeout() {
    let (a, b, c) = (Stub::new("a"), Stub::new("b"), Stub::new("c"));
    let session = TestSession::start(vec![a.added(READY)]).await.unwrap();
    session.change(vec![a.removed()]);
    session.expect(lost("a", "it was deleted")).await;
    session.expect(Event::NoTargetPods(30)).await;
    let call = session.call();
    session.change(vec![b.added(READY)]);
    assert_eq!(call.await.unwrap(), "b");
    session.expect(Event::SessionRestored(id("b"))).await;

    session.change(vec![b.removed()]);
    session.expect(lost("b", "it was deleted")).await;
    session.expect(Event::NoTargetPods(30)).await;
    session.call().await.unwrap_err();
    let gone = "none available for 30 s".to_owned();
    session.expect(Event::SessionLost(gone)).await;
    session.change(vec![c.added(READY)]);
    session.expect(Event::SessionRestored(id("c"))).await;
    assert_eq!(session.call().await.unwrap(), "c");
}

#[tokio::test]
async fn other_agents_are_connected_when_they_are_needed() {
    let (a, b, c) = (Stub::new("a"), Stub::new("b"), Stub::new("c"));
    let changes = vec![
        a.added(Preference::Fallback),
        b.added(READY),
        c.added(READY),
    ];
    let session = TestSession::start_with(changes, true).await.unwrap();
    assert_eq!(session.call().await.unwrap(), "b");
    assert_eq!(session.first.agents.router.all().len(), 1);
    // Another agent is connected to replace the first one.
    session.change(vec![b.removed()]);
    session.expect(lost("b", "it was deleted")).await;
    session.expect(Event::SessionRestored(id("c"))).await;
    assert_eq!(session.first.agents.router.all().len(), 1);
    // A lost agent is reconnected, and meanwhile another one does its work.
    c.failure.send_replace(Some("its pod is terminating"));
    c.kills.send_modify(|times| *times += 1);
    session.expect(lost("c", "it was killed")).await;
    session.expect(Event::SessionRestored(id("a"))).await;
    c.failure.send_replace(None);
    session.connect_all().await;
    loop {
        // An attempt may have failed before.
        match session.next().await {
            Event::AgentJoinFailed { .. } | Event::AgentJoined(_) | Event::Coverage { .. } => {}
            event => panic!("{event}"),
        }
        if session.first.agents.router.all().len() == 2 {
            break;
        }
    }
    // From then on, every new agent is connected.
    let d = Stub::new("d");
    session.change(vec![d.added(READY)]);
    while session.next().await != Event::AgentJoined(id("d")) {}
}

#[tokio::test]
async fn a_session_can_be_ended_from_outside() {
    let (a, b) = (Stub::new("a"), Stub::new("b"));
    let session = TestSession::start(vec![a.added(READY), b.added(READY)]);
    let session = session.await.unwrap();
    session.expect(coverage(2)).await;
    let reason = "killed by anna".to_owned();
    session.change(vec![AgentChange::SessionEnded(reason.clone())]);
    session.expect(Event::SessionEnded(reason)).await;
    session.call().await.unwrap_err();
    assert!(session.first.agents.router.all().is_empty());
}
