//! Tests of incoming traffic with a scripted agent and real listeners.

mod agent;
mod clusters;
mod tls;

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{Bytes, BytesMut};
use config::{Format, Layers};
use http_body_util::BodyExt as _;
use hyper::body::Incoming as Body;
use interceptor::Errno;
use protocol::incoming::ConnectionMeta;
use protocol::outgoing::{Datagram, DatagramDecoder};
use protocol::rpc::subscribe_event::Event as AgentEvent;
use protocol::rpc::{
    EarlierSession, EarlierSessions, Failure, IncomingMode as Mode, MissedTraffic,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::oneshot;

use self::agent::FakeAgent;
use super::app_listener::{AppListener, AppSocket};
use super::*;
use crate::agent::{AgentId, Agents, Preference};
use crate::event::{IncomingEvent, IncomingEventKind};

const CLIENT: &str = "192.0.2.7:40000";
const SERVER: &str = "10.77.0.2:80";

/// The cookie of the application's sockets.
const COOKIE: u64 = 7;

/// A listener of an application.
#[derive(Debug)]
struct TestListener {
    address: SocketAddr,
    is_udp: bool,
    is_listening: AtomicBool,
}

impl AppListener for TestListener {
    fn is_listening(&self) -> bool {
        self.is_listening.load(Ordering::Relaxed)
    }

    fn connect(&self, client: SocketAddr, server: SocketAddr) -> Result<AppSocket, Errno> {
        assert_eq!(client, CLIENT.parse().unwrap());
        assert_eq!(server, SERVER.parse().unwrap());
        let socket: OwnedFd = if self.is_udp {
            let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            socket.connect(self.address).unwrap();
            socket.into()
        } else {
            let socket = std::net::TcpStream::connect(self.address);
            socket.map_err(|_| Errno::ECONNREFUSED)?.into()
        };
        let guard = Box::new(());
        Ok(AppSocket { socket, guard })
    }
}

struct TestSession {
    agent: FakeAgent,
    incoming: Incoming,
    agents: Agents,
}

impl TestSession {
    async fn new(settings: &str) -> Self {
        Self::with_poll_interval(settings, POLL_INTERVAL).await
    }

    async fn with_poll_interval(settings: &str, poll_interval: Duration) -> Self {
        let text = format!("feature: {{network: {{incoming: {settings}}}}}");
        let layers = Layers::new().file("test", &text, Format::Yaml);
        let settings = layers.resolve().unwrap().settings.feature.network.incoming;
        let fake = FakeAgent::default();
        let context = fake.connect().await;
        let agents = context.agents.clone();
        let incoming =
            Incoming::with_poll_interval(context, &settings, alice(), poll_interval).unwrap();
        Self {
            agent: fake,
            incoming,
            agents,
        }
    }

    /// Lets the application listen, and returns the result of its call.
    async fn listen(&self, address: SocketAddr, is_udp: bool) -> Result<Arc<TestListener>, Errno> {
        self.listen_with_cookie(address, is_udp, COOKIE).await
    }

    async fn listen_with_cookie(
        &self,
        address: SocketAddr,
        is_udp: bool,
        cookie: u64,
    ) -> Result<Arc<TestListener>, Errno> {
        let listener = Arc::new(TestListener {
            address,
            is_udp,
            is_listening: AtomicBool::new(true),
        });
        let (result, completed) = oneshot::channel();
        let app_listener = Arc::clone(&listener);
        // The port that the application sees is always the same here.
        let seen = SocketAddr::new(address.ip(), 8080);
        let listen = PendingListen::new(is_udp, seen, cookie, move |errno| {
            result.send(errno).unwrap();
            errno
                .is_none()
                .then_some(app_listener as Arc<dyn AppListener>)
        });
        self.incoming.start_listen(listen);
        completed.await.unwrap().map_or(Ok(listener), Err)
    }
}

fn alice() -> Holder {
    Holder {
        name: "alice".to_owned(),
        owner: "her machine".to_owned(),
    }
}

fn meta() -> ConnectionMeta {
    ConnectionMeta {
        client: CLIENT.parse().unwrap(),
        server: SERVER.parse().unwrap(),
        tls: None,
        is_mirrored: false,
    }
}

async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

async fn accept(listener: &TcpListener) -> TcpStream {
    listener.accept().await.unwrap().0
}

async fn bytes(body: &mut Body, count: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < count {
        let frame = body.frame().await.unwrap().unwrap();
        bytes.extend_from_slice(&frame.into_data().unwrap());
    }
    bytes
}

#[tokio::test]
async fn a_connection_is_relayed_in_both_directions_until_both_ends() {
    let session = TestSession::new("{mode: steal, port_mapping: [[8080, 80]]}").await;
    let (listener, address) = listener().await;
    session.listen(address, false).await.unwrap();
    let request = session.agent.subscribed(1).await;
    assert_eq!((request.port, request.mode()), (80, Mode::Steal));
    assert_eq!(request.holder, "alice");
    let mut client = session.agent.incoming_connection(&meta()).await;
    let mut application = accept(&listener).await;
    assert_eq!(bytes(&mut client.from_application, 1).await, [1]);

    let request = Bytes::from_static(b"request!");
    client.to_application.send_data(request).await.unwrap();
    let mut received = [0; 8];
    application.read_exact(&mut received).await.unwrap();
    assert_eq!(&received, b"request!");
    // The client has closed its sending direction and still receives.
    drop(client.to_application);
    assert_eq!(application.read(&mut received).await.unwrap(), 0);
    application.write_all(b"response").await.unwrap();
    assert_eq!(bytes(&mut client.from_application, 8).await, b"response");
    drop(application);
    let rest = client.from_application.collect().await.unwrap();
    assert!(rest.to_bytes().is_empty());
}

#[tokio::test]
async fn responses_to_a_mirrored_connection_are_discarded() {
    let session = TestSession::new("mirror").await;
    let (listener, address) = listener().await;
    session.listen(address, false).await.unwrap();
    let mirrored = ConnectionMeta {
        is_mirrored: true,
        ..meta()
    };
    let client = session.agent.incoming_connection(&mirrored).await;
    let mut application = accept(&listener).await;
    application.write_all(b"response").await.unwrap();
    drop(application);
    // Only the confirmation and the end are sent.
    let received = client.from_application.collect().await.unwrap();
    assert_eq!(&received.to_bytes()[..], [1]);
}

#[tokio::test]
async fn resets_are_passed_on_in_both_directions() {
    let session = TestSession::new("steal").await;
    let (listener, address) = listener().await;
    session.listen(address, false).await.unwrap();

    let client = session.agent.incoming_connection(&meta()).await;
    let mut application = accept(&listener).await;
    client.to_application.abort("reset".into());
    let error = application.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);

    let mut client = session.agent.incoming_connection(&meta()).await;
    let application = accept(&listener).await;
    assert_eq!(bytes(&mut client.from_application, 1).await, [1]);
    application.set_zero_linger().unwrap();
    drop(application);
    assert!(client.from_application.frame().await.unwrap().is_err());
}

#[tokio::test]
async fn a_connection_that_is_never_accepted_is_reset_and_a_silent_one_is_not() {
    let session = TestSession::new("{mode: steal, response_timeout: 1ms}").await;
    let (listener, address) = listener().await;
    session.listen(address, false).await.unwrap();
    let mut silent = session.agent.incoming_connection(&meta()).await;
    let mut application = accept(&listener).await;
    assert_eq!(bytes(&mut silent.from_application, 1).await, [1]);
    // The kernel completes the connection, and the application does not accept it.
    let mut ignored = session.agent.incoming_connection(&meta()).await;
    assert_eq!(bytes(&mut ignored.from_application, 1).await, [1]);
    assert!(ignored.from_application.frame().await.unwrap().is_err());
    application.write_all(b"at last").await.unwrap();
    assert_eq!(bytes(&mut silent.from_application, 7).await, b"at last");
}

#[tokio::test]
async fn a_connection_is_refused_when_the_application_does_not_listen() {
    let session = TestSession::new("steal").await;
    let (listener, address) = listener().await;
    let app_listener = session.listen(address, false).await.unwrap();
    app_listener.is_listening.store(false, Ordering::Relaxed);
    drop(listener);
    let client = session.agent.incoming_connection(&meta()).await;
    let rest = client.from_application.collect().await.unwrap();
    assert!(rest.to_bytes().is_empty());
}

/// Without polling.
#[tokio::test]
async fn the_kernels_event_about_a_closed_listener_ends_the_subscription() {
    let session = TestSession::with_poll_interval("steal", Duration::from_hours(1)).await;
    let (listener, address) = listener().await;
    let cookie = rustix::net::sockopt::socket_cookie(&listener).unwrap();
    let app_listener = session
        .listen_with_cookie(address, false, cookie)
        .await
        .unwrap();
    app_listener.is_listening.store(false, Ordering::Relaxed);
    drop(listener);
    session.agent.unsubscribe_requested(1).await;
    session.agent.unsubscribed().await;
}

#[tokio::test]
async fn a_connection_to_a_closed_port_waits_until_the_port_is_released() {
    let session = TestSession::with_poll_interval("steal", Duration::from_hours(1)).await;
    assert!(session.incoming.wait_for_closed_port(8080).is_none());
    let (listener, address) = listener().await;
    let app_listener = session.listen(address, false).await.unwrap();
    // While the application listens, nothing delays the connection.
    let open = session.incoming.wait_for_closed_port(8080).unwrap();
    open.await.unwrap_err();
    assert!(session.incoming.wait_for_closed_port(8081).is_none());

    let held = session.agent.hold_unsubscribe();
    app_listener.is_listening.store(false, Ordering::Relaxed);
    drop(listener);
    let mut closed = session.incoming.wait_for_closed_port(8080).unwrap();
    session.agent.unsubscribe_requested(1).await;
    let pending = oneshot::error::TryRecvError::Empty;
    assert_eq!(closed.try_recv(), Err(pending));
    held.send(()).unwrap();
    closed.await.unwrap_err();
}

#[tokio::test]
async fn listeners_that_share_a_port_share_a_subscription() {
    let session = TestSession::new("steal").await;
    let (first, address) = listener().await;
    let one = session.listen(address, false).await.unwrap();
    let (second, address) = listener().await;
    let two = session.listen(address, false).await.unwrap();
    session.agent.incoming_connection(&meta()).await;
    session.agent.incoming_connection(&meta()).await;
    tokio::join!(accept(&first), accept(&second));
    session.agent.subscribed(1).await;

    // When one listener closes, the other one gets all connections. The last one ends the subscription.
    one.is_listening.store(false, Ordering::Relaxed);
    drop(first);
    for _ in 0..3 {
        session.agent.incoming_connection(&meta()).await;
        accept(&second).await;
    }
    two.is_listening.store(false, Ordering::Relaxed);
    session.agent.unsubscribed().await;
    let (_third, address) = listener().await;
    session.listen(address, false).await.unwrap();
    session.agent.subscribed(2).await;
}

#[tokio::test]
async fn the_accept_pool_grows_with_the_rate_of_connections() {
    let session = TestSession::new("steal").await;
    let (listener, address) = listener().await;
    session.listen(address, false).await.unwrap();
    let few = session.agent.accept_streams(1).await;
    assert!(few <= 4, "{few}");
    let mut connections = Vec::new();
    for _ in 0..100 {
        connections.push(session.agent.incoming_connection(&meta()).await);
        connections.push(session.agent.incoming_connection(&meta()).await);
        accept(&listener).await;
        accept(&listener).await;
    }
    session.agent.accept_streams(64).await;
}

#[tokio::test]
async fn listening_fails_on_a_port_that_another_session_has_claimed() {
    let session = TestSession::new("steal").await;
    let (_listener, address) = listener().await;
    let detail = "bob already takes all traffic of this port";
    session
        .agent
        .refuse(Some(Failure::from_errno(libc::EADDRINUSE, detail)));
    let refused = session.listen(address, false).await.unwrap_err();
    assert_eq!(refused, Errno::EADDRINUSE);
    let reason = session.agent.event_kind(|kind| match kind {
        IncomingEventKind::Refused { reason } => Some(reason.clone()),
        _ => None,
    });
    assert_eq!(reason.await, detail);
    // The port is subscribed again when the application retries.
    session.agent.refuse(None);
    session.listen(address, false).await.unwrap();
}

#[tokio::test]
async fn an_application_listens_locally_when_mirroring_is_refused() {
    let session = TestSession::new("mirror").await;
    let (_listener, address) = listener().await;
    let failure = Failure::new(protocol::rpc::Reason::Agent, "it needs NET_ADMIN");
    session.agent.refuse(Some(failure));
    session.listen(address, false).await.unwrap();
    session
        .agent
        .event_kind(|kind| match kind {
            IncomingEventKind::LocalOnly {
                will_retry: false, ..
            } => Some(()),
            _ => None,
        })
        .await;
    // Another worker of the same application causes no second subscription.
    session.listen(address, false).await.unwrap();
    session.agent.subscribed(1).await;
}

#[tokio::test]
async fn the_port_is_subscribed_again_at_a_replaced_agent() {
    let session = TestSession::new("steal").await;
    let (listener, address) = listener().await;
    session.listen(address, false).await.unwrap();
    let mut open = session.agent.incoming_connection(&meta()).await;
    let _application = accept(&listener).await;
    assert_eq!(bytes(&mut open.from_application, 1).await, [1]);
    let id = AgentId::default();
    session.agents.router.leave(&id);
    session.agent.fail_subscription();
    let connection = session.agent.connection().await;
    let router = &session.agents.router;
    router.join(id, connection, Preference::Preferred);
    session.agent.subscribed(2).await;
    let renewed = session.agent.event_kind(|kind| match kind {
        IncomingEventKind::Subscribed(info) if info.is_renewed => Some(()),
        _ => None,
    });
    renewed.await;
    session.agent.incoming_connection(&meta()).await;
    accept(&listener).await;
}

#[tokio::test]
async fn a_port_that_is_taken_over_is_reported_and_becomes_local() {
    let session = TestSession::new("steal").await;
    let (_listener, address) = listener().await;
    session.listen(address, false).await.unwrap();
    session.agent.subscribed(1).await;
    session.agent.emit(AgentEvent::LostTo("bob".to_owned()));
    let holder = session.agent.event_kind(|kind| match kind {
        IncomingEventKind::TakenOver { holder } => Some(holder.clone()),
        _ => None,
    });
    assert_eq!(holder.await, "bob");
    session.agent.unsubscribed().await;
    session.agent.subscribed(1).await;
}

#[tokio::test]
async fn earlier_sessions_are_reported_until_they_end() {
    let session = TestSession::new("{mode: steal, on_concurrent_steal: continue}").await;
    let (_listener, address) = listener().await;
    let bob = |takes_all| EarlierSession {
        holder: "bob".to_owned(),
        takes_all,
    };
    session.agent.set_earlier(vec![bob(true)]);
    session.listen(address, false).await.unwrap();
    let expect = async |text: &str| {
        let contains = |event: &IncomingEvent| event.to_string().contains(text).then_some(());
        session.agent.event(contains).await;
    };
    expect("target: the program gets nothing while bob has a claim on all of it; after that, everything").await;
    let sessions = vec![bob(false)];
    session
        .agent
        .emit(AgentEvent::Earlier(EarlierSessions { sessions }));
    expect("target: everything that bob does not take goes to the program").await;
    let none = EarlierSessions::default();
    session.agent.emit(AgentEvent::Earlier(none));
    expect("target: everything goes to the program").await;
}

#[tokio::test]
async fn traffic_is_expected_on_ports_that_the_target_serves_or_the_settings_contain() {
    for (settings, listeners, is_served, is_expected) in [
        ("steal", None, true, true),
        ("steal", Some(vec![]), false, false),
        // The program is in the target's network.
        ("steal", Some(vec![COOKIE]), false, false),
        ("steal", Some(vec![COOKIE, 8]), true, true),
        ("{mode: steal, ports: [8080]}", Some(vec![]), false, true),
    ] {
        let session = TestSession::new(settings).await;
        if let Some(cookies) = &listeners {
            session.agent.set_listeners(cookies.clone(), true);
        }
        let (_listener, address) = listener().await;
        session.listen(address, false).await.unwrap();
        let reported = session.agent.event(|event| match &event.kind {
            IncomingEventKind::Subscribed(info) => Some((info.is_served, event.is_expected)),
            _ => None,
        });
        let expected = (is_served, is_expected);
        assert_eq!(reported.await, expected, "{settings}, {listeners:?}");
    }
}

#[tokio::test]
async fn cookies_of_another_network_are_not_those_of_the_program() {
    let session = TestSession::new("steal").await;
    session.agent.set_listeners(vec![COOKIE], false);
    let (_listener, address) = listener().await;
    session.listen(address, false).await.unwrap();
    let reported = session.agent.event_kind(|kind| match kind {
        IncomingEventKind::Subscribed(info) => Some(info.is_served),
        _ => None,
    });
    assert!(reported.await);
}

/// A program that crashes closes its listener, and the requests that it had are reported a moment later.
#[tokio::test]
async fn requests_that_a_program_missed_are_reported_after_it_has_closed_its_listener() {
    let session = TestSession::with_poll_interval("steal", Duration::from_hours(1)).await;
    let (listener, address) = listener().await;
    let app_listener = session.listen(address, false).await.unwrap();
    app_listener.is_listening.store(false, Ordering::Relaxed);
    drop(listener);
    let released = session.incoming.wait_for_closed_port(8080).unwrap();
    session.agent.unsubscribe_requested(1).await;
    released.await.unwrap_err();
    session
        .agent
        .emit(AgentEvent::Missed(MissedTraffic::default()));
    let reported = session.agent.event_kind(|kind| match kind {
        IncomingEventKind::Missed { count, .. } => Some(*count),
        _ => None,
    });
    assert_eq!(reported.await, 1);
}

#[tokio::test]
async fn after_the_first_traffic_more_is_expected() {
    let session = TestSession::new("steal").await;
    session.agent.set_listeners(Vec::new(), true);
    let (_listener, address) = listener().await;
    session.listen(address, false).await.unwrap();
    session.agent.subscribed(1).await;
    session.agent.emit(AgentEvent::TrafficSeen(true));
    let seen = session.agent.event(|event| {
        let is_first_traffic = event.kind == IncomingEventKind::TrafficSeen;
        is_first_traffic.then_some(event.is_expected)
    });
    assert!(seen.await);
}

#[tokio::test]
async fn events_of_the_agent_are_reported() {
    let session = TestSession::new("steal").await;
    let (_listener, address) = listener().await;
    session.listen(address, false).await.unwrap();
    session.agent.subscribed(1).await;
    session.agent.emit(AgentEvent::TrafficSeen(true));
    let missed = protocol::rpc::MissedTraffic {
        reason: protocol::rpc::MissedReason::NoResponse.into(),
        ..protocol::rpc::MissedTraffic::default()
    };
    session.agent.emit(AgentEvent::Missed(missed));
    let seen = |kind: &IncomingEventKind| (*kind == IncomingEventKind::TrafficSeen).then_some(());
    session.agent.event_kind(seen).await;
    let missed = session.agent.event_kind(|kind| match kind {
        IncomingEventKind::Missed { count, .. } => Some(*count),
        _ => None,
    });
    assert_eq!(missed.await, 1);
}

#[tokio::test]
async fn datagrams_are_relayed_in_both_directions() {
    let session = TestSession::new("steal").await;
    let application = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = application.local_addr().unwrap();
    session.listen(address, true).await.unwrap();
    let mut client = session.agent.incoming_connection(&meta()).await;
    assert_eq!(bytes(&mut client.from_application, 1).await, [1]);
    let framed = |payload: &'static [u8]| {
        let payload = Bytes::from_static(payload);
        let address = None;
        let mut frames = BytesMut::new();
        Datagram::Payload { address, payload }.encode(&mut frames);
        frames.freeze()
    };
    let ping = framed(b"ping");
    client.to_application.send_data(ping).await.unwrap();
    let mut buffer = [0; 16];
    let (count, peer) = application.recv_from(&mut buffer).await.unwrap();
    assert_eq!(&buffer[..count], b"ping");
    application.send_to(b"pong", peer).await.unwrap();
    let mut decoder = DatagramDecoder::default();
    decoder.push(&bytes(&mut client.from_application, framed(b"pong").len()).await);
    let payload = Bytes::from_static(b"pong");
    let expected = Datagram::Payload {
        address: None,
        payload,
    };
    assert_eq!(decoder.next_datagram().unwrap(), Some(expected));
}

/// A second agent of the same session.
async fn second_agent(session: &TestSession) -> FakeAgent {
    let second = FakeAgent::default();
    let connection = second.connection().await;
    let router = &session.agents.router;
    router.join(AgentId::in_pod("second"), connection, Preference::Preferred);
    second
}

#[tokio::test]
async fn traffic_of_all_agents_is_delivered() {
    let session = TestSession::new("steal").await;
    let second = second_agent(&session).await;
    let (listener, address) = listener().await;
    let app_listener = session.listen(address, false).await.unwrap();
    let agents = session.agent.event_kind(|kind| match kind {
        IncomingEventKind::Subscribed(info) => Some(info.agents),
        _ => None,
    });
    assert_eq!(agents.await, 2);
    // The port is also subscribed at an agent that joins later. The others stay subscribed when it leaves.
    let third = FakeAgent::default();
    let id = AgentId::in_pod("third");
    let connection = third.connection().await;
    let router = &session.agents.router;
    router.join(id.clone(), connection, Preference::Fallback);
    for agent in [&session.agent, &second, &third] {
        agent.subscribed(1).await;
        agent.incoming_connection(&meta()).await;
        accept(&listener).await;
    }
    router.leave(&id);
    third.unsubscribed().await;
    for agent in [&session.agent, &second] {
        agent.incoming_connection(&meta()).await;
        accept(&listener).await;
    }
    app_listener.is_listening.store(false, Ordering::Relaxed);
    session.agent.unsubscribed().await;
    second.unsubscribed().await;
}

#[tokio::test]
async fn a_refusal_of_one_agent_ends_the_subscriptions_at_the_others() {
    let session = TestSession::new("steal").await;
    let second = second_agent(&session).await;
    let failure = Failure::from_errno(libc::EADDRINUSE, "bob has it");
    second.refuse(Some(failure));
    let (_listener, address) = listener().await;
    let refused = session.listen(address, false).await.unwrap_err();
    assert_eq!(refused, Errno::EADDRINUSE);
    session.agent.unsubscribed().await;
    let text = session.agent.event(|event| match &event.kind {
        IncomingEventKind::Refused { .. } => Some(event.to_string()),
        _ => None,
    });
    let expected = "port 8080 of pod second: the program cannot listen: bob has it";
    assert_eq!(text.await, expected);
}

#[tokio::test]
async fn a_refusal_of_an_agent_that_joins_later_is_retried() {
    let session = TestSession::new("steal").await;
    let (listener, address) = listener().await;
    session.listen(address, false).await.unwrap();
    let second = FakeAgent::default();
    second.refuse(Some(Failure::from_errno(libc::EADDRINUSE, "bob has it")));
    let connection = second.connection().await;
    let router = &session.agents.router;
    router.join(AgentId::in_pod("second"), connection, Preference::Preferred);
    let reported = session.agent.event(|event| match &event.kind {
        IncomingEventKind::LocalOnly { will_retry, .. } => Some((event.agent.clone(), *will_retry)),
        _ => None,
    });
    assert_eq!(reported.await, (Some(AgentId::in_pod("second")), true));
    second.refuse(None);
    second.incoming_connection(&meta()).await;
    accept(&listener).await;
    session.agent.incoming_connection(&meta()).await;
    accept(&listener).await;
}

#[tokio::test]
async fn mirrored_traffic_comes_from_the_agents_that_do_not_refuse() {
    let session = TestSession::new("mirror").await;
    let second = second_agent(&session).await;
    second.refuse(Some(Failure::new(
        protocol::rpc::Reason::Agent,
        "it needs NET_ADMIN",
    )));
    let (listener, address) = listener().await;
    session.listen(address, false).await.unwrap();
    session.agent.incoming_connection(&meta()).await;
    accept(&listener).await;
    let reported = session.agent.event(|event| match &event.kind {
        IncomingEventKind::LocalOnly { .. } => event.agent.clone(),
        _ => None,
    });
    assert_eq!(reported.await, AgentId::in_pod("second"));
}

#[test]
fn unix_sockets_and_ignored_ports_are_local() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let session = TestSession::new("{ignore_ports: [81]}").await;
        let choose = |transport, port| {
            let address = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
            session.incoming.choose(transport, address)
        };
        assert_eq!(choose(Transport::Tcp, 80), ListenerChoice::Target);
        assert_eq!(choose(Transport::Udp, 80), ListenerChoice::Target);
        assert_eq!(choose(Transport::Tcp, 81), ListenerChoice::Local);
        assert_eq!(choose(Transport::Unix, 80), ListenerChoice::Local);
    });
}

#[tokio::test]
async fn datagrams_are_local_with_an_http_filter() {
    let filter = "{mode: steal, http_filter: {header_filter: 'a: b', ports: [80]}}";
    let session = TestSession::new(filter).await;
    let choose = |transport, port| {
        let address = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
        session.incoming.choose(transport, address)
    };
    assert_eq!(choose(Transport::Tcp, 80), ListenerChoice::Target);
    assert_eq!(choose(Transport::Udp, 80), ListenerChoice::Local);
    assert_eq!(choose(Transport::Udp, 81), ListenerChoice::Target);
}
