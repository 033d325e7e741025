//! Several agents in one network: the first redirects a port, the others join it, and take over when it ends.

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

use crate::environment::{
    Environment, TARGET_IPV4, environment, rootless_environment, socket_address,
};
use crate::programs::{Client, with_timeout};
use crate::session::{Session, mirrored_port, whole_port, with_header};
use crate::web::{Site, get, serve, try_get};

const ADA: &str = "x-user: ada\r\n";
const GRACE: &str = "x-user: grace\r\n";
const EDSGER: &str = "x-user: edsger\r\n";

/// The PID of the target for `helper_process_agent`. Without it, `helper_process_agent` does nothing.
const TARGET: &str = "STANDIN_TEST_SHARING_TARGET";

/// Not a test of its own: an agent process that serves all connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root"]
async fn helper_process_agent() {
    if let Ok(target) = env::var(TARGET) {
        run_agent(&target).await;
    }
}

async fn run_agent(target: &str) {
    let agent = Agent::for_process(target.parse().unwrap()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("\nlistening on {}", listener.local_addr().unwrap());
    while let Ok((stream, _)) = listener.accept().await {
        let agent = agent.clone();
        stream.set_nodelay(true).unwrap();
        tokio::spawn(async move { agent.serve_connection(stream).await });
    }
}

/// An agent process, which a test can kill. It is killed when this is dropped.
pub(crate) struct AgentProcess {
    process: Child,
    address: SocketAddr,
}

impl AgentProcess {
    pub(crate) fn start(environment: &Environment) -> Self {
        let program = env::current_exe().expect("the program of the test");
        Self::start_with(environment, Command::new(program))
    }

    /// Starts an agent that has all rights over its target, and none over the machine.
    pub(crate) fn start_rootless(environment: &Environment) -> Self {
        let target = environment.target.pid().to_string();
        let mut command = Command::new("nsenter");
        command
            .args(["--user", "--target", &target])
            .arg(env::current_exe().expect("the program of the test"));
        Self::start_with(environment, command)
    }

    fn start_with(environment: &Environment, mut command: Command) -> Self {
        let mut process = command
            .args([
                "--exact",
                "sharing::helper_process_agent",
                "--ignored",
                "--nocapture",
            ])
            .env(TARGET, environment.target.pid().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it can be started");
        let stdout = BufReader::new(process.stdout.as_mut().expect("it is piped"));
        let mut lines = stdout.lines().map_while(Result::ok);
        let address = lines.find_map(|line| line.strip_prefix("listening on ")?.parse().ok());
        Self {
            address: address.expect("the agent prints its address"),
            process,
        }
    }

    pub(crate) async fn session(&self) -> Session {
        Session::over(self.connect().await).await
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address)
            .await
            .expect("the agent listens");
        stream.set_nodelay(true).expect("it is a socket");
        stream
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    fn signal(&self, signal: Signal) {
        let process = Pid::from_child(&self.process);
        kill_process(process, signal).expect("the agent is running");
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn sessions_of_two_agents_share_a_port() {
    let environment = environment();
    let _site = Site::start(&environment.target, 80, "original");
    let to = socket_address(TARGET_IPV4, 80);
    let ada = Session::of(&environment.agent()).await;
    let adas = ada.subscribe(with_header(80, "Ada", "x-user: ada"));
    let adas = adas.await.unwrap();
    let _serving_ada = adas.serve(|_, stream| serve(stream, "ada"));
    let grace = Session::of(&environment.agent()).await;
    let graces = grace.subscribe(with_header(80, "Grace", "x-user: grace"));
    let graces = graces.await.unwrap();
    let _serving_grace = graces.serve(|meta, stream| async move {
        assert_eq!(meta.server, socket_address(TARGET_IPV4, 80));
        serve(stream, "grace").await;
    });
    assert_eq!(get(&environment.client, to, "/", ADA).await, "ada / 0");
    assert_eq!(get(&environment.client, to, "/", GRACE).await, "grace / 0");
    assert_eq!(get(&environment.client, to, "/", "").await, "original / 0");

    // The first agent still redirects the port for the second. The next port is redirected by the second agent.
    drop(adas);
    assert_eq!(get(&environment.client, to, "/", GRACE).await, "grace / 0");
    assert_eq!(get(&environment.client, to, "/", ADA).await, "original / 0");
    let other = grace.subscribe(whole_port(81, "Grace")).await.unwrap();
    let _serving_other = other.serve(|_, stream| serve(stream, "grace"));
    let Err(failure) = ada.subscribe(whole_port(81, "Ada")).await else {
        panic!("expected a rejection");
    };
    assert!(failure.detail.contains("Grace"), "{failure:?}");
    let to_other = socket_address(TARGET_IPV4, 81);
    assert_eq!(
        get(&environment.client, to_other, "/", ADA).await,
        "grace / 0"
    );

    drop((graces, other));
    environment.wait_until_clean().await;
}

/// No application listens on the port, so a connection is refused when it is not redirected.
#[tokio::test]
#[ignore = "needs root"]
async fn a_port_is_released_when_the_end_of_its_last_subscription_is_confirmed() {
    let environment = environment();
    let to = socket_address(TARGET_IPV4, 80);
    for _ in 0..10 {
        let ada = Session::of(&environment.agent()).await;
        let mut adas = ada.subscribe(mirrored_port(80, "Ada")).await.unwrap();
        // The second agent joins the first.
        let grace = Session::of(&environment.agent()).await;
        let mut graces = grace.subscribe(mirrored_port(80, "Grace")).await.unwrap();
        adas.unsubscribe().await;
        assert_eq!(adas.event().await, None);
        adas.unsubscribe().await;
        Client::connect(&environment.client, to).await;
        graces.unsubscribe().await;
        assert_eq!(graces.event().await, None);
        let refused = environment
            .client
            .inside(|| std::net::TcpStream::connect(to));
        let refused = refused.unwrap_err().kind();
        assert_eq!(refused, std::io::ErrorKind::ConnectionRefused);
    }
    environment.wait_until_clean().await;
}

/// A stopped agent neither shares nor releases its port: a subscription fails after a timeout instead of waiting forever.
#[tokio::test]
#[ignore = "needs root"]
async fn the_error_names_a_stopped_agent_and_it_is_joined_when_it_continues() {
    let environment = environment();
    let stopped = AgentProcess::start(&environment);
    let ada = stopped.session().await;
    let adas = ada.subscribe(with_header(80, "Ada", "x-user: ada")).await;
    let _adas = adas.unwrap();
    let grace = Session::of(&environment.agent()).await;
    let request = || with_header(80, "Grace", "x-user: grace");
    stopped.signal(Signal::STOP);
    let Err(failure) = with_timeout(grace.subscribe(request())).await else {
        panic!("expected a failure");
    };
    let expected = "TCP port 80 of the target is already redirected by Ada";
    assert!(failure.detail.starts_with(expected), "{failure:?}");
    stopped.signal(Signal::CONT);
    grace.subscribe(request()).await.unwrap();
}

#[tokio::test]
#[ignore = "needs root"]
async fn the_order_of_claims_is_kept_when_another_agent_takes_over() {
    let environment = environment();
    let _site = Site::start(&environment.target, 80, "original");
    let to = socket_address(TARGET_IPV4, 80);
    let mut first = AgentProcess::start(&environment);
    let others = first.session().await;
    let _mirror = others.subscribe(mirrored_port(80, "Edsger")).await.unwrap();
    let (ada, grace) = (
        Session::of(&environment.agent()).await,
        Session::of(&environment.agent()).await,
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
    // Either of the two agents may take over.
    with_timeout(async { while get(&environment.client, to, "/", "").await != "ada / 0" {} }).await;
    drop(adas);
    let last = loop {
        match graces.event().await {
            Some(Event::Earlier(earlier)) if earlier.sessions.is_empty() => {
                if get(&environment.client, to, "/", "").await == "grace / 0" {
                    break "grace";
                }
            }
            Some(_) => {}
            None => break "none",
        }
    };
    assert_eq!(last, "grace");
}

#[tokio::test]
#[ignore = "needs root"]
async fn rights_over_the_network_of_the_target_are_sufficient() {
    let environment = rootless_environment();
    let _site = Site::start(&environment.target, 80, "original");
    let to = socket_address(TARGET_IPV4, 80);
    let (mut first, second) = (
        AgentProcess::start_rootless(&environment),
        AgentProcess::start_rootless(&environment),
    );
    let (ada, grace) = (first.session().await, second.session().await);
    let adas = ada.subscribe(with_header(80, "Ada", "x-user: ada"));
    let adas = adas.await.unwrap();
    let _serving_ada = adas.serve(|_, stream| serve(stream, "ada"));
    let graces = grace.subscribe(with_header(80, "Grace", "x-user: grace"));
    let graces = graces.await.unwrap();
    let _serving_grace = graces.serve(|_, stream| serve(stream, "grace"));
    for (header, response) in [(ADA, "ada / 0"), (GRACE, "grace / 0"), ("", "original / 0")] {
        assert_eq!(get(&environment.client, to, "/", header).await, response);
    }
    first.kill();
    let taken_over =
        async { while get(&environment.client, to, "/", GRACE).await != "grace / 0" {} };
    with_timeout(taken_over).await;
    drop(graces);
    environment.wait_until_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root"]
async fn when_the_agent_that_redirects_is_killed_under_load_another_takes_over() {
    let environment = environment();
    let _site = Site::start(&environment.target, 80, "original");
    let to = socket_address(TARGET_IPV4, 80);
    let mut first = AgentProcess::start(&environment);
    let ada = first.session().await;
    let adas = ada.subscribe(with_header(80, "Ada", "x-user: ada"));
    let adas = adas.await.unwrap();
    let _serving_ada = adas.serve(|_, stream| serve(stream, "ada"));
    // Two other agents join.
    let mut others = Vec::new();
    for name in ["grace", "edsger"] {
        let session = Session::of(&environment.agent()).await;
        let request = with_header(80, name, &format!("x-user: {name}"));
        let subscription = session.subscribe(request).await.unwrap();
        let serving = subscription.serve(move |_, stream| serve(stream, name));
        others.push((subscription, serving));
    }
    assert_eq!(get(&environment.client, to, "/", ADA).await, "ada / 0");
    for (header, response) in [(GRACE, "grace / 0"), (EDSGER, "edsger / 0")] {
        assert_eq!(get(&environment.client, to, "/", header).await, response);
    }

    let is_dead = AtomicBool::new(false);
    let load = async {
        let (mut lost, mut responses) = (0, 0);
        while responses < 50 {
            let began_after = is_dead.load(Ordering::SeqCst);
            match try_get(&environment.client, to, "/", GRACE).await {
                // Only requests that were in progress are lost with the agent.
                Err(error) => {
                    assert!(!began_after, "{error}");
                    lost += 1;
                }
                Ok(_) => responses += usize::from(began_after),
            }
        }
        eprintln!("{lost} requests were lost with the agent");
    };
    let kill = async {
        let killed = tokio::task::spawn_blocking(move || first.kill());
        killed.await.unwrap();
        is_dead.store(true, Ordering::SeqCst);
    };
    with_timeout(async { tokio::join!(load, kill) }).await;
    for (header, expected) in [(GRACE, "grace / 0"), (EDSGER, "edsger / 0")] {
        let taken_over =
            async { while get(&environment.client, to, "/", header).await != expected {} };
        with_timeout(taken_over).await;
    }
    assert_eq!(get(&environment.client, to, "/", ADA).await, "original / 0");
    assert_eq!(get(&environment.client, to, "/", GRACE).await, "grace / 0");
    drop(others);
    environment.wait_until_clean().await;
}

#[tokio::test]
#[ignore = "needs root"]
async fn an_agent_that_shuts_down_hands_over_and_completes_active_requests() {
    let environment = environment();
    let _site = Site::start(&environment.target, 80, "original");
    let to = socket_address(TARGET_IPV4, 80);
    let first = environment.agent();
    let ada = Session::of(&first).await;
    let adas = ada.subscribe(with_header(80, "Ada", "x-user: ada"));
    let mut adas = adas.await.unwrap();
    let grace = Session::of(&environment.agent()).await;
    let graces = grace.subscribe(with_header(80, "Grace", "x-user: grace"));
    let graces = graces.await.unwrap();

    // Grace's session has an active request, and another connection is idle.
    let mut idle = Client::connect(&environment.client, to).await;
    let request = b"GET /idle HTTP/1.1\r\nhost: shop\r\n\r\n";
    idle.stream.write_all(request).await.unwrap();
    let mut response = [0; 1024];
    let length = with_timeout(idle.stream.read(&mut response)).await.unwrap();
    assert!(response[..length].ends_with(b"original /idle 0"));
    let slow_request = get(&environment.client, to, "/slow", GRACE);
    let responding = async {
        let stolen = graces.accept().await.unwrap();
        let ending = tokio::spawn(async move { first.end().await });
        assert_eq!(adas.event().await, Some(Event::TrafficSeen(true)));
        assert_eq!(adas.event().await, None);
        // The agent closes the idle connection, and waits for the active one.
        assert_eq!(
            with_timeout(idle.stream.read(&mut response)).await.unwrap(),
            0
        );
        assert!(!ending.is_finished());
        serve(stolen.into_stream().await, "grace").await;
        with_timeout(ending).await.unwrap();
    };
    let (response, ()) = tokio::join!(slow_request, responding);
    assert_eq!(response, "grace /slow 0");
    let _serving = graces.serve(|_, stream| serve(stream, "grace"));
    let taken_over =
        async { while get(&environment.client, to, "/", GRACE).await != "grace / 0" {} };
    with_timeout(taken_over).await;
    drop(graces);
    environment.wait_until_clean().await;
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_peer_without_the_secret_is_rejected() {
    let environment = environment();
    let ada = Session::of(&environment.agent()).await;
    let _adas = ada.subscribe(whole_port(80, "Ada")).await.unwrap();
    // The kernel stores the secret with the claim of the port, and shows it only to processes with NET_ADMIN.
    let table = "nft list table inet standin-tcp-80";
    let shown = environment.target.run(table);
    assert!(shown.contains("standin-tcp-80"), "{shown}");
    let ordinary = "setpriv --reuid=65534 --regid=65534 --clear-groups";
    let mut refused = environment.target.command(&format!("{ordinary} {table}"));
    let refused = refused.stderr(Stdio::null()).status().unwrap();
    assert!(!refused.success());
    let sockets =
        fs::read_to_string(format!("/proc/{}/net/unix", environment.target.pid())).unwrap();
    let name = sockets.split('@').find(|name| name.starts_with("standin-"));
    let name = name.unwrap().split_whitespace().next().unwrap();
    let address = std_unix::SocketAddr::from_abstract_name(name).unwrap();
    let stream = environment.target.inside(|| {
        let stream = std_unix::UnixStream::connect_addr(&address).unwrap();
        stream.set_nonblocking(true).unwrap();
        stream
    });
    // A nonce, a wrong proof, and the start of the session protocol.
    let message = [&[7; 16 + 32][..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"].concat();
    let mut stream = UnixStream::from_std(stream).unwrap();
    stream.write_all(&message).await.unwrap();
    let mut response = Vec::new();
    // The connection is closed, or reset because of unread bytes.
    let _ = with_timeout(stream.read_to_end(&mut response)).await;
    // Only the nonce and the proof of the other side.
    assert_eq!(response.len(), 16 + 32);
}
