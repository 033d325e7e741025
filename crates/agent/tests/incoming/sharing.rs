//! Several agents in one network: the first redirects a port, the others join it, and take over when it is gone.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net as std_unix;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::{env, fs};

use agent::Agent;
use protocol::rpc::subscribe_event::Event;
use protocol::rpc::{OnConflict, SubscribeRequest};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};

use crate::programs::{Client, soon};
use crate::session::{Session, copy_of, whole_port, with_header};
use crate::web::{Site, ask, serve, try_ask};
use crate::world::{TARGET_IPV4, World, rootless_world, socket_address, world};

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
        let program = env::current_exe().expect("the test's own program");
        Self::start_with(world, Command::new(program))
    }

    /// One that has all rights over its target, and none over the machine.
    pub(crate) fn start_rootless(world: &World) -> Self {
        let target = world.target.pid().to_string();
        let mut command = Command::new("nsenter");
        command
            .args(["--user", "--target", &target])
            .arg(env::current_exe().expect("the test's own program"));
        Self::start_with(world, command)
    }

    fn start_with(world: &World, mut command: Command) -> Self {
        let mut process = command
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

    fn signal(&self, signal: Signal) {
        let process = Pid::from_child(&self.process);
        kill_process(process, signal).expect("it is there");
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

/// It has the port, and neither shares it nor gives it back: whoever asks is not kept waiting for ever.
#[tokio::test]
#[ignore = "needs root"]
async fn an_agent_that_is_stuck_is_named_and_joined_when_it_goes_on() {
    let Some(world) = world() else { return };
    let stuck = OwnProcess::start(&world);
    let ada = stuck.session().await;
    let adas = ada.subscribe(with_header(80, "Ada", "x-user: ada")).await;
    let _adas = adas.unwrap();
    let grace = Session::of(&world.agent()).await;
    let wanted = || with_header(80, "Grace", "x-user: grace");
    stuck.signal(Signal::STOP);
    let Err(failure) = soon(grace.subscribe(wanted())).await else {
        panic!("nobody shares it");
    };
    let expected = "TCP port 80 of the target is already redirected by Ada";
    assert!(failure.detail.starts_with(expected), "{failure:?}");
    stuck.signal(Signal::CONT);
    grace.subscribe(wanted()).await.unwrap();
}

#[tokio::test]
#[ignore = "needs root"]
async fn who_was_there_before_still_is_when_another_agent_takes_over() {
    let Some(world) = world() else { return };
    let _site = Site::start(&world.target, 80, "original");
    let to = socket_address(TARGET_IPV4, 80);
    let mut first = OwnProcess::start(&world);
    let others = first.session().await;
    let _copies = others.subscribe(copy_of(80, "Edsger")).await.unwrap();
    let (ada, grace) = (
        Session::of(&world.agent()).await,
        Session::of(&world.agent()).await,
    );
    let adas = ada.subscribe(whole_port(80, "Ada")).await.unwrap();
    let _serving_ada = adas.serve(|_, stream| serve(stream, "ada"));
    let after = SubscribeRequest {
        on_conflict: OnConflict::Continue.into(),
        ..whole_port(80, "Grace")
    };
    let mut graces = grace.subscribe(after).await.unwrap();
    let _serving_grace = graces.serve(|_, stream| serve(stream, "grace"));
    assert_eq!(graces.subscribed.earlier.len(), 1);
    first.kill();
    // Whichever of the two agents is the next.
    soon(async { while ask(&world.client, to, "/", "").await != "ada / 0" {} }).await;
    drop(adas);
    let last = loop {
        match graces.event().await {
            Some(Event::Earlier(earlier)) if earlier.sessions.is_empty() => {
                if ask(&world.client, to, "/", "").await == "grace / 0" {
                    break "grace";
                }
            }
            Some(_) => {}
            None => break "nobody",
        }
    };
    assert_eq!(last, "grace");
}

#[tokio::test]
#[ignore = "needs root"]
async fn rights_over_the_targets_own_network_are_enough() {
    let Some(world) = rootless_world() else {
        return;
    };
    let _site = Site::start(&world.target, 80, "original");
    let to = socket_address(TARGET_IPV4, 80);
    let (mut first, second) = (
        OwnProcess::start_rootless(&world),
        OwnProcess::start_rootless(&world),
    );
    let (ada, grace) = (first.session().await, second.session().await);
    let adas = ada.subscribe(with_header(80, "Ada", "x-user: ada"));
    let adas = adas.await.unwrap();
    let _serving_ada = adas.serve(|_, stream| serve(stream, "ada"));
    let graces = grace.subscribe(with_header(80, "Grace", "x-user: grace"));
    let graces = graces.await.unwrap();
    let _serving_grace = graces.serve(|_, stream| serve(stream, "grace"));
    for (header, answer) in [(ADA, "ada / 0"), (GRACE, "grace / 0"), ("", "original / 0")] {
        assert_eq!(ask(&world.client, to, "/", header).await, answer);
    }
    first.kill();
    let taken_over = async { while ask(&world.client, to, "/", GRACE).await != "grace / 0" {} };
    soon(taken_over).await;
    drop(graces);
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

    let is_dead = AtomicBool::new(false);
    let load = async {
        let (mut lost, mut answered) = (0, 0);
        while answered < 50 {
            let began_after = is_dead.load(Ordering::SeqCst);
            match try_ask(&world.client, to, "/", GRACE).await {
                // What was under way is lost with the agent, and nothing else.
                Err(error) => {
                    assert!(!began_after, "{error}");
                    lost += 1;
                }
                Ok(_) => answered += usize::from(began_after),
            }
        }
        eprintln!("{lost} requests were lost with the agent");
    };
    let kill = async {
        let killed = tokio::task::spawn_blocking(move || first.kill());
        killed.await.unwrap();
        is_dead.store(true, Ordering::SeqCst);
    };
    soon(async { tokio::join!(load, kill) }).await;
    for (header, expected) in [(GRACE, "grace / 0"), (EDSGER, "edsger / 0")] {
        let taken_over = async { while ask(&world.client, to, "/", header).await != expected {} };
        soon(taken_over).await;
    }
    assert_eq!(ask(&world.client, to, "/", ADA).await, "original / 0");
    assert_eq!(ask(&world.client, to, "/", GRACE).await, "grace / 0");
    drop(others);
    world.nothing_is_left().await;
}

#[tokio::test]
#[ignore = "needs root"]
async fn an_agent_that_ends_hands_over_and_breaks_nothing_that_is_under_way() {
    let Some(world) = world() else { return };
    let _site = Site::start(&world.target, 80, "original");
    let to = socket_address(TARGET_IPV4, 80);
    let first = world.agent();
    let ada = Session::of(&first).await;
    let adas = ada.subscribe(with_header(80, "Ada", "x-user: ada"));
    let mut adas = adas.await.unwrap();
    let grace = Session::of(&world.agent()).await;
    let graces = grace.subscribe(with_header(80, "Grace", "x-user: grace"));
    let graces = graces.await.unwrap();

    // Grace thinks about a request, and somebody else's connection is idle.
    let mut idle = Client::connect(&world.client, to).await;
    let request = b"GET /idle HTTP/1.1\r\nhost: shop\r\n\r\n";
    idle.stream.write_all(request).await.unwrap();
    let mut answer = [0; 1024];
    let length = soon(idle.stream.read(&mut answer)).await.unwrap();
    assert!(answer[..length].ends_with(b"original /idle 0"));
    let asking = ask(&world.client, to, "/slow", GRACE);
    let thinking = async {
        let taken = graces.accept().await.unwrap();
        let ending = tokio::spawn(async move { first.end().await });
        assert_eq!(adas.event().await, Some(Event::TrafficSeen(true)));
        assert_eq!(adas.event().await, None);
        // The idle connection ends, and the agent waits for the other.
        assert_eq!(soon(idle.stream.read(&mut answer)).await.unwrap(), 0);
        assert!(!ending.is_finished());
        serve(taken.into_stream().await, "grace").await;
        soon(ending).await.unwrap();
    };
    let (answer, ()) = tokio::join!(asking, thinking);
    assert_eq!(answer, "grace /slow 0");
    let _serving = graces.serve(|_, stream| serve(stream, "grace"));
    let taken_over = async { while ask(&world.client, to, "/", GRACE).await != "grace / 0" {} };
    soon(taken_over).await;
    drop(graces);
    world.nothing_is_left().await;
}

#[tokio::test]
#[ignore = "needs root"]
async fn who_does_not_know_the_secret_gets_nothing() {
    let Some(world) = world() else { return };
    let ada = Session::of(&world.agent()).await;
    let _adas = ada.subscribe(whole_port(80, "Ada")).await.unwrap();
    // The kernel keeps it with the claim on the port, and tells it to nobody without rights over the network.
    let table = "nft list table inet standin-tcp-80";
    let shown = world.target.run(table);
    assert!(shown.contains("standin-tcp-80"), "{shown}");
    let ordinary = "setpriv --reuid=65534 --regid=65534 --clear-groups";
    let mut refused = world.target.command(&format!("{ordinary} {table}"));
    let refused = refused.stderr(Stdio::null()).status().unwrap();
    assert!(!refused.success());
    let sockets = fs::read_to_string(format!("/proc/{}/net/unix", world.target.pid())).unwrap();
    let name = sockets.split('@').find(|name| name.starts_with("standin-"));
    let name = name.unwrap().split_whitespace().next().unwrap();
    let address = std_unix::SocketAddr::from_abstract_name(name).unwrap();
    let stream = world.target.inside(|| {
        let stream = std_unix::UnixStream::connect_addr(&address).unwrap();
        stream.set_nonblocking(true).unwrap();
        stream
    });
    // A number, as many bytes as a proof has, then what would follow.
    let said = [&[7; 16 + 32][..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"].concat();
    let mut stream = UnixStream::from_std(stream).unwrap();
    stream.write_all(&said).await.unwrap();
    let mut answer = Vec::new();
    // Closed, or reset because something was not read.
    let _ = soon(stream.read_to_end(&mut answer)).await;
    // The other side's number and its proof, and nothing more.
    assert_eq!(answer.len(), 16 + 32);
}
