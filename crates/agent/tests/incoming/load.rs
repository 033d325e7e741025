//! Many connections, and changes of the redirection meanwhile.

use std::env;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;

use agent::incoming::redirect::{Port, RedirectEvidence};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;

use crate::environment::{FROM_OUTSIDE, TARGET_IPV4, enter, environment, socket_address};
use crate::programs::{AGENT, APPLICATION, Application, Client, echo_all, socket, with_timeout};
use crate::session::{whole_port, with_header};
use crate::sharing::AgentProcess;
use crate::web::{Site, serve};

const CLIENTS: usize = 8;
const CONNECTIONS_OF_EACH: usize = 500;
const MANY: usize = 10_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs root"]
async fn no_connection_fails_while_ports_are_added_and_removed() {
    let environment = environment();
    admission::raise_descriptor_limit().unwrap();
    let _application = Application::start(&environment.target, 80);
    let redirect = Arc::new(environment.redirect().await);
    echo_all(&redirect);
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..CLIENTS {
        let to = socket_address(FROM_OUTSIDE[number % FROM_OUTSIDE.len()], 80);
        let sockets = environment.client.inside(|| {
            let sockets = (0..CONNECTIONS_OF_EACH).map(|_| socket(to));
            sockets.collect::<Vec<_>>()
        });
        clients.spawn(connect_all(sockets, to));
    }
    let (mut changes, mut by_agent, mut by_application) = (0, 0, 0);
    while !clients.is_empty() {
        redirect.add_port(Port::tcp(80)).await.unwrap();
        redirect.remove_port(Port::tcp(80)).await.unwrap();
        changes += 2;
        while let Some(ended) = clients.try_join_next() {
            let (agent, application) = ended.expect("no connection failed");
            by_agent += agent;
            by_application += application;
        }
    }
    eprintln!("{changes} changes, {by_agent} connections to the agent, {by_application} others");
    assert_eq!(by_agent + by_application, CLIENTS * CONNECTIONS_OF_EACH);
    assert!(by_agent > 0 && by_application > 0 && changes > 10);
    for network in [&environment.client, &environment.target] {
        assert_eq!(network.tcp_counter("AttemptFails"), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs root"]
async fn no_connection_fails_while_agents_start_and_end() {
    let environment = environment();
    admission::raise_descriptor_limit().unwrap();
    let _application = Application::start(&environment.target, 80);
    let to = socket_address(TARGET_IPV4, 80);
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..CLIENTS {
        let sockets = environment.client.inside(|| {
            let sockets = (0..CONNECTIONS_OF_EACH).map(|_| socket(to));
            sockets.collect::<Vec<_>>()
        });
        clients.spawn(connect_all(sockets, to));
    }
    let (mut agents, mut by_agent) = (0, 0);
    while !clients.is_empty() {
        let redirect = Arc::new(environment.redirect().await);
        let echoing = echo_all(&redirect);
        redirect.add_port(Port::tcp(80)).await.unwrap();
        while redirect.evidence(Port::tcp(80)) == RedirectEvidence::Unverified
            && !clients.is_empty()
        {
            while let Some(ended) = clients.try_join_next() {
                by_agent += ended.expect("no connection failed").0;
            }
            tokio::task::yield_now().await;
        }
        redirect.drain().await.unwrap();
        echoing.abort();
        agents += 1;
    }
    eprintln!("{agents} agents, {by_agent} connections to them");
    assert!(by_agent >= agents - 1 && agents > 2);
    for network in [&environment.client, &environment.target] {
        assert_eq!(network.tcp_counter("AttemptFails"), 0);
    }
}

/// Returns how many connections the agent accepted, and how many the application.
async fn connect_all(sockets: Vec<TcpSocket>, to: SocketAddr) -> (usize, usize) {
    let (mut agent, mut application) = (0, 0);
    for socket in sockets {
        let mut client = Client::connect_with(socket, to).await;
        match client.server_name().await.as_str() {
            AGENT => agent += 1,
            APPLICATION => application += 1,
            other => panic!("{other}"),
        }
        client.echo().await;
    }
    (agent, application)
}

/// The PID of a process in the network for `helper_process_clients`. Without it, `helper_process_clients` does nothing.
const CLIENTS_NETWORK: &str = "STANDIN_TEST_REDIRECT_CLIENTS";

/// Not a test of its own: the process of many clients. It is a separate process because one process may not have enough file
/// descriptors for both ends.
#[test]
#[ignore = "needs root"]
fn helper_process_clients() {
    if let Ok(network) = env::var(CLIENTS_NETWORK) {
        run_clients(&network);
    }
}

fn run_clients(network: &str) {
    admission::raise_descriptor_limit().unwrap();
    enter(network.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let to = socket_address(TARGET_IPV4, 80);
        let mut clients = Vec::new();
        for _ in 0..MANY {
            let mut client = Client::connect_with(socket(to), to).await;
            assert_eq!(client.server_name().await, AGENT);
            clients.push(client);
        }
        println!("\nconnected");
        std::io::stdin().read_line(&mut String::new()).unwrap();
        for client in &mut clients {
            client.echo().await;
        }
        println!("\nechoed");
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root"]
async fn ten_thousand_connections_at_a_time() {
    let environment = environment();
    admission::raise_descriptor_limit().unwrap();
    let redirect = Arc::new(environment.redirect().await);
    redirect.add_port(Port::tcp(80)).await.unwrap();
    echo_all(&redirect);
    let mut clients = Command::new(env::current_exe().unwrap())
        .args([
            "--exact",
            "load::helper_process_clients",
            "--ignored",
            "--nocapture",
        ])
        .env(CLIENTS_NETWORK, environment.client.pid().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = clients.stdin.take().unwrap();
    let stdout = BufReader::new(clients.stdout.take().unwrap());
    let mut lines = stdout.lines().map_while(Result::ok);
    assert!(lines.any(|line| line == "connected"));
    // All connections stay open when the port is no longer redirected.
    redirect.remove_port(Port::tcp(80)).await.unwrap();
    writeln!(stdin).unwrap();
    assert!(lines.any(|line| line == "echoed"));
    clients.wait().unwrap();
}

/// The anonymous memory of a process, in KiB.
pub(crate) fn memory(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:"));
    let number = line.unwrap().split_whitespace().nth(1).unwrap();
    number.parse().unwrap()
}

/// Prints the memory usage. It is not asserted, because it depends on the build.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root"]
async fn a_thousand_idle_connections() {
    let environment = environment();
    admission::raise_descriptor_limit().unwrap();
    let _site = Site::start(&environment.target, 80, "original");
    let _application = Application::start(&environment.target, 81);
    let agent = AgentProcess::start(&environment);
    let session = agent.session().await;
    let filtered = session.subscribe(with_header(80, "Ada", "x-user: ada"));
    let filtered = filtered.await.unwrap();
    let _serving = filtered.serve(|_, stream| serve(stream, "ada"));
    let whole = session.subscribe(whole_port(81, "Ada")).await.unwrap();
    let _serving_whole = whole.serve(|_, stream| serve(stream, "ada"));
    let request = |header: &str| format!("GET / HTTP/1.1\r\nhost: shop\r\n{header}\r\n");
    for (kind, port, header) in [
        ("unmatched", 80, ""),
        ("matched", 80, "x-user: ada\r\n"),
        ("whole", 81, ""),
    ] {
        let before = memory(agent.pid());
        let to = socket_address(TARGET_IPV4, port);
        let mut clients = Vec::new();
        for _ in 0..1000 {
            let mut client = Client::connect(&environment.client, to).await;
            client
                .stream
                .write_all(request(header).as_bytes())
                .await
                .unwrap();
            let mut response = [0; 256];
            let length = with_timeout(client.stream.read(&mut response))
                .await
                .unwrap();
            assert!(response[..length].ends_with(b" / 0"));
            clients.push(client);
        }
        let after = memory(agent.pid());
        eprintln!("1000 idle connections, {kind}: {before} KiB before, {after} KiB with them");
    }
}
