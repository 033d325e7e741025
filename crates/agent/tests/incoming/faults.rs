//! What happens when the agent is killed or lacks a right.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::{env, fs, thread};

use agent::Agent;
use agent::incoming::redirect::{Port, Redirect};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use crate::programs::{AGENT, APPLICATION, Application, echo, who_answers};
use crate::world::{FROM_OUTSIDE, World, socket_address, world};

/// Tells the test below whose traffic to redirect. Without it, it does nothing.
const TARGET: &str = "STANDIN_TEST_REDIRECT_TARGET";

/// An agent in a process of its own.
#[tokio::test]
#[ignore = "needs root"]
async fn role_agent() {
    let Ok(target) = env::var(TARGET) else { return };
    let agent = Agent::for_process(target.parse().unwrap()).unwrap();
    let redirect = Redirect::new(&agent, "a process").await.unwrap();
    let ports = [Port::tcp(80), Port::udp(80)];
    redirect.change(&ports, &[]).await.unwrap();
    println!("\nready");
    while let Ok(arrived) = redirect.accept().await {
        tokio::spawn(echo(arrived.stream, AGENT));
    }
}

fn start_agent(world: &World) -> Child {
    let mut agent = Command::new(env::current_exe().expect("the test's own program"))
        .args(["--exact", "faults::role_agent", "--ignored", "--nocapture"])
        .env(TARGET, world.target.pid().to_string())
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
async fn a_killed_agent_leaves_nothing() {
    let Some(world) = world() else { return };
    let _application = Application::start(&world.target, 80);
    let before = world.tables();
    for _ in 0..3 {
        let mut agent = start_agent(&world);
        for address in FROM_OUTSIDE {
            let to = socket_address(address, 80);
            assert_eq!(who_answers(&world.client, to).await, AGENT);
        }
        assert_ne!(world.tables(), before);
        agent.kill().unwrap();
        agent.wait().unwrap();
        assert_eq!(world.tables(), before);
        for address in FROM_OUTSIDE {
            let to = socket_address(address, 80);
            assert_eq!(who_answers(&world.client, to).await, APPLICATION);
        }
    }
    let sockets = fs::read_to_string(format!("/proc/{}/net/tcp", world.target.pid())).unwrap();
    // 192.0.2.1, to which our listeners are bound.
    assert!(!sockets.contains("010200C0"), "{sockets}");
}

#[tokio::test]
#[ignore = "needs root"]
async fn others_cannot_flush_the_rules_away() {
    let Some(world) = world() else { return };
    let mut agent = start_agent(&world);
    world.target.run("nft flush ruleset");
    let to = socket_address(FROM_OUTSIDE[0], 80);
    assert_eq!(who_answers(&world.client, to).await, AGENT);
    agent.kill().unwrap();
    agent.wait().unwrap();
}

/// Does something as an agent that has no rights but these.
fn with_rights<T: Send>(rights: CapabilitySet, act: impl AsyncFnOnce() -> T + Send) -> T {
    let run = || {
        let mut sets = capabilities(None).unwrap();
        sets.effective = rights;
        sets.permitted = rights;
        set_capabilities(None, sets).unwrap();
        // Threads of the runtime and of the agent inherit what this one has.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(act())
    };
    thread::scope(|scope| scope.spawn(run).join().unwrap())
}

/// To look at a target, and to enter its network.
const TO_ENTER: CapabilitySet = CapabilitySet::SYS_PTRACE.union(CapabilitySet::SYS_ADMIN);

#[test]
#[ignore = "needs root"]
fn a_lacking_right_is_named() {
    let Some(world) = world() else { return };
    let outcome = with_rights(TO_ENTER, async || {
        let agent = Agent::for_process(world.target.pid()).unwrap();
        Redirect::new(&agent, "nobody").await.map(drop)
    });
    let error = outcome.expect_err("it has no right to");
    assert!(error.to_string().contains("NET_ADMIN"), "{error}");
    assert_eq!(world.tables(), "");
}

#[test]
#[ignore = "needs root"]
fn one_right_over_the_network_is_enough() {
    let Some(world) = world() else { return };
    with_rights(TO_ENTER | CapabilitySet::NET_ADMIN, async || {
        let redirect = world.redirect().await;
        for port in [Port::tcp(80), Port::udp(80)] {
            redirect.add_port(port).await.unwrap();
            redirect.check(port).await.unwrap();
        }
        let to = socket_address("127.0.0.1", 80);
        let refused = redirect.connect_to_original(to).await;
        assert!(refused.is_err(), "there is no application");
        redirect.open_udp_to_original(to).await.unwrap();
        assert_eq!(redirect.flush_connections(80).await.unwrap(), 0);
        redirect.drain().await.unwrap();
    });
}
