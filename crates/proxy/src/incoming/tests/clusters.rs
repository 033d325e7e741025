//! Tests with agents in two clusters, behind real links that a test can cut: the stateful agent, and a traffic-only agent.

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
use tonic::{Request as Call, Response as Reply, Status};
use tower_service::Service;

use super::agent::{ClientConnection, FakeAgent};
use super::{Incoming, TestSession, accept, alice, bytes, listener, meta};
use crate::agent::{
    AgentChange, AgentEndpoint, AgentId, AgentSource, Connected, Connector, FirstAgent, Preference,
    SessionContext,
};
use crate::event::{Event, EventSink};

/// A resume window that is over soon after the link is cut.
const SHORT: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(600);

/// An agent in a cluster, and the network to it.
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

    fn added(&self, preference: Preference) -> AgentChange<Self> {
        AgentChange::Added(AgentEndpoint {
            id: self.id(),
            preference,
            connector: self.clone(),
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
                let _ = serve(link, Windows::default(), AgentServer(this.agent), forever).await;
            }
        });
        Ok(near)
    }
}

impl Connector for Cluster {
    async fn connect(&self) -> Result<Connected, Box<dyn std::error::Error + Send + Sync>> {
        let mut settings = Settings::default();
        settings.redial.resume_window = self.window;
        Ok(Connected {
            link: Link::connect(self.clone(), settings).await?,
            token: String::new(),
            ended: Box::pin(std::future::pending()),
        })
    }

    async fn retry_ready(&self) {
        let mut is_cut = self.is_cut.subscribe();
        let _ = is_cut.wait_for(|is_cut| !is_cut).await;
    }
}

/// A source with the agents of both clusters, which never change.
struct BothClusters(Vec<AgentChange<Cluster>>);

impl AgentSource for BothClusters {
    type Connector = Cluster;

    async fn changes(&mut self) -> Vec<AgentChange<Cluster>> {
        if self.0.is_empty() {
            return std::future::pending().await;
        }
        std::mem::take(&mut self.0)
    }
}

/// A scripted agent with the handshake in front of it.
#[derive(Clone)]
struct AgentServer(FakeAgent);

#[tonic::async_trait]
impl Control for AgentServer {
    async fn hello(&self, _: Call<HelloRequest>) -> Result<Reply<HelloResponse>, Status> {
        Ok(Reply::new(HelloResponse {
            version: Some(VERSION),
            ..HelloResponse::default()
        }))
    }

    async fn ping(&self, _: Call<PingRequest>) -> Result<Reply<PingResponse>, Status> {
        Ok(Reply::new(PingResponse {
            target_alive: true,
            ..PingResponse::default()
        }))
    }
}

impl Service<Request<Body>> for AgentServer {
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
    session: TestSession,
    events: mpsc::UnboundedReceiver<Event>,
    /// Keeps the agents connected.
    _first: FirstAgent,
}

impl TwoClusters {
    async fn start(west: Cluster) -> Self {
        let east = Cluster::new("east", LONG);
        let (sender, events) = mpsc::unbounded_channel();
        let sink: EventSink = Arc::new(move |event| {
            let _ = sender.send(event.clone());
        });
        let both = BothClusters(vec![
            east.added(Preference::Preferred),
            west.added(Preference::TrafficOnly),
        ]);
        let first = FirstAgent::connect(both, Arc::clone(&sink)).await.unwrap();
        let layers = Layers::new().file(
            "test",
            "feature: {network: {incoming: steal}}",
            Format::Yaml,
        );
        let settings = layers.resolve().unwrap().settings.feature.network.incoming;
        let agents = first.agents.clone();
        let context = SessionContext::new(agents.clone(), sink);
        let session = TestSession {
            agent: east.agent.clone(),
            incoming: Incoming::new(context, &settings, alice()).unwrap(),
            agents,
        };
        Self {
            east,
            west,
            session,
            events,
            _first: first,
        }
    }

    /// Waits for an event.
    async fn wait_for_event(&mut self, is_expected: impl Fn(&Event) -> bool) {
        loop {
            let event = self.events.recv().await.unwrap();
            if is_expected(&event) {
                return;
            }
        }
    }
}

/// A stolen connection with a request that the application has begun to answer.
struct StolenRequest {
    client: ClientConnection,
    application: TcpStream,
}

impl StolenRequest {
    async fn start(cluster: &Cluster, listener: &tokio::net::TcpListener) -> Self {
        let client = cluster.agent.incoming_connection(&meta()).await;
        let application = accept(listener).await;
        let mut request = Self {
            client,
            application,
        };
        assert_eq!(bytes(&mut request.client.from_application, 1).await, [1]);
        request.exchange().await;
        request
    }

    /// Sends data in both directions.
    async fn exchange(&mut self) {
        self.send_request().await;
        let mut received = [0; 8];
        self.application.read_exact(&mut received).await.unwrap();
        assert_eq!(&received, b"request!");
        self.application.write_all(b"response").await.unwrap();
        let response = bytes(&mut self.client.from_application, 8).await;
        assert_eq!(response, b"response");
    }

    async fn send_request(&mut self) {
        let request = Bytes::from_static(b"request!");
        self.client.to_application.send_data(request).await.unwrap();
    }
}

/// Requests of other clusters are not affected, and the cluster joins again when it is reachable.
#[tokio::test]
async fn the_loss_of_a_cluster_resets_only_its_own_requests() {
    let mut session = TwoClusters::start(Cluster::new("west", SHORT)).await;
    let (listener, address) = listener().await;
    session.session.listen(address, false).await.unwrap();
    let mut in_east = StolenRequest::start(&session.east, &listener).await;
    let mut in_west = StolenRequest::start(&session.west, &listener).await;

    session.west.cut();
    // Both ends of the lost request are reset: the application's, and the agent's, which resets the client's.
    let error = in_west.application.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    let at_agent = in_west.client.from_application.frame().await;
    assert!(at_agent.unwrap().is_err(), "the client would wait forever");
    let west = session.west.id();
    session
        .wait_for_event(|event| matches!(event, Event::AgentLeft { agent, .. } if *agent == west))
        .await;
    in_east.exchange().await;
    StolenRequest::start(&session.east, &listener).await;

    session.west.heal();
    session
        .wait_for_event(|event| *event == Event::AgentJoined(west.clone()))
        .await;
    StolenRequest::start(&session.west, &listener).await;
    in_east.exchange().await;
}

/// The request continues where it was, with the data that was sent meanwhile.
#[tokio::test]
async fn a_request_survives_a_cut_within_the_resume_window() {
    let mut session = TwoClusters::start(Cluster::new("west", LONG)).await;
    let (listener, address) = listener().await;
    session.session.listen(address, false).await.unwrap();
    // Both agents have confirmed the subscription, and the user gets one event.
    let prefix = "port 8080 of 2 pods in the clusters east, west: ";
    session
        .wait_for_event(|event| event.to_string().starts_with(prefix))
        .await;
    let mut in_east = StolenRequest::start(&session.east, &listener).await;
    let mut in_west = StolenRequest::start(&session.west, &listener).await;

    session.west.cut();
    in_west.application.write_all(b"response").await.unwrap();
    in_west.send_request().await;
    in_east.exchange().await;
    session.west.heal();
    let response = bytes(&mut in_west.client.from_application, 8).await;
    assert_eq!(response, b"response");
    let mut received = [0; 8];
    in_west.application.read_exact(&mut received).await.unwrap();
    assert_eq!(&received, b"request!");
    in_west.exchange().await;
    session.west.agent.subscribed(1).await;
}
