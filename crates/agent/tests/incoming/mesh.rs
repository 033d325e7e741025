//! Beside the rules of a mesh: what the sidecar sends on is redirected, never what it receives.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;

use agent::incoming::redirect::{Evidence, Mesh, Port};
use rustix::process::Uid;
use rustix::thread::set_thread_uid;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use crate::programs::{AGENT, APPLICATION, Application, Client, answer_all, who_answers};
use crate::world::{FROM_OUTSIDE, TARGET_IPV4, World, enter, socket_address, world};

const ISTIO: &str = include_str!("istio.rules");
const LINKERD: &str = include_str!("linkerd.rules");
/// Every byte on the wire is this far from its meaning. A sidecar encrypts; for a test, this is encryption enough.
const KEY: u8 = 0x55;

struct Sidecar {
    mesh: Mesh,
    rules: &'static str,
    user: u32,
    port: u16,
    /// From where it connects to the application.
    connects_from: Option<&'static str>,
}

const SIDECARS: [Sidecar; 2] = [
    Sidecar {
        mesh: Mesh::Istio,
        rules: ISTIO,
        user: 1337,
        port: 15_006,
        connects_from: Some("127.0.0.6"),
    },
    Sidecar {
        mesh: Mesh::Linkerd,
        rules: LINKERD,
        user: 2102,
        port: 4143,
        connects_from: None,
    },
];

/// A sidecar inside the target's network, with a user of its own as its rules want it.
fn start_sidecar(world: &World, sidecar: &'static Sidecar) {
    let pid = world.target.pid();
    let (listening, ready) = std::sync::mpsc::channel();
    // The thread ends with the test's process; its socket holds nothing but the network of the test.
    thread::spawn(move || {
        enter(pid);
        set_thread_uid(Uid::from_raw(sidecar.user)).expect("root may become anyone");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let listener = TcpListener::bind(("0.0.0.0", sidecar.port)).expect("the port is free");
            listener.set_nonblocking(true).expect("it is a socket");
            let listener = tokio::net::TcpListener::from_std(listener).expect("there is a runtime");
            listening.send(()).expect("the test waits");
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(pass_on(stream, sidecar));
            }
        });
    });
    ready.recv().expect("the sidecar listens");
}

async fn pass_on(client: TcpStream, sidecar: &Sidecar) {
    let socket = TcpSocket::new_v4().expect("there is IPv4");
    if let Some(address) = sidecar.connects_from {
        socket
            .bind(socket_address(address, 0))
            .expect("it is a local address");
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
    client.stream.read_exact(&mut name).await.expect("a name");
    client.stream.write_all(b"hello").await.expect("it works");
    let mut back = [0; 5];
    client.stream.read_exact(&mut back).await.expect("it works");
    assert_eq!(&back, b"hello");
    name.iter().map(|byte| char::from(byte ^ KEY)).collect()
}

async fn check(sidecar: &'static Sidecar, restore: &str) {
    let Some(world) = world() else { return };
    let mut application = Application::start(&world.target, 80);
    let _excluded = Application::start(&world.target, 81);
    start_sidecar(&world, sidecar);
    world.target.feed(restore, sidecar.rules);
    let to = socket_address(TARGET_IPV4, 80);
    assert_eq!(who_answers_encrypted(&world, to).await, APPLICATION);
    let through_sidecar = application.peers.recv().await.unwrap();
    let mut before = Client::connect(&world.client, to).await;

    let redirect = Arc::new(world.redirect().await);
    let ports = [Port::tcp(80), Port::tcp(81)];
    redirect.change(&ports, &[]).await.unwrap();
    assert_eq!(redirect.mesh().await.unwrap(), Some(sidecar.mesh));

    // The agent gets what the application would have got: plain text, from the sidecar.
    let (name, arrived) = tokio::join!(who_answers_encrypted(&world, to), async {
        let arrived = redirect.accept().await.unwrap();
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
    assert_eq!(checked.evidence, Evidence::Loopback);
    assert!(checked.to_string().contains("sidecar"), "{checked}");

    // The old connection goes on through the sidecar to the application.
    let mut name = vec![0; APPLICATION.len()];
    before.stream.read_exact(&mut name).await.unwrap();
    before.echo().await;
    redirect.change(&[], &ports).await.unwrap();
    assert_eq!(who_answers_encrypted(&world, to).await, APPLICATION);
    assert_eq!(FROM_OUTSIDE[0], TARGET_IPV4);
}

#[tokio::test]
#[ignore = "needs root"]
async fn istio_with_iptables_nft() {
    check(&SIDECARS[0], "iptables-nft-restore").await;
}

#[tokio::test]
#[ignore = "needs root"]
async fn istio_with_iptables_legacy() {
    check(&SIDECARS[0], "iptables-legacy-restore").await;
}

#[tokio::test]
#[ignore = "needs root"]
async fn linkerd_with_iptables_nft() {
    check(&SIDECARS[1], "iptables-nft-restore").await;
}

#[tokio::test]
#[ignore = "needs root"]
async fn linkerd_with_iptables_legacy() {
    check(&SIDECARS[1], "iptables-legacy-restore").await;
}
