//! Several agents in one network: the first redirects a port, the others join it, and take over when it is gone.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net as std_unix;
use std::process::{Child, Command, Stdio};
use std::{env, fs};

use agent::Agent;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};

use crate::programs::soon;
use crate::session::{Session, whole_port, with_header};
use crate::web::{Site, ask, serve, try_ask};
use crate::world::{TARGET_IPV4, World, socket_address, world};

const ADA: &str = "x-user: ada\r\n";
const GRACE: &str = "x-user: grace\r\n";
const EDSGER: &str = "x-user: edsger\r\n";

/// Tells the role below whose agent to be. Without it, it does nothing.
const TARGET: &str = "STANDIN_TEST_SHARING_TARGET";

/// An agent in a process of its own, for whoever connects.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root"]
async fn role_agent() {
    let Ok(target) = env::var(TARGET) else { return };
    let agent = Agent::for_process(target.parse().unwrap()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("\nlistening on {}", listener.local_addr().unwrap());
    while let Ok((stream, _)) = listener.accept().await {
        let agent = agent.clone();
        stream.set_nodelay(true).unwrap();
        tokio::spawn(async move { agent.serve_connection(stream).await });
    }
}

/// An agent that can be killed. It is, at the latest when the test ends.
pub(crate) struct OwnProcess {
    process: Child,
    address: SocketAddr,
}

impl OwnProcess {
    pub(crate) fn start(world: &World) -> Self {
        let mut process = Command::new(env::current_exe().expect("the test's own program"))
            .args(["--exact", "sharing::role_agent", "--ignored", "--nocapture"])
            .env(TARGET, world.target.pid().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it can be started");
        let stdout = BufReader::new(process.stdout.as_mut().expect("it is piped"));
        let mut lines = stdout.lines().map_while(Result::ok);
        let address = lines.find_map(|line| line.strip_prefix("listening on ")?.parse().ok());
        Self {
            address: address.expect("the agent says where it listens"),
            process,
        }
    }

    pub(crate) async fn session(&self) -> Session {
        let stream = TcpStream::connect(self.address).await.expect("it listens");
        stream.set_nodelay(true).expect("it is a socket");
        Session::over(stream).await
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for OwnProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn sessions_of_two_agents_share_a_port() {
    let Some(world) = world() else { return };
    let _site = Site::start(&world.target, 80, "original");
    let to = socket_address(TARGET_IPV4, 80);
    let ada = Session::of(&world.agent()).await;
    let adas = ada.subscribe(with_header(80, "Ada", "x-user: ada"));
    let adas = adas.await.unwrap();
    let _serving_ada = adas.serve(|_, stream| serve(stream, "ada"));
    let grace = Session::of(&world.agent()).await;
    let graces = grace.subscribe(with_header(80, "Grace", "x-user: grace"));
    let graces = graces.await.unwrap();
    let _serving_grace = graces.serve(|arrived, stream| async move {
        assert_eq!(arrived.server, socket_address(TARGET_IPV4, 80));
        serve(stream, "grace").await;
    });
    assert_eq!(ask(&world.client, to, "/", ADA).await, "ada / 0");
    assert_eq!(ask(&world.client, to, "/", GRACE).await, "grace / 0");
    assert_eq!(ask(&world.client, to, "/", "").await, "original / 0");

    // The first agent goes on to redirect the port for the second, and the other way round for the next port.
    drop(adas);
    assert_eq!(ask(&world.client, to, "/", GRACE).await, "grace / 0");
    assert_eq!(ask(&world.client, to, "/", ADA).await, "original / 0");
    let other = grace.subscribe(whole_port(81, "Grace")).await.unwrap();
    let _serving_other = other.serve(|_, stream| serve(stream, "grace"));
    let Err(failure) = ada.subscribe(whole_port(81, "Ada")).await else {
        panic!("it is refused");
    };
    assert!(failure.detail.contains("Grace"), "{failure:?}");
    let to_other = socket_address(TARGET_IPV4, 81);
    assert_eq!(ask(&world.client, to_other, "/", ADA).await, "grace / 0");

    drop((graces, other));
    world.nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root"]
async fn when_the_agent_that_redirects_is_killed_under_load_another_takes_over() {
    let Some(world) = world() else { return };
    let _site = Site::start(&world.target, 80, "original");
    let to = socket_address(TARGET_IPV4, 80);
    let mut first = OwnProcess::start(&world);
    let ada = first.session().await;
    let adas = ada.subscribe(with_header(80, "Ada", "x-user: ada"));
    let adas = adas.await.unwrap();
    let _serving_ada = adas.serve(|_, stream| serve(stream, "ada"));
    // Two others wait for their turn.
    let mut others = Vec::new();
    for name in ["grace", "edsger"] {
        let session = Session::of(&world.agent()).await;
        let wanted = with_header(80, name, &format!("x-user: {name}"));
        let subscription = session.subscribe(wanted).await.unwrap();
        let serving = subscription.serve(move |_, stream| serve(stream, name));
        others.push((subscription, serving));
    }
    assert_eq!(ask(&world.client, to, "/", ADA).await, "ada / 0");
    for (header, answer) in [(GRACE, "grace / 0"), (EDSGER, "edsger / 0")] {
        assert_eq!(ask(&world.client, to, "/", header).await, answer);
    }

    let mut answers = Vec::new();
    let load = async {
        for _ in 0..50 {
            answers.push(try_ask(&world.client, to, "/", GRACE).await);
        }
    };
    let kill = async {
        tokio::task::spawn_blocking(move || first.kill()).await.unwrap();
    };
    tokio::join!(load, kill);
    // What was under way is lost with the agent; nothing else is.
    let lost = answers.iter().filter(|answer| answer.is_err()).count();
    assert!(lost <= 1, "{answers:?}");
    for (header, expected) in [(GRACE, "grace / 0"), (EDSGER, "edsger / 0")] {
        let taken_over = async {
            while ask(&world.client, to, "/", header).await != expected {}
        };
        soon(taken_over).await;
    }
    assert_eq!(ask(&world.client, to, "/", ADA).await, "original / 0");
    assert_eq!(ask(&world.client, to, "/", GRACE).await, "grace / 0");
    drop(others);
    world.nothing_is_left().await;
}

#[tokio::test]
#[ignore = "needs root"]
async fn who_does_not_know_the_secret_gets_nothing() {
    let Some(world) = world() else { return };
    let ada = Session::of(&world.agent()).await;
    let _adas = ada.subscribe(whole_port(80, "Ada")).await.unwrap();
    let sockets = fs::read_to_string(format!("/proc/{}/net/unix", world.target.pid())).unwrap();
    let name = sockets.split('@').find(|name| name.starts_with("standin-"));
    let name = name.unwrap().split_whitespace().next().unwrap();
    let address = std_unix::SocketAddr::from_abstract_name(name).unwrap();
    let mut stream = world.target.inside(|| {
        let stream = std_unix::UnixStream::connect_addr(&address).unwrap();
        stream.set_nonblocking(true).unwrap();
        stream
    });
    // As many bytes as a secret has, then what would follow.
    let said = [&[7; 16][..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"].concat();
    let mut stream = UnixStream::from_std(std::mem::replace(
        &mut stream,
        std_unix::UnixStream::pair().unwrap().0,
    ))
    .unwrap();
    stream.write_all(&said).await.unwrap();
    let mut answer = Vec::new();
    // Closed, or reset because something was not read.
    let _ = soon(stream.read_to_end(&mut answer)).await;
    assert_eq!(answer, b"");
}
