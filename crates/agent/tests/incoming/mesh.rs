//! Beside the rules of a mesh: what the sidecar sends on is redirected, never what it receives.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;

use agent::incoming::redirect::{Evidence, Mesh, Port};
use rustix::process::Uid;
use rustix::thread::set_thread_uid;
use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::oneshot;

use crate::programs::{AGENT, APPLICATION, Application, Client, answer_all, soon, who_answers};
use crate::world::{TARGET_IPV4, World, enter, socket_address, world};

/// Every byte on the wire is this far from its meaning. A sidecar encrypts; for a test, this is encryption enough.
const KEY: u8 = 0x55;

struct Sidecar {
    mesh: Mesh,
    rules: &'static str,
    /// Commands beside the rules.
    routes: &'static [&'static str],
    user: u32,
    port: u16,
    /// Whether its listener is a transparent one.
    transparent: bool,
    connects_from: From,
}

/// From where it connects to the application.
enum From {
    Anywhere,
    Address(&'static str),
    /// From the client's own address, with a mark by which answers are routed back to it.
    Client {
        mark: u32,
    },
}

const ISTIO: Sidecar = Sidecar {
    mesh: Mesh::Istio,
    rules: include_str!("istio.rules"),
    routes: &[],
    user: 1337,
    port: 15_006,
    transparent: false,
    connects_from: From::Address("127.0.0.6"),
};

const ISTIO_TPROXY: Sidecar = Sidecar {
    rules: include_str!("istio-tproxy.rules"),
    transparent: true,
    user: 0,
    ..ISTIO
};

const ISTIO_AMBIENT: Sidecar = Sidecar {
    rules: include_str!("istio-ambient.rules"),
    routes: &[
        "ip rule add fwmark 0x111/0xfff pref 32764 lookup 100",
        "ip route add local 0.0.0.0/0 dev lo table 100",
    ],
    user: 0,
    connects_from: From::Client { mark: 0x539 },
    ..ISTIO
};

const LINKERD: Sidecar = Sidecar {
    mesh: Mesh::Linkerd,
    rules: include_str!("linkerd.rules"),
    user: 2102,
    port: 4143,
    connects_from: From::Anywhere,
    ..ISTIO
};

/// A sidecar inside the target's network, with a user of its own as its rules want it. It ends when the answer is dropped.
fn start_sidecar(world: &World, sidecar: &'static Sidecar) -> oneshot::Sender<()> {
    let pid = world.target.pid();
    let (listening, ready) = std::sync::mpsc::channel();
    let (running, mut ended) = oneshot::channel();
    thread::spawn(move || {
        enter(pid);
        set_thread_uid(Uid::from_raw(sidecar.user)).expect("root may become anyone");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let socket = TcpSocket::new_v4().expect("there is IPv4");
            if sidecar.transparent {
                let transparent = SockRef::from(&socket).set_ip_transparent_v4(true);
                transparent.expect("root may do so");
            }
            let bound = socket.bind(socket_address("0.0.0.0", sidecar.port));
            bound.expect("the port is free");
            let listener = socket.listen(16).expect("there is a runtime");
            listening.send(()).expect("the test waits");
            loop {
                tokio::select! {
                    Ok((stream, peer)) = listener.accept() => {
                        tokio::spawn(pass_on(stream, peer, sidecar));
                    }
                    _ = &mut ended => return,
                }
            }
        });
    });
    ready.recv().expect("the sidecar listens");
    running
}

async fn pass_on(client: TcpStream, peer: SocketAddr, sidecar: &Sidecar) {
    let socket = TcpSocket::new_v4().expect("there is IPv4");
    let from = match sidecar.connects_from {
        From::Anywhere => None,
        From::Address(address) => Some(socket_address(address, 0)),
        From::Client { mark } => {
            let options = SockRef::from(&socket);
            options.set_ip_transparent_v4(true).expect("root may do so");
            options.set_mark(mark).expect("root may do so");
            Some(SocketAddr::new(peer.ip(), 0))
        }
    };
    if let Some(from) = from {
        socket.bind(from).expect("it may have the address");
    }
    let application = socket.connect(socket_address(TARGET_IPV4, 80)).await;
    let application = application.expect("the application or the agent accepts");
    let (from_client, to_client) = client.into_split();
    let (from_application, to_application) = application.into_split();
    tokio::spawn(translate(from_client, to_application));
    translate(from_application, to_client).await;
}

async fn translate(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
) {
    let mut buffer = [0; 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        for byte in &mut buffer[..length] {
            *byte ^= KEY;
        }
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

/// Who answers a client that encrypts.
async fn who_answers_encrypted(world: &World, to: SocketAddr) -> String {
    let mut client = Client::connect(&world.client, to).await;
    let mut name = vec![0; APPLICATION.len()];
    soon(client.stream.read_exact(&mut name))
        .await
        .expect("a name");
    client.stream.write_all(b"hello").await.expect("it works");
    let mut back = [0; 5];
    soon(client.stream.read_exact(&mut back))
        .await
        .expect("it works");
    assert_eq!(&back, b"hello");
    name.iter().map(|byte| char::from(byte ^ KEY)).collect()
}

async fn check(sidecar: &'static Sidecar, restore: &str) {
    let Some(world) = world() else { return };
    let mut application = Application::start(&world.target, 80);
    let _excluded = Application::start(&world.target, 81);
    let _running = start_sidecar(&world, sidecar);
    world.target.feed(restore, sidecar.rules);
    for command in sidecar.routes {
        world.target.run(command);
    }
    let to = socket_address(TARGET_IPV4, 80);
    assert_eq!(who_answers_encrypted(&world, to).await, APPLICATION);
    let through_sidecar = application.peers.recv().await.unwrap();
    let mut before = Client::connect(&world.client, to).await;
    // The sidecar has accepted it; it is open when the application has, too.
    soon(application.peers.recv()).await.unwrap();

    let redirect = Arc::new(world.redirect().await);
    let ports = [Port::tcp(80), Port::tcp(81)];
    redirect.change(&ports, &[]).await.unwrap();
    assert_eq!(redirect.mesh().await.unwrap(), Some(sidecar.mesh));

    // The agent gets what the application would have got: plain text, from the sidecar.
    let (name, arrived) = tokio::join!(who_answers_encrypted(&world, to), async {
        let arrived = soon(redirect.accept()).await.unwrap();
        let peer = arrived.peer;
        // Passed on: the mesh's rules leave the agent's own connection alone.
        let original = redirect.connect_to_original(arrived.original_destination);
        let mut original = Client {
            stream: original.await.unwrap(),
        };
        assert_eq!(original.who().await, APPLICATION);
        original.echo().await;
        tokio::spawn(crate::programs::echo(arrived.stream, AGENT));
        peer
    });
    assert_eq!(name, AGENT);
    assert_eq!(arrived.ip(), through_sidecar.ip());
    answer_all(&redirect);

    // A port that the mesh leaves out arrives as it is.
    let excluded = socket_address(TARGET_IPV4, 81);
    assert_eq!(who_answers(&world.client, excluded).await, AGENT);
    // From inside, the mesh is passed by; and so it says.
    assert_eq!(who_answers(&world.target, to).await, AGENT);
    let checked = redirect.check(Port::tcp(80)).await.unwrap();
    // Traffic that shows its real origin proves more than a probe.
    let expected = match sidecar.connects_from {
        From::Client { .. } => Evidence::Outside,
        _ => Evidence::Loopback,
    };
    assert_eq!(checked.evidence, expected, "{checked}");
    assert!(checked.to_string().contains("sidecar"), "{checked}");

    // The old connection goes on through the sidecar to the application.
    let mut name = vec![0; APPLICATION.len()];
    soon(before.stream.read_exact(&mut name)).await.unwrap();
    before.echo().await;
    redirect.change(&[], &ports).await.unwrap();
    assert_eq!(who_answers_encrypted(&world, to).await, APPLICATION);
}

#[tokio::test]
#[ignore = "needs root"]
async fn istio_with_iptables_nft() {
    check(&ISTIO, "iptables-nft-restore").await;
}

#[tokio::test]
#[ignore = "needs root"]
async fn istio_with_iptables_legacy() {
    check(&ISTIO, "iptables-legacy-restore").await;
}

#[tokio::test]
#[ignore = "needs root"]
async fn istio_with_tproxy() {
    check(&ISTIO_TPROXY, "iptables-nft-restore").await;
}

#[tokio::test]
#[ignore = "needs root"]
async fn istio_with_tproxy_of_iptables_legacy() {
    check(&ISTIO_TPROXY, "iptables-legacy-restore").await;
}

#[tokio::test]
#[ignore = "needs root"]
async fn istio_ambient() {
    check(&ISTIO_AMBIENT, "iptables-nft-restore").await;
}

#[tokio::test]
#[ignore = "needs root"]
async fn linkerd_with_iptables_nft() {
    check(&LINKERD, "iptables-nft-restore").await;
}

#[tokio::test]
#[ignore = "needs root"]
async fn linkerd_with_iptables_legacy() {
    check(&LINKERD, "iptables-legacy-restore").await;
}
