//! The agent is killed, or lacks a capability.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::{env, fs, thread};

use agent::Agent;
use agent::incoming::redirect::{Port, Redirect};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use crate::environment::{Environment, FROM_OUTSIDE, environment, socket_address};
use crate::programs::{AGENT, APPLICATION, Application, echo, identify_server};

/// The PID of the target for `helper_process_agent`. Without it, `helper_process_agent` does nothing.
const TARGET: &str = "STANDIN_TEST_REDIRECT_TARGET";

/// Not a test of its own: the agent process that the tests below start.
#[tokio::test]
#[ignore = "needs root"]
async fn helper_process_agent() {
    if let Ok(target) = env::var(TARGET) {
        run_agent(&target).await;
    }
}

async fn run_agent(target: &str) {
    let agent = Agent::for_process(target.parse().unwrap()).unwrap();
    let redirect = Redirect::new(&agent, "a process").await.unwrap();
    let ports = [Port::tcp(80), Port::udp(80)];
    redirect.change(&ports, &[]).await.unwrap();
    println!("\nready");
    while let Ok(connection) = redirect.accept().await {
        tokio::spawn(echo(connection.stream, AGENT));
    }
}

fn start_agent(environment: &Environment) -> Child {
    let mut agent = Command::new(env::current_exe().expect("the program of the test"))
        .args([
            "--exact",
            "faults::helper_process_agent",
            "--ignored",
            "--nocapture",
        ])
        .env(TARGET, environment.target.pid().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it can be started");
    let stdout = BufReader::new(agent.stdout.as_mut().expect("it is piped"));
    let mut lines = stdout.lines().map_while(Result::ok);
    assert!(lines.any(|line| line == "ready"), "the agent is ready");
    agent
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_killed_agent_leaves_nothing_behind() {
    let environment = environment();
    let _application = Application::start(&environment.target, 80);
    let before = environment.tables();
    for _ in 0..3 {
        let mut agent = start_agent(&environment);
        for address in FROM_OUTSIDE {
            let to = socket_address(address, 80);
            assert_eq!(identify_server(&environment.client, to).await, AGENT);
        }
        assert_ne!(environment.tables(), before);
        agent.kill().unwrap();
        agent.wait().unwrap();
        assert_eq!(environment.tables(), before);
        for address in FROM_OUTSIDE {
            let to = socket_address(address, 80);
            assert_eq!(identify_server(&environment.client, to).await, APPLICATION);
        }
    }
    let sockets =
        fs::read_to_string(format!("/proc/{}/net/tcp", environment.target.pid())).unwrap();
    // 192.0.2.1, the address of the agent's listeners.
    assert!(!sockets.contains("010200C0"), "{sockets}");
}

#[tokio::test]
#[ignore = "needs root"]
async fn other_programs_cannot_flush_the_rules() {
    let environment = environment();
    let mut agent = start_agent(&environment);
    environment.target.run("nft flush ruleset");
    let to = socket_address(FROM_OUTSIDE[0], 80);
    assert_eq!(identify_server(&environment.client, to).await, AGENT);
    agent.kill().unwrap();
    agent.wait().unwrap();
}

/// Runs a future with only these capabilities.
fn with_capabilities<T: Send>(
    capability_set: CapabilitySet,
    act: impl AsyncFnOnce() -> T + Send,
) -> T {
    let run = || {
        let mut sets = capabilities(None).unwrap();
        sets.effective = capability_set;
        sets.permitted = capability_set;
        set_capabilities(None, sets).unwrap();
        // Threads of the runtime and of the agent inherit the capabilities of this one.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(act())
    };
    thread::scope(|scope| scope.spawn(run).join().unwrap())
}

/// The capabilities to inspect a target, and to enter its network.
const TO_ENTER: CapabilitySet = CapabilitySet::SYS_PTRACE.union(CapabilitySet::SYS_ADMIN);

#[test]
#[ignore = "needs root"]
fn a_missing_capability_is_named() {
    let environment = environment();
    let outcome = with_capabilities(TO_ENTER, async || {
        let agent = Agent::for_process(environment.target.pid()).unwrap();
        Redirect::new(&agent, "a test").await.map(drop)
    });
    let error = outcome.expect_err("a capability is missing");
    assert!(error.to_string().contains("NET_ADMIN"), "{error}");
    assert_eq!(environment.tables(), "");
}

#[test]
#[ignore = "needs root"]
fn net_admin_is_the_only_capability_for_redirection() {
    let environment = environment();
    with_capabilities(TO_ENTER | CapabilitySet::NET_ADMIN, async || {
        let redirect = environment.redirect().await;
        for port in [Port::tcp(80), Port::udp(80)] {
            redirect.add_port(port).await.unwrap();
            redirect.check(port).await.unwrap();
        }
        let to = socket_address("127.0.0.1", 80);
        let refused = redirect.connect_to_application(to).await;
        assert!(refused.is_err(), "no application is listening");
        redirect.open_udp_to_application(to).await.unwrap();
        assert_eq!(redirect.flush_connections(80).await.unwrap(), 0);
        redirect.drain().await.unwrap();
    });
}
