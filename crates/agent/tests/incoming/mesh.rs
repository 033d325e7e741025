//! With the rules of a mesh: the traffic that the sidecar forwards is redirected, never the traffic that it receives.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;

use agent::incoming::redirect::{Mesh, Port, RedirectEvidence};
use rustix::process::Uid;
use rustix::thread::set_thread_uid;
use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::oneshot;

use crate::environment::{Environment, TARGET_IPV4, enter, environment, socket_address};
use crate::programs::{
    AGENT, APPLICATION, Application, Client, echo_all, identify_server, with_timeout,
};

/// The "encryption" of the sidecar: every byte on the wire is XORed with this.
const KEY: u8 = 0x55;

struct Sidecar {
    mesh: Mesh,
    rules: &'static str,
    /// Commands that set up routes in addition to the rules.
    routes: &'static [&'static str],
    user: u32,
    port: u16,
    /// Whether its listener is transparent.
    transparent: bool,
    connects_from: SourceAddress,
}

/// The source address of its connections to the application.
enum SourceAddress {
    Anywhere,
    Address(&'static str),
    /// The client's own address, with a mark by which responses are routed back to the sidecar.
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
    connects_from: SourceAddress::Address("127.0.0.6"),
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
    connects_from: SourceAddress::Client { mark: 0x539 },
    ..ISTIO
};

const LINKERD: Sidecar = Sidecar {
    mesh: Mesh::Linkerd,
    rules: include_str!("linkerd.rules"),
    user: 2102,
    port: 4143,
    connects_from: SourceAddress::Anywhere,
    ..ISTIO
};

/// Starts a sidecar inside the target's network, with its own user, as its rules require. It ends when the returned sender
/// is dropped.
fn start_sidecar(environment: &Environment, sidecar: &'static Sidecar) -> oneshot::Sender<()> {
    let pid = environment.target.pid();
    let (listening, ready) = std::sync::mpsc::channel();
    let (running, mut ended) = oneshot::channel();
    thread::spawn(move || {
        enter(pid);
        set_thread_uid(Uid::from_raw(sidecar.user)).expect("root may change its user");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let socket = TcpSocket::new_v4().expect("there is IPv4");
            if sidecar.transparent {
                let transparent = SockRef::from(&socket).set_ip_transparent_v4(true);
                transparent.expect("root has all rights");
            }
            let bound = socket.bind(socket_address("0.0.0.0", sidecar.port));
            bound.expect("the port is free");
            let listener = socket.listen(16).expect("there is a runtime");
            listening.send(()).expect("the test receives");
            loop {
                tokio::select! {
                    Ok((stream, peer)) = listener.accept() => {
                        tokio::spawn(forward(stream, peer, sidecar));
                    }
                    _ = &mut ended => return,
                }
            }
        });
    });
    ready.recv().expect("the sidecar listens");
    running
}

async fn forward(client: TcpStream, peer: SocketAddr, sidecar: &Sidecar) {
    let socket = TcpSocket::new_v4().expect("there is IPv4");
    let from = match sidecar.connects_from {
        SourceAddress::Anywhere => None,
        SourceAddress::Address(address) => Some(socket_address(address, 0)),
        SourceAddress::Client { mark } => {
            let options = SockRef::from(&socket);
            options
                .set_ip_transparent_v4(true)
                .expect("root has all rights");
            options.set_mark(mark).expect("root has all rights");
            Some(SocketAddr::new(peer.ip(), 0))
        }
    };
    if let Some(from) = from {
        socket.bind(from).expect("root may bind any address");
    }
    let application = socket.connect(socket_address(TARGET_IPV4, 80)).await;
    let application = application.expect("the application or the agent accepts");
    let (from_client, to_client) = client.into_split();
    let (from_application, to_application) = application.into_split();
    tokio::spawn(decrypt(from_client, to_application));
    decrypt(from_application, to_client).await;
}

async fn decrypt(
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

/// The name of the server that accepts a connection of a client that encrypts.
async fn identify_server_encrypted(environment: &Environment, to: SocketAddr) -> String {
    let mut client = Client::connect(&environment.client, to).await;
    let mut name = vec![0; APPLICATION.len()];
    with_timeout(client.stream.read_exact(&mut name))
        .await
        .expect("a name");
    client
        .stream
        .write_all(b"hello")
        .await
        .expect("the connection works");
    let mut back = [0; 5];
    with_timeout(client.stream.read_exact(&mut back))
        .await
        .expect("the connection works");
    assert_eq!(&back, b"hello");
    name.iter().map(|byte| char::from(byte ^ KEY)).collect()
}

async fn check(sidecar: &'static Sidecar, restore: &str) {
    let environment = environment();
    let mut application = Application::start(&environment.target, 80);
    let _excluded = Application::start(&environment.target, 81);
    let _running = start_sidecar(&environment, sidecar);
    environment.target.feed(restore, sidecar.rules);
    for command in sidecar.routes {
        environment.target.run(command);
    }
    let to = socket_address(TARGET_IPV4, 80);
    assert_eq!(
        identify_server_encrypted(&environment, to).await,
        APPLICATION
    );
    let through_sidecar = application.peers.recv().await.unwrap();
    let mut before = Client::connect(&environment.client, to).await;
    // The connection is complete when the application has accepted it, too.
    with_timeout(application.peers.recv()).await.unwrap();

    let redirect = Arc::new(environment.redirect().await);
    let ports = [Port::tcp(80), Port::tcp(81)];
    redirect.change(&ports, &[]).await.unwrap();
    assert_eq!(redirect.mesh().await.unwrap(), Some(sidecar.mesh));

    // The agent receives what the application would have received: plain text from the sidecar.
    let (name, peer) = tokio::join!(identify_server_encrypted(&environment, to), async {
        let connection = with_timeout(redirect.accept()).await.unwrap();
        let peer = connection.peer;
        // The rules of the mesh do not affect the agent's own connection to the application.
        let original = redirect.connect_to_application(connection.original_destination);
        let mut original = Client {
            stream: original.await.unwrap(),
        };
        assert_eq!(original.server_name().await, APPLICATION);
        original.echo().await;
        tokio::spawn(crate::programs::echo(connection.stream, AGENT));
        peer
    });
    assert_eq!(name, AGENT);
    assert_eq!(peer.ip(), through_sidecar.ip());
    echo_all(&redirect);

    // A port that the mesh excludes is redirected directly.
    let excluded = socket_address(TARGET_IPV4, 81);
    assert_eq!(identify_server(&environment.client, excluded).await, AGENT);
    // Traffic from inside bypasses the mesh.
    assert_eq!(identify_server(&environment.target, to).await, AGENT);
    let report = redirect.check(Port::tcp(80)).await.unwrap();
    // Traffic with its real source address is stronger evidence than a probe.
    let expected = match sidecar.connects_from {
        SourceAddress::Client { .. } => RedirectEvidence::External,
        _ => RedirectEvidence::Loopback,
    };
    assert_eq!(report.evidence, expected, "{report}");
    assert!(report.to_string().contains("sidecar"), "{report}");

    // The old connection still goes through the sidecar to the application.
    let mut name = vec![0; APPLICATION.len()];
    with_timeout(before.stream.read_exact(&mut name))
        .await
        .unwrap();
    before.echo().await;
    redirect.change(&[], &ports).await.unwrap();
    assert_eq!(
        identify_server_encrypted(&environment, to).await,
        APPLICATION
    );
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
