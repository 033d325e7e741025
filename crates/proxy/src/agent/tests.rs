//! Agents that come and go, as a test says, behind real links.

use std::collections::BTreeMap;
use std::io;
use std::sync::Mutex;

use link::http2::{Windows, serve};
use link::{Accepted, Dial, Link, LinkServer, ServerSettings, Settings, SharedToken, Token};
use protocol::control::VERSION;
use protocol::rpc::control_server::{Control, ControlServer};
use protocol::rpc::{HelloRequest, HelloResponse, PingRequest, PingResponse};
use tokio::io::DuplexStream;
use tokio::sync::{mpsc, watch};
use tonic::{Request, Response, Status};

use super::*;
use crate::error::Error;
use crate::event::Event;

/// An agent that says its name and nothing else.
#[derive(Clone)]
struct Named {
    name: String,
    was_asked: Arc<watch::Sender<bool>>,
}

#[tonic::async_trait]
impl Control for Named {
    async fn hello(&self, _: Request<HelloRequest>) -> Result<Response<HelloResponse>, Status> {
        self.was_asked.send_replace(true);
        Ok(Response::new(HelloResponse {
            version: Some(VERSION),
            agent: self.name.clone(),
            ..HelloResponse::default()
        }))
    }

    async fn ping(&self, _: Request<PingRequest>) -> Result<Response<PingResponse>, Status> {
        Ok(Response::new(PingResponse {
            target_is_there: true,
            ..PingResponse::default()
        }))
    }
}

/// A place whose agent a test can end, and can keep from being reached.
#[derive(Debug, Clone)]
struct Stub {
    name: String,
    trouble: Arc<watch::Sender<Option<&'static str>>>,
    end: Arc<watch::Sender<u32>>,
    was_asked: Arc<watch::Sender<bool>>,
    /// It is not reached before somebody else was asked.
    later_than: Option<Arc<watch::Sender<bool>>>,
}

impl Stub {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            trouble: Arc::new(watch::Sender::new(None)),
            end: Arc::new(watch::Sender::new(0)),
            was_asked: Arc::new(watch::Sender::new(false)),
            later_than: None,
        }
    }

    fn later_than(name: &str, other: &Stub) -> Self {
        Self {
            later_than: Some(Arc::clone(&other.was_asked)),
            ..Self::new(name)
        }
    }

    fn broken(name: &str, why: &'static str) -> Self {
        let stub = Self::new(name);
        stub.trouble.send_replace(Some(why));
        stub
    }

    fn came(&self, preference: Preference) -> Change<Stub> {
        Change::Came(Place {
            id: AgentId::in_pod(&self.name),
            preference,
            reach: self.clone(),
        })
    }

    fn went(&self) -> Change<Stub> {
        Change::Went(AgentId::in_pod(&self.name), "it was deleted".to_owned())
    }
}

impl Dial for Stub {
    type Pipe = DuplexStream;

    async fn dial(&self) -> io::Result<DuplexStream> {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let server = LinkServer::new(ServerSettings::default(), SharedToken(Token::default()));
        let agent = Named {
            name: self.name.clone(),
            was_asked: Arc::clone(&self.was_asked),
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

impl Reach for Stub {
    async fn reach(&self) -> Result<Reached, Box<dyn std::error::Error + Send + Sync>> {
        if let Some(why) = *self.trouble.borrow() {
            return Err(why.into());
        }
        if let Some(other) = &self.later_than {
            other.subscribe().wait_for(|was_asked| *was_asked).await?;
        }
        let mut end = self.end.subscribe();
        Ok(Reached {
            link: Link::connect(self.clone(), Settings::default()).await?,
            token: String::new(),
            ended: Box::pin(async move {
                let _ = end.changed().await;
                "it was killed".to_owned()
            }),
        })
    }

    async fn another_try(&self) {
        let mut trouble = self.trouble.subscribe();
        let _ = trouble.changed().await;
    }
}

struct Told {
    changes: mpsc::UnboundedReceiver<Vec<Change<Stub>>>,
    is_on_demand: bool,
}

impl Source for Told {
    type Reach = Stub;

    async fn changes(&mut self) -> Vec<Change<Stub>> {
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
struct World {
    tell_source: mpsc::UnboundedSender<Vec<Change<Stub>>>,
    events: Mutex<mpsc::UnboundedReceiver<Event>>,
    first: FirstAgent,
}

impl World {
    async fn begin(changes: Vec<Change<Stub>>) -> Result<Self, Error> {
        Self::begin_with(changes, false).await
    }

    async fn begin_with(changes: Vec<Change<Stub>>, is_on_demand: bool) -> Result<Self, Error> {
        let (tell_source, source) = mpsc::unbounded_channel();
        tell_source.send(changes).unwrap();
        let (tell, events) = mpsc::unbounded_channel();
        let tell: Tell = Arc::new(move |event| tell.send(event.clone()).unwrap());
        let source = Told {
            changes: source,
            is_on_demand,
        };
        let first = FirstAgent::wait(source, tell).await?;
        Ok(Self {
            tell_source,
            events: Mutex::new(events),
            first,
        })
    }

    fn change(&self, changes: Vec<Change<Stub>>) {
        self.tell_source.send(changes).unwrap();
    }

    async fn next(&self) -> Event {
        std::future::poll_fn(|context| self.events.lock().unwrap().poll_recv(context))
            .await
            .unwrap()
    }

    #[track_caller]
    fn expect(&self, expected: Event) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move { assert_eq!(self.next().await, expected, "{caller}") }
    }

    async fn settled(&self) {
        self.first.agents.all().await;
    }

    /// Who is asked alone.
    fn leader(&self) -> Option<String> {
        self.first.agents.router.first()?.0.pod
    }

    /// Asks the one that is asked alone, and waits as long as calls do.
    async fn ask(&self) -> Result<String, Status> {
        let connection = self.first.agents.connection.clone();
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

fn covers(pods: usize) -> Event {
    Event::Covers {
        pods,
        clusters: BTreeMap::new(),
    }
}

const READY: Preference = Preference::Preferred;

#[tokio::test]
async fn another_agent_takes_the_place_of_the_first() {
    let (a, b) = (Stub::new("a"), Stub::new("b"));
    let world = World::begin(vec![a.came(READY)]).await.unwrap();
    world.settled().await;
    assert_eq!(world.ask().await.unwrap(), "a");
    world.change(vec![b.came(READY)]);
    world.expect(Event::Joined(id("b"))).await;
    assert_eq!(world.ask().await.unwrap(), "a");
    world.change(vec![a.went()]);
    world.expect(lost("a", "it was deleted")).await;
    world.expect(Event::SessionRestored(id("b"))).await;
    assert_eq!(world.ask().await.unwrap(), "b");
    assert_eq!(world.first.agents.router.all().len(), 1);
}

#[tokio::test]
async fn an_agent_that_ends_is_reached_again() {
    let (a, b) = (Stub::new("a"), Stub::new("b"));
    let world = World::begin(vec![a.came(READY), b.came(Preference::Possible)]);
    let world = world.await.unwrap();
    world.expect(covers(2)).await;
    b.end.send_modify(|times| *times += 1);
    let left = Event::Left {
        agent: id("b"),
        reason: "it was killed".to_owned(),
    };
    world.expect(left).await;
    world.expect(Event::Joined(id("b"))).await;
    assert_eq!(world.leader().unwrap(), "a");
    a.end.send_modify(|times| *times += 1);
    world.expect(lost("a", "it was killed")).await;
    world.expect(Event::SessionRestored(id("b"))).await;
    // Whoever has become the first stays it.
    world.expect(Event::Joined(id("a"))).await;
    assert_eq!(world.leader().unwrap(), "b");
}

#[tokio::test]
async fn a_container_that_is_restarted_has_another_agent() {
    let a = Stub::new("a");
    let world = World::begin(vec![a.came(READY)]).await.unwrap();
    world.change(vec![a.went(), a.came(READY)]);
    world.expect(lost("a", "it was deleted")).await;
    loop {
        // Nobody is there for a moment, and that is said or not, as it happens.
        match world.next().await {
            Event::NobodyThere(_) => {}
            event => break assert_eq!(event, Event::SessionRestored(id("a"))),
        }
    }
    assert_eq!(world.ask().await.unwrap(), "a");
}

#[tokio::test]
async fn the_error_is_that_of_the_best() {
    let check = async |changes: Vec<Change<Stub>>, expected: &str| {
        let error = World::begin(changes).await.err().unwrap();
        assert_eq!(error.to_string(), expected);
    };
    let a = Stub::broken("a", "no rights");
    let b = Stub::broken("b", "no image");
    let c = Stub::new("c");
    check(vec![a.came(READY), b.came(READY)], "no rights").await;
    let possible = Preference::Possible;
    check(vec![a.came(possible), b.came(READY)], "no image").await;
    // Traffic alone is no session.
    let traffic = c.came(Preference::TrafficOnly);
    check(vec![traffic, a.came(READY)], "no rights").await;
}

#[tokio::test]
async fn traffic_that_is_there_sooner_is_not_what_is_stood_in_for() {
    let near = Stub::new("near");
    let default = Stub::later_than("default", &near);
    let world = World::begin(vec![
        near.came(Preference::TrafficOnly),
        default.came(READY),
    ]);
    let world = world.await.unwrap();
    assert_eq!(world.first.hello.agent, "default");
    // Nothing was lost, so nothing is restored.
    world.expect(covers(2)).await;
}

#[tokio::test]
async fn one_that_cannot_be_had_does_not_keep_the_others() {
    let (a, b) = (Stub::broken("a", "no rights"), Stub::new("b"));
    let world = World::begin(vec![a.came(READY), b.came(READY)]);
    let world = world.await.unwrap();
    world.settled().await;
    assert_eq!(world.ask().await.unwrap(), "b");
    a.trouble.send_replace(None);
    world.expect(Event::Joined(id("a"))).await;
    // Those that are not ready are asked when nobody else can be.
    let (c, d) = (Stub::broken("c", "no rights"), Stub::new("d"));
    let world = World::begin(vec![c.came(READY), d.came(Preference::Possible)]);
    assert_eq!(world.await.unwrap().ask().await.unwrap(), "d");
}

#[tokio::test(start_paused = true)]
async fn calls_wait_a_while_for_somebody_to_come() {
    let (a, b, c) = (Stub::new("a"), Stub::new("b"), Stub::new("c"));
    let world = World::begin(vec![a.came(READY)]).await.unwrap();
    world.change(vec![a.went()]);
    world.expect(lost("a", "it was deleted")).await;
    world.expect(Event::NobodyThere(30)).await;
    let asking = world.ask();
    world.change(vec![b.came(READY)]);
    assert_eq!(asking.await.unwrap(), "b");
    world.expect(Event::SessionRestored(id("b"))).await;

    world.change(vec![b.went()]);
    world.expect(lost("b", "it was deleted")).await;
    world.expect(Event::NobodyThere(30)).await;
    world.ask().await.unwrap_err();
    let gone = "none has come for 30 s".to_owned();
    world.expect(Event::SessionLost(gone)).await;
    world.change(vec![c.came(READY)]);
    world.expect(Event::SessionRestored(id("c"))).await;
    assert_eq!(world.ask().await.unwrap(), "c");
}

#[tokio::test]
async fn others_are_reached_when_they_are_wanted() {
    let (a, b, c) = (Stub::new("a"), Stub::new("b"), Stub::new("c"));
    let changes = vec![a.came(Preference::Possible), b.came(READY), c.came(READY)];
    let world = World::begin_with(changes, true).await.unwrap();
    assert_eq!(world.ask().await.unwrap(), "b");
    assert_eq!(world.first.agents.router.all().len(), 1);
    // Another one is reached in the place of the first.
    world.change(vec![b.went()]);
    world.expect(lost("b", "it was deleted")).await;
    world.expect(Event::SessionRestored(id("c"))).await;
    assert_eq!(world.first.agents.router.all().len(), 1);
    // One that is lost is reached again, and meanwhile another one does its work.
    c.trouble.send_replace(Some("its pod is about to go"));
    c.end.send_modify(|times| *times += 1);
    world.expect(lost("c", "it was killed")).await;
    world.expect(Event::SessionRestored(id("a"))).await;
    c.trouble.send_replace(None);
    world.settled().await;
    loop {
        // It may have been tried in vain before.
        match world.next().await {
            Event::NotJoined { .. } | Event::Joined(_) | Event::Covers { .. } => {}
            event => panic!("{event}"),
        }
        if world.first.agents.router.all().len() == 2 {
            break;
        }
    }
    // From then on, whoever comes joins.
    let d = Stub::new("d");
    world.change(vec![d.came(READY)]);
    while world.next().await != Event::Joined(id("d")) {}
}

#[tokio::test]
async fn a_session_that_somebody_ends_is_over() {
    let (a, b) = (Stub::new("a"), Stub::new("b"));
    let world = World::begin(vec![a.came(READY), b.came(READY)]);
    let world = world.await.unwrap();
    world.expect(covers(2)).await;
    let reason = "killed by anna".to_owned();
    world.change(vec![Change::Over(reason.clone())]);
    world.expect(Event::SessionOver(reason)).await;
    world.ask().await.unwrap_err();
    assert!(world.first.agents.router.all().is_empty());
}
