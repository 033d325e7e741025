//! Agents in two clusters, behind real links that a test can cut: one with what must have one answer, one with its traffic
//! alone.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use config::{Format, Layers};
use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming as Body;
use link::http2::{Windows, serve};
use link::{Dial, Link, LinkServer, ServerSettings, Settings, SharedToken, Token};
use protocol::control::VERSION;
use protocol::rpc::control_server::{Control, ControlServer};
use protocol::rpc::{HelloRequest, HelloResponse, PingRequest, PingResponse};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, copy_bidirectional};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tonic::{Request as Call, Response as Answer, Status};
use tower_service::Service;

use super::agent::{Arriving, FakeAgent};
use super::{Incoming, World, accept, alice, arrived, bytes, listener};
use crate::agent::{Agent, AgentId, Change, FirstAgent, Place, Preference, Reach, Reached, Source};
use crate::event::{Event, Tell};

/// A session that is given up as soon as it is cut. What is looked at then takes as long as it takes.
const SHORT: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(600);

/// An agent in a cluster, and the network between us.
#[derive(Clone)]
struct Cluster {
    name: &'static str,
    agent: FakeAgent,
    server: LinkServer<SharedToken>,
    window: Duration,
    is_cut: Arc<watch::Sender<bool>>,
}

impl Cluster {
    fn new(name: &'static str, window: Duration) -> Self {
        Self {
            name,
            agent: FakeAgent::default(),
            server: LinkServer::new(ServerSettings::default(), SharedToken(Token::default())),
            window,
            is_cut: Arc::new(watch::Sender::new(false)),
        }
    }

    fn id(&self) -> AgentId {
        AgentId::in_pod("web-1").of_cluster(self.name)
    }

    fn came(&self, preference: Preference) -> Change<Self> {
        Change::Came(Place {
            id: self.id(),
            preference,
            reach: self.clone(),
        })
    }

    fn cut(&self) {
        self.is_cut.send_replace(true);
    }

    fn heal(&self) {
        self.is_cut.send_replace(false);
    }
}

impl Dial for Cluster {
    type Pipe = DuplexStream;

    async fn dial(&self) -> io::Result<DuplexStream> {
        let mut is_cut = self.is_cut.subscribe();
        if *is_cut.borrow() {
            return Err(io::Error::from(io::ErrorKind::NetworkUnreachable));
        }
        let (near, mut near_wire) = tokio::io::duplex(64 * 1024);
        let (far, mut far_wire) = tokio::io::duplex(64 * 1024);
        tokio::spawn(async move {
            tokio::select! {
                _ = copy_bidirectional(&mut near_wire, &mut far_wire) => {}
                _ = is_cut.wait_for(|is_cut| *is_cut) => {}
            }
        });
        let this = self.clone();
        tokio::spawn(async move {
            if let Ok(link::Accepted::New(link)) = this.server.accept(far).await {
                let forever = std::future::pending();
                let _ = serve(link, Windows::default(), Served(this.agent), forever).await;
            }
        });
        Ok(near)
    }
}

impl Reach for Cluster {
    async fn reach(&self) -> Result<Reached, Box<dyn std::error::Error + Send + Sync>> {
        let mut settings = Settings::default();
        settings.redial.resume_window = self.window;
        Ok(Reached {
            link: Link::connect(self.clone(), settings).await?,
            token: String::new(),
            ended: Box::pin(std::future::pending()),
        })
    }

    async fn another_try(&self) {
        let mut is_cut = self.is_cut.subscribe();
        let _ = is_cut.wait_for(|is_cut| !is_cut).await;
    }
}

/// The agents of both clusters, which nobody adds to.
struct Both(Vec<Change<Cluster>>);

impl Source for Both {
    type Reach = Cluster;

    async fn changes(&mut self) -> Vec<Change<Cluster>> {
        if self.0.is_empty() {
            return std::future::pending().await;
        }
        std::mem::take(&mut self.0)
    }
}

/// An agent that is greeted before it does what a test says.
#[derive(Clone)]
struct Served(FakeAgent);

#[tonic::async_trait]
impl Control for Served {
    async fn hello(&self, _: Call<HelloRequest>) -> Result<Answer<HelloResponse>, Status> {
        Ok(Answer::new(HelloResponse {
            version: Some(VERSION),
            ..HelloResponse::default()
        }))
    }

    async fn ping(&self, _: Call<PingRequest>) -> Result<Answer<PingResponse>, Status> {
        Ok(Answer::new(PingResponse {
            target_is_there: true,
            ..PingResponse::default()
        }))
    }
}

impl Service<Request<Body>> for Served {
    type Response = Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if request.uri().path().contains(".Control/") {
            return Box::pin(ControlServer::new(self.clone()).call(request));
        }
        self.0.call(request)
    }
}

/// A session in both clusters.
struct TwoClusters {
    east: Cluster,
    west: Cluster,
    world: World,
    events: mpsc::UnboundedReceiver<Event>,
    /// Keeps the agents.
    _first: FirstAgent,
}

impl TwoClusters {
    async fn begin(west: Cluster) -> Self {
        let east = Cluster::new("east", LONG);
        let (tell, events) = mpsc::unbounded_channel();
        let tell: Tell = Arc::new(move |event| {
            let _ = tell.send(event.clone());
        });
        let both = Both(vec![
            east.came(Preference::Preferred),
            west.came(Preference::TrafficOnly),
        ]);
        let first = FirstAgent::wait(both, Arc::clone(&tell)).await.unwrap();
        let layers = Layers::new().file(
            "test",
            "feature: {network: {incoming: steal}}",
            Format::Yaml,
        );
        let settings = layers.resolve().unwrap().settings.feature.network.incoming;
        let agents = first.agents.clone();
        let agent = Agent::new(agents.clone(), tell);
        let world = World {
            agent: east.agent.clone(),
            incoming: Incoming::new(agent, &settings, alice()).unwrap(),
            agents,
        };
        Self {
            east,
            west,
            world,
            events,
            _first: first,
        }
    }

    /// Waits until the user is told so.
    async fn is_told(&mut self, wanted: impl Fn(&Event) -> bool) {
        loop {
            let event = self.events.recv().await.unwrap();
            if wanted(&event) {
                return;
            }
        }
    }
}

/// A request that the application has got, and has begun to answer.
struct Stolen {
    client: Arriving,
    application: TcpStream,
}

impl Stolen {
    async fn begin(cluster: &Cluster, listener: &tokio::net::TcpListener) -> Self {
        let client = cluster.agent.arrive(&arrived()).await;
        let application = accept(listener).await;
        let mut request = Self {
            client,
            application,
        };
        assert_eq!(bytes(&mut request.client.from_application, 1).await, [1]);
        request.goes_on().await;
        request
    }

    /// Something is said in both directions.
    async fn goes_on(&mut self) {
        self.ask().await;
        let mut heard = [0; 8];
        self.application.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"question");
        self.application.write_all(b"answer").await.unwrap();
        let answer = bytes(&mut self.client.from_application, 6).await;
        assert_eq!(answer, b"answer");
    }

    async fn ask(&mut self) {
        let question = Bytes::from_static(b"question");
        self.client
            .to_application
            .send_data(question)
            .await
            .unwrap();
    }
}

/// Nobody else's request has anything to do with it, and the cluster takes part again when it is back.
#[tokio::test]
async fn a_cluster_that_is_lost_in_the_middle_of_a_request_resets_that_one_only() {
    let mut session = TwoClusters::begin(Cluster::new("west", SHORT)).await;
    let (listener, address) = listener().await;
    session.world.listen(address, false).await.unwrap();
    let mut in_east = Stolen::begin(&session.east, &listener).await;
    let mut in_west = Stolen::begin(&session.west, &listener).await;

    session.west.cut();
    // Both ends of the request that is lost: the application's, and the agent's, which resets the client's.
    let error = in_west.application.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    let at_agent = in_west.client.from_application.frame().await;
    assert!(at_agent.unwrap().is_err(), "the client would wait for ever");
    let west = session.west.id();
    session
        .is_told(|event| matches!(event, Event::Left { agent, .. } if *agent == west))
        .await;
    in_east.goes_on().await;
    Stolen::begin(&session.east, &listener).await;

    session.west.heal();
    session
        .is_told(|event| *event == Event::Joined(west.clone()))
        .await;
    Stolen::begin(&session.west, &listener).await;
    in_east.goes_on().await;
}

/// What was under way goes on where it was, with what was said meanwhile.
#[tokio::test]
async fn a_cluster_that_is_back_within_the_window_loses_nothing_of_a_request() {
    let mut session = TwoClusters::begin(Cluster::new("west", LONG)).await;
    let (listener, address) = listener().await;
    session.world.listen(address, false).await.unwrap();
    // Both have answered, and the user gets one answer.
    let place = "port 8080 of 2 pods in the clusters east, west: ";
    session
        .is_told(|event| event.to_string().starts_with(place))
        .await;
    let mut in_east = Stolen::begin(&session.east, &listener).await;
    let mut in_west = Stolen::begin(&session.west, &listener).await;

    session.west.cut();
    in_west.application.write_all(b"answer").await.unwrap();
    in_west.ask().await;
    in_east.goes_on().await;
    session.west.heal();
    let answer = bytes(&mut in_west.client.from_application, 6).await;
    assert_eq!(answer, b"answer");
    let mut heard = [0; 8];
    in_west.application.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"question");
    in_west.goes_on().await;
    session.west.agent.subscribed(1).await;
}
