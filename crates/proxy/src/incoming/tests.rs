//! The proxy's side of incoming traffic, with an agent that does what a test says and listeners that are real.

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
use protocol::incoming::Arrived;
use protocol::outgoing::{Datagram, DatagramDecoder};
use protocol::rpc::subscribe_event::Event as Happening;
use protocol::rpc::{EarlierSession, EarlierSessions, Failure, IncomingMode as Mode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::oneshot;

use self::agent::FakeAgent;
use super::door::{Delivered, Door};
use super::*;
use crate::agent::{AgentId, Agents, Preference};
use crate::event::{IncomingEvent, News};

const CLIENT: &str = "192.0.2.7:40000";
const SERVER: &str = "10.77.0.2:80";

/// A listener of an application.
#[derive(Debug)]
struct Place {
    address: SocketAddr,
    is_udp: bool,
    is_there: AtomicBool,
}

impl Door for Place {
    fn is_there(&self) -> bool {
        self.is_there.load(Ordering::Relaxed)
    }

    fn deliver(&self, client: SocketAddr, server: SocketAddr) -> Result<Delivered, Errno> {
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
        let kept = Box::new(());
        Ok(Delivered { socket, kept })
    }
}

struct World {
    agent: FakeAgent,
    incoming: Incoming,
    agents: Agents,
}

impl World {
    async fn new(settings: &str) -> Self {
        let text = format!("feature: {{network: {{incoming: {settings}}}}}");
        let layers = Layers::new().file("test", &text, Format::Yaml);
        let settings = layers.resolve().unwrap().settings.feature.network.incoming;
        let fake = FakeAgent::default();
        let agent = fake.connect().await;
        let agents = agent.all.clone();
        let incoming = Incoming::new(agent, &settings, alice()).unwrap();
        Self {
            agent: fake,
            incoming,
            agents,
        }
    }

    /// The application listens; says what its call returns.
    async fn listen(&self, address: SocketAddr, is_udp: bool) -> Result<Arc<Place>, Errno> {
        let place = Arc::new(Place {
            address,
            is_udp,
            is_there: AtomicBool::new(true),
        });
        let (answer, answered) = oneshot::channel();
        let door = Arc::clone(&place);
        // The port that the application sees is always the same here.
        let seen = SocketAddr::new(address.ip(), 8080);
        self.incoming.ask(Asking::new(is_udp, seen, move |refused| {
            answer.send(refused).unwrap();
            refused.is_none().then_some(door as Arc<dyn Door>)
        }));
        answered.await.unwrap().map_or(Ok(place), Err)
    }
}

fn alice() -> Holder {
    Holder {
        name: "alice".to_owned(),
        owner: "her machine".to_owned(),
    }
}

fn arrived() -> Arrived {
    Arrived {
        client: CLIENT.parse().unwrap(),
        server: SERVER.parse().unwrap(),
        tls: None,
        is_copy: false,
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
async fn a_connection_is_carried_both_ways_to_each_end() {
    let world = World::new("{mode: steal, port_mapping: [[8080, 80]]}").await;
    let (listener, address) = listener().await;
    world.listen(address, false).await.unwrap();
    let request = world.agent.subscribed(1).await;
    assert_eq!((request.port, request.mode()), (80, Mode::Steal));
    assert_eq!(request.holder, "alice");
    let mut client = world.agent.arrive(&arrived()).await;
    let mut application = accept(&listener).await;
    assert_eq!(bytes(&mut client.from_application, 1).await, [1]);

    let question = Bytes::from_static(b"question");
    client.to_application.send_data(question).await.unwrap();
    let mut heard = [0; 8];
    application.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"question");
    // The client has said everything, and still hears.
    drop(client.to_application);
    assert_eq!(application.read(&mut heard).await.unwrap(), 0);
    application.write_all(b"answer").await.unwrap();
    assert_eq!(bytes(&mut client.from_application, 6).await, b"answer");
    drop(application);
    let rest = client.from_application.collect().await.unwrap();
    assert!(rest.to_bytes().is_empty());
}

#[tokio::test]
async fn what_is_answered_to_a_copy_stays_here() {
    let world = World::new("mirror").await;
    let (listener, address) = listener().await;
    world.listen(address, false).await.unwrap();
    let copy = Arrived {
        is_copy: true,
        ..arrived()
    };
    let client = world.agent.arrive(&copy).await;
    let mut application = accept(&listener).await;
    application.write_all(b"answer").await.unwrap();
    drop(application);
    // That it was taken is told, and that it has ended.
    let heard = client.from_application.collect().await.unwrap();
    assert_eq!(&heard.to_bytes()[..], [1]);
}

#[tokio::test]
async fn resets_are_resets_on_the_other_side() {
    let world = World::new("steal").await;
    let (listener, address) = listener().await;
    world.listen(address, false).await.unwrap();

    let client = world.agent.arrive(&arrived()).await;
    let mut application = accept(&listener).await;
    client.to_application.abort("reset".into());
    let error = application.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);

    let mut client = world.agent.arrive(&arrived()).await;
    let application = accept(&listener).await;
    assert_eq!(bytes(&mut client.from_application, 1).await, [1]);
    application.set_zero_linger().unwrap();
    drop(application);
    assert!(client.from_application.frame().await.unwrap().is_err());
}

#[tokio::test]
async fn a_connection_that_is_never_accepted_is_given_back_and_a_silent_one_is_not() {
    let world = World::new("{mode: steal, answer_within: 1ms}").await;
    let (listener, address) = listener().await;
    world.listen(address, false).await.unwrap();
    let mut silent = world.agent.arrive(&arrived()).await;
    let mut application = accept(&listener).await;
    assert_eq!(bytes(&mut silent.from_application, 1).await, [1]);
    // The kernel takes it, and the application does not come to it.
    let mut ignored = world.agent.arrive(&arrived()).await;
    assert_eq!(bytes(&mut ignored.from_application, 1).await, [1]);
    assert!(ignored.from_application.frame().await.unwrap().is_err());
    application.write_all(b"at last").await.unwrap();
    assert_eq!(bytes(&mut silent.from_application, 7).await, b"at last");
}

#[tokio::test]
async fn who_takes_no_connections_says_so() {
    let world = World::new("steal").await;
    let (listener, address) = listener().await;
    let place = world.listen(address, false).await.unwrap();
    place.is_there.store(false, Ordering::Relaxed);
    drop(listener);
    let client = world.agent.arrive(&arrived()).await;
    let rest = client.from_application.collect().await.unwrap();
    assert!(rest.to_bytes().is_empty());
}

#[tokio::test]
async fn listeners_that_share_a_port_share_a_subscription() {
    let world = World::new("steal").await;
    let (first, address) = listener().await;
    let one = world.listen(address, false).await.unwrap();
    let (second, address) = listener().await;
    let two = world.listen(address, false).await.unwrap();
    world.agent.arrive(&arrived()).await;
    world.agent.arrive(&arrived()).await;
    tokio::join!(accept(&first), accept(&second));
    world.agent.subscribed(1).await;

    // One of them goes, and everything comes to the other; with the last one goes the subscription.
    one.is_there.store(false, Ordering::Relaxed);
    drop(first);
    for _ in 0..3 {
        world.agent.arrive(&arrived()).await;
        accept(&second).await;
    }
    two.is_there.store(false, Ordering::Relaxed);
    world.agent.unsubscribed().await;
    let (_third, address) = listener().await;
    world.listen(address, false).await.unwrap();
    world.agent.subscribed(2).await;
}

#[tokio::test]
async fn more_wait_when_more_come() {
    let world = World::new("steal").await;
    let (listener, address) = listener().await;
    world.listen(address, false).await.unwrap();
    let few = world.agent.waiting(1).await;
    assert!(few <= 4, "{few}");
    let mut connections = Vec::new();
    for _ in 0..100 {
        connections.push(world.agent.arrive(&arrived()).await);
        connections.push(world.agent.arrive(&arrived()).await);
        accept(&listener).await;
        accept(&listener).await;
    }
    world.agent.waiting(64).await;
}

#[tokio::test]
async fn a_port_that_somebody_has_cannot_be_listened_on() {
    let world = World::new("steal").await;
    let (_listener, address) = listener().await;
    let detail = "bob already takes all traffic of this port";
    world
        .agent
        .refuse(Some(Failure::from_errno(libc::EADDRINUSE, detail)));
    let refused = world.listen(address, false).await.unwrap_err();
    assert_eq!(refused, Errno::EADDRINUSE);
    let reason = world.agent.news(|news| match news {
        News::Refused { reason } => Some(reason.clone()),
        _ => None,
    });
    assert_eq!(reason.await, detail);
    // It is asked for again when the application tries again.
    world.agent.refuse(None);
    world.listen(address, false).await.unwrap();
}

#[tokio::test]
async fn an_application_that_would_get_copies_can_do_without() {
    let world = World::new("mirror").await;
    let (_listener, address) = listener().await;
    let failure = Failure::new(protocol::rpc::Reason::Agent, "it needs NET_ADMIN");
    world.agent.refuse(Some(failure));
    world.listen(address, false).await.unwrap();
    world
        .agent
        .news(|news| match news {
            News::Local {
                tries_again: false, ..
            } => Some(()),
            _ => None,
        })
        .await;
    // Another worker of the same application is not asked for.
    world.listen(address, false).await.unwrap();
    world.agent.subscribed(1).await;
}

#[tokio::test]
async fn another_agent_is_asked_again() {
    let world = World::new("steal").await;
    let (listener, address) = listener().await;
    world.listen(address, false).await.unwrap();
    let mut open = world.agent.arrive(&arrived()).await;
    let _application = accept(&listener).await;
    assert_eq!(bytes(&mut open.from_application, 1).await, [1]);
    let id = AgentId::default();
    world.agents.router.leave(&id);
    world.agent.break_off();
    let member = world.agent.member().await;
    let router = &world.agents.router;
    router.join(id, member, Preference::Preferred);
    world.agent.subscribed(2).await;
    let again = world.agent.news(|news| match news {
        News::Subscribed(subscribed) if subscribed.again => Some(()),
        _ => None,
    });
    again.await;
    world.agent.arrive(&arrived()).await;
    accept(&listener).await;
}

#[tokio::test]
async fn who_loses_a_port_is_told_and_stays_local() {
    let world = World::new("steal").await;
    let (_listener, address) = listener().await;
    world.listen(address, false).await.unwrap();
    world.agent.subscribed(1).await;
    world.agent.happen(Happening::LostTo("bob".to_owned()));
    let holder = world.agent.news(|news| match news {
        News::LostTo { holder } => Some(holder.clone()),
        _ => None,
    });
    assert_eq!(holder.await, "bob");
    world.agent.unsubscribed().await;
    world.agent.subscribed(1).await;
}

#[tokio::test]
async fn who_is_served_first_is_told_until_he_is_gone() {
    let world = World::new("{mode: steal, on_concurrent_steal: continue}").await;
    let (_listener, address) = listener().await;
    let bob = |takes_all| EarlierSession {
        holder: "bob".to_owned(),
        takes_all,
    };
    world.agent.precede(vec![bob(true)]);
    world.listen(address, false).await.unwrap();
    let words = async |wanted: &str| {
        let says = |event: &IncomingEvent| event.to_string().contains(wanted).then_some(());
        world.agent.event(says).await;
    };
    words("target: nothing comes to the program as long as bob has all of it, and after that everything").await;
    let sessions = vec![bob(false)];
    world
        .agent
        .happen(Happening::Earlier(EarlierSessions { sessions }));
    words("target: everything that bob does not take goes to the program").await;
    let nobody = EarlierSessions::default();
    world.agent.happen(Happening::Earlier(nobody));
    words("target: everything goes to the program").await;
}

#[tokio::test]
async fn what_the_agent_tells_is_told() {
    let world = World::new("steal").await;
    let (_listener, address) = listener().await;
    world.listen(address, false).await.unwrap();
    world.agent.subscribed(1).await;
    world.agent.happen(Happening::TrafficSeen(true));
    let missed = protocol::rpc::Missed {
        reason: protocol::rpc::MissedReason::NoAnswer.into(),
        ..protocol::rpc::Missed::default()
    };
    world.agent.happen(Happening::Missed(missed));
    let seen = |news: &News| (*news == News::TrafficSeen).then_some(());
    world.agent.news(seen).await;
    let missed = world.agent.news(|news| match news {
        News::Missed { count, .. } => Some(*count),
        _ => None,
    });
    assert_eq!(missed.await, 1);
}

#[tokio::test]
async fn datagrams_go_both_ways() {
    let world = World::new("steal").await;
    let application = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = application.local_addr().unwrap();
    world.listen(address, true).await.unwrap();
    let mut client = world.agent.arrive(&arrived()).await;
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
async fn another(world: &World) -> FakeAgent {
    let another = FakeAgent::default();
    let member = another.member().await;
    let router = &world.agents.router;
    router.join(AgentId::in_pod("second"), member, Preference::Preferred);
    another
}

#[tokio::test]
async fn every_agent_brings_its_traffic() {
    let world = World::new("steal").await;
    let second = another(&world).await;
    let (listener, address) = listener().await;
    let place = world.listen(address, false).await.unwrap();
    let agents = world.agent.news(|news| match news {
        News::Subscribed(subscribed) => Some(subscribed.agents),
        _ => None,
    });
    assert_eq!(agents.await, 2);
    // One who comes later is asked as well, and open connections of one who goes are nobody else's.
    let third = FakeAgent::default();
    let id = AgentId::in_pod("third");
    let member = third.member().await;
    let router = &world.agents.router;
    router.join(id.clone(), member, Preference::Possible);
    for agent in [&world.agent, &second, &third] {
        agent.subscribed(1).await;
        agent.arrive(&arrived()).await;
        accept(&listener).await;
    }
    router.leave(&id);
    third.unsubscribed().await;
    for agent in [&world.agent, &second] {
        agent.arrive(&arrived()).await;
        accept(&listener).await;
    }
    place.is_there.store(false, Ordering::Relaxed);
    world.agent.unsubscribed().await;
    second.unsubscribed().await;
}

#[tokio::test]
async fn a_port_that_one_agent_refuses_is_not_had_from_the_others() {
    let world = World::new("steal").await;
    let second = another(&world).await;
    let failure = Failure::from_errno(libc::EADDRINUSE, "bob has it");
    second.refuse(Some(failure));
    let (_listener, address) = listener().await;
    let refused = world.listen(address, false).await.unwrap_err();
    assert_eq!(refused, Errno::EADDRINUSE);
    world.agent.unsubscribed().await;
    let whose = world.agent.event(|event| match &event.news {
        News::Refused { .. } => Some(event.to_string()),
        _ => None,
    });
    let expected = "port 8080 of pod second: the program cannot listen: bob has it";
    assert_eq!(whose.await, expected);
}

#[tokio::test]
async fn a_newcomer_that_refuses_is_asked_again() {
    let world = World::new("steal").await;
    let (listener, address) = listener().await;
    world.listen(address, false).await.unwrap();
    let second = FakeAgent::default();
    second.refuse(Some(Failure::from_errno(libc::EADDRINUSE, "bob has it")));
    let member = second.member().await;
    let router = &world.agents.router;
    router.join(AgentId::in_pod("second"), member, Preference::Preferred);
    let told = world.agent.event(|event| match &event.news {
        News::Local { tries_again, .. } => Some((event.agent.clone(), *tries_again)),
        _ => None,
    });
    assert_eq!(told.await, (Some(AgentId::in_pod("second")), true));
    second.refuse(None);
    second.arrive(&arrived()).await;
    accept(&listener).await;
    world.agent.arrive(&arrived()).await;
    accept(&listener).await;
}

#[tokio::test]
async fn copies_come_from_those_who_have_them() {
    let world = World::new("mirror").await;
    let second = another(&world).await;
    second.refuse(Some(Failure::new(
        protocol::rpc::Reason::Agent,
        "it needs NET_ADMIN",
    )));
    let (listener, address) = listener().await;
    world.listen(address, false).await.unwrap();
    world.agent.arrive(&arrived()).await;
    accept(&listener).await;
    let told = world.agent.event(|event| match &event.news {
        News::Local { .. } => event.agent.clone(),
        _ => None,
    });
    assert_eq!(told.await, AgentId::in_pod("second"));
}

#[test]
fn unix_sockets_and_ignored_ports_are_local() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let world = World::new("{ignore_ports: [81]}").await;
        let choose = |transport, port| {
            let address = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
            world.incoming.choose(transport, address)
        };
        assert_eq!(choose(Transport::Tcp, 80), ListenerChoice::Target);
        assert_eq!(choose(Transport::Udp, 80), ListenerChoice::Target);
        assert_eq!(choose(Transport::Tcp, 81), ListenerChoice::Local);
        assert_eq!(choose(Transport::Unix, 80), ListenerChoice::Local);
    });
}

#[tokio::test]
async fn datagrams_are_local_where_certain_requests_are_wanted() {
    let filter = "{mode: steal, http_filter: {header_filter: 'a: b', ports: [80]}}";
    let world = World::new(filter).await;
    let choose = |transport, port| {
        let address = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
        world.incoming.choose(transport, address)
    };
    assert_eq!(choose(Transport::Tcp, 80), ListenerChoice::Target);
    assert_eq!(choose(Transport::Udp, 80), ListenerChoice::Local);
    assert_eq!(choose(Transport::Udp, 81), ListenerChoice::Target);
}
