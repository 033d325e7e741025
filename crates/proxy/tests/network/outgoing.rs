//! Outgoing connections and datagrams, as a program sees them.

use std::fs;

use crate::environment::{Environment, wait_until};
use crate::programs;

/// Sends datagrams back in upper case until the test ends.
fn echo(env: &Environment, address: &str) {
    let socket = env.udp(address);
    env.runtime.spawn(async move {
        let mut buffer = vec![0; 70_000];
        while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
            buffer[..length].make_ascii_uppercase();
            let _ = socket.send_to(&buffer[..length], from).await;
        }
    });
}

/// Runs one function of the Python program with a target that sends datagrams back.
#[track_caller]
fn check(name: &str, expected: &str) {
    let env = Environment::new();
    for address in ["10.9.0.1:7", "127.0.0.1:7", "[fd00:9::1]:7"] {
        echo(&env, address);
    }
    let session = env.session("true");
    let script = programs::source("outgoing.py");
    let command = format!("python3 -u {} {name}", script.display());
    assert_eq!(env.run(&session, &command), expected);
}

#[test]
#[ignore = "needs root"]
fn datagrams_to_one_peer() {
    check(
        "connected",
        "('10.9.0.1', 7) 10.9.0.1\nb'ONE'\nb''\n65507 True\n('fd00:9::1', 7, 0, 0)\nb'SIX'\n",
    );
}

#[test]
#[ignore = "needs root"]
fn datagrams_to_several_peers() {
    check(
        "several",
        "b'A' ('10.9.0.1', 7)\nb'B' ('127.0.0.1', 7)\nb'C' ('10.9.0.1', 7)\nb'' ('10.9.0.1', 7)\n\
         b'D' ('fd00:9::1', 7, 0, 0)\nb'E' ('::ffff:10.9.0.1', 7, 0, 0)\n",
    );
}

#[test]
#[ignore = "needs root"]
fn refused_datagrams_are_reported_on_connected_sockets() {
    check(
        "refused_datagrams",
        "ECONNREFUSED\nECONNREFUSED\nECONNREFUSED 6\nnot connected timed out\nlater b'HELLO'\n",
    );
}

#[test]
#[ignore = "needs root"]
fn a_datagram_socket_is_closed_at_the_target_when_the_application_closes_it() {
    let env = Environment::new();
    echo(&env, "10.9.0.1:7");
    let table = || env.inside(|| fs::read_to_string("/proc/thread-self/net/udp").unwrap());
    let before = table().lines().count();
    let session = env.session("true");
    let script = programs::source("outgoing.py");
    let started = env.start(&session, &format!("python3 -u {} closed", script.display()));
    wait_until("the program has its sockets", || {
        started.output().contains("open")
    });
    // One for the connected socket, and one for each peer of the other.
    assert_eq!(table().lines().count(), before + 2);
    fs::write(env.folder.path().join("close"), "").unwrap();
    wait_until("the agent closes them", || {
        table().lines().count() == before
    });
    fs::write(env.folder.path().join("end"), "").unwrap();
    started.wait();
}

#[test]
#[ignore = "needs root"]
fn connection_failures_are_those_of_the_target() {
    let env = Environment::new();
    env.run_inside(
        "ip route add unreachable 203.0.113.0/24
        ip link add quiet type veth peer name sink && ip link set quiet up && ip link set sink up
        ip route add 198.51.100.0/24 dev quiet
        ip neighbour add 198.51.100.1 lladdr 02:00:00:00:00:01 dev quiet
        echo 1 > /proc/sys/net/ipv4/tcp_syn_retries",
    );
    let session = env.session("true");
    let script = programs::source("outgoing.py");
    let command = format!("python3 -u {} failures", script.display());
    assert_eq!(
        env.run(&session, &command),
        "10.9.0.1 ECONNREFUSED\nfd00:9::1 ECONNREFUSED\n127.0.0.1 ECONNREFUSED\n192.0.2.1 ENETUNREACH\n\
         203.0.113.1 EHOSTUNREACH\n198.51.100.1 ETIMEDOUT\n2001:db8::1 ENETUNREACH\n\
         not waiting ECONNREFUSED\nudp 192.0.2.1 ENETUNREACH\n"
    );
}
