//! A hub and an agent, with certificates of one authority and a network between them.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use http_body_util::combinators::BoxBody;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use link::tls::TlsAcceptor;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::certificates::{Authority, Life};
use super::network::Relay;
use super::service::{TestService, service_of};
use crate::{
    Accepted, Acceptor, AcceptorSettings, EndReason, Ended, Refused, Session, SessionStatus,
    Settings, Status, accept_tls, run,
};

pub(super) const CLUSTER: &str = "prod-eu";

/// Both ends. What a test does not keep is stopped when this is dropped.
pub(super) struct Tunnel {
    pub(super) acceptor: Acceptor,
    pub(super) relay: Relay,
    pub(super) agent: Agent,
    sessions: mpsc::UnboundedReceiver<Session>,
}

pub(super) struct Agent {
    pub(super) status: watch::Receiver<Status>,
    pub(super) shutdown: CancellationToken,
    pub(super) service: TestService,
    pub(super) ended: tokio::task::JoinHandle<Ended>,
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// What a test may change about both ends.
pub(super) struct Setup {
    pub(super) acceptor: AcceptorSettings,
    pub(super) settings: Settings,
    /// The cluster of the agent's certificate.
    pub(super) peer: &'static str,
}

impl Default for Setup {
    fn default() -> Self {
        let mut settings = Settings::new("", CLUSTER);
        // A test does not wait for a refused agent to try again.
        settings.reconnect.min = Duration::from_millis(10);
        settings.reconnect.max_at_first = Duration::from_millis(50);
        Self {
            acceptor: AcceptorSettings::default(),
            settings,
            peer: CLUSTER,
        }
    }
}

impl Setup {
    /// An agent that does not try again, so that its error stays.
    pub(super) fn once() -> Self {
        let mut setup = Self::default();
        setup.settings.reconnect.min = Duration::from_secs(1_000_000);
        setup.settings.reconnect.max_at_first = setup.settings.reconnect.min;
        setup
    }
}

impl Tunnel {
    /// A tunnel and its first session.
    pub(super) async fn open() -> (Self, Session) {
        Self::open_with(Setup::default()).await
    }

    pub(super) async fn open_with(setup: Setup) -> (Self, Session) {
        let mut tunnel = Self::start(setup).await;
        let session = tunnel.next_session().await;
        (tunnel, session)
    }

    /// A hub and an agent that may be refused.
    pub(super) async fn start(setup: Setup) -> Self {
        let authority = Authority::new();
        let acceptor = Acceptor::new(setup.acceptor);
        let (sender, sessions) = mpsc::unbounded_channel();
        let tls = authority.hub_tls(&authority.sign("localhost", Life::Valid));
        let (hub, peer) = (acceptor.clone(), setup.peer);
        let address = serve(TlsAcceptor::from(Arc::new(tls)), move |request| {
            connect(&hub, peer, &sender, request)
        })
        .await;
        let relay = Relay::start(address).await;
        let mut settings = setup.settings;
        if settings.url.is_empty() {
            settings.url = format!("wss://localhost:{}", relay.port());
        }
        let identity = authority.sign(setup.peer, Life::Valid);
        let agent = start_agent(settings, authority.credentials(&identity));
        Self {
            acceptor,
            relay,
            agent,
            sessions,
        }
    }

    pub(super) async fn next_session(&mut self) -> Session {
        self.sessions.recv().await.unwrap()
    }
}

/// Answers a request as a hub does.
fn connect(
    acceptor: &Acceptor,
    peer: &str,
    sessions: &mpsc::UnboundedSender<Session>,
    mut request: Request<Incoming>,
) -> Response<BoxBody<Bytes, Infallible>> {
    match acceptor.accept(peer, &mut request) {
        Ok((response, accepting)) => {
            let sessions = sessions.clone();
            tokio::spawn(async move {
                if let Ok(Accepted::New(session)) = accepting.await {
                    let _ = sessions.send(session);
                }
            });
            response.map(BodyExt::boxed)
        }
        Err(refused) => refused.response().map(BodyExt::boxed),
    }
}

/// Serves HTTP/1.1 over TLS, and returns the address.
pub(super) async fn serve(
    tls: TlsAcceptor,
    respond: impl Fn(Request<Incoming>) -> Response<BoxBody<Bytes, Infallible>>
    + Clone
    + Send
    + Sync
    + 'static,
) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let (tls, respond) = (tls.clone(), respond.clone());
            tokio::spawn(async move {
                let Ok(stream) = accept_tls(&tls, tcp).await else {
                    return;
                };
                let service = service_of(move |request| {
                    let response = respond(request);
                    async move { Ok::<_, Infallible>(response) }
                });
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
                let _ = connection.with_upgrades().await;
            });
        }
    });
    address
}

/// An agent that serves the test's requests.
pub(super) fn start_agent(settings: Settings, credentials: Arc<dyn crate::Credentials>) -> Agent {
    let (sender, status) = watch::channel(Status::Connecting);
    let shutdown = CancellationToken::new();
    let service = TestService::default();
    let running = run(
        settings,
        credentials,
        service.clone(),
        sender,
        shutdown.clone(),
    );
    Agent {
        status,
        shutdown,
        service,
        ended: tokio::spawn(running),
    }
}

impl Agent {
    /// The error of the next failed attempt.
    pub(super) async fn error(&mut self) -> String {
        let failed = self
            .status
            .wait_for(|status| matches!(status, Status::Disconnected { .. }));
        match &*failed.await.unwrap() {
            Status::Disconnected { error, .. } => error_chain::error_chain(error),
            _ => unreachable!("it is disconnected"),
        }
    }
}

/// Waits until the session has this state.
pub(super) async fn wait_until(session: &Session, is_so: impl Fn(&SessionStatus) -> bool) {
    drop(session.events().wait_for(is_so).await.unwrap());
}

/// Waits until a condition holds that has no event.
pub(super) async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let polling = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), polling).await;
    assert!(waited.is_ok(), "timed out until {what}");
}

pub(super) fn is_interrupted(status: &SessionStatus) -> bool {
    matches!(status, SessionStatus::Interrupted { .. })
}

pub(super) fn is_connected(status: &SessionStatus) -> bool {
    *status == SessionStatus::Connected
}

#[tokio::test]
async fn an_agent_that_shuts_down_leaves_its_hub() {
    let (mut tunnel, session) = Tunnel::open().await;
    assert!(session.is_connected());
    assert_eq!((session.peer(), session.version()), (CLUSTER, 1));
    // Before that the agent would have no tunnel that it can end properly.
    let mut status = tunnel.agent.status.clone();
    let connected = status.wait_for(|status| matches!(status, Status::Connected { .. }));
    drop(connected.await.unwrap());
    tunnel.agent.shutdown.cancel();
    assert_eq!(session.ended().await, EndReason::Left);
    let ended = (&mut tunnel.agent.ended).await.unwrap();
    assert!(matches!(ended, Ended::Shutdown));
    eventually("the hub has no session", || tunnel.acceptor.sessions() == 0).await;
}

#[tokio::test]
async fn an_agent_gets_the_reason_when_its_tunnel_is_closed() {
    let (mut tunnel, session) = Tunnel::open_with(Setup::once()).await;
    session.close("the certificate of prod-eu is revoked");
    let expected = EndReason::Closed("the certificate of prod-eu is revoked".to_owned());
    assert_eq!(session.ended().await, expected);
    let error = tunnel.agent.error().await;
    assert!(
        error.contains("the certificate of prod-eu is revoked"),
        "{error}"
    );
}

#[tokio::test]
async fn a_tunnel_is_closed_with_its_last_session() {
    let (mut tunnel, session) = Tunnel::open_with(Setup::once()).await;
    let clone = session.clone();
    drop(session);
    assert!(clone.is_connected());
    drop(clone);
    let error = tunnel.agent.error().await;
    assert!(error.contains("does not need the tunnel"), "{error}");
}

#[test]
fn a_refusal_of_the_hub_is_json() {
    let refused = Refused::new(http::StatusCode::FORBIDDEN, "revoked");
    let response = refused.response();
    assert_eq!(response.headers()[crate::VERSION_HEADER], "1");
    assert_eq!(response.status(), 403);
}
