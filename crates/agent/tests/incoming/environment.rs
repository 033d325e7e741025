//! A target and a client, each in its own network namespace, connected by a veth pair.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd as _;
use std::process::{Child, Command, Stdio};
use std::thread;

use agent::Agent;
use agent::incoming::redirect::Redirect;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::programs::with_timeout;

pub(crate) const TARGET_IPV4: &str = "10.77.0.2";
pub(crate) const TARGET_IPV6: &str = "fd77::2";
pub(crate) const CLIENT_IPV4: &str = "10.77.0.1";
pub(crate) const CLIENT_IPV6: &str = "fd77::1";
pub(crate) const ROUTED_IPV4: &str = "10.78.0.2";

/// The addresses of the target's ports: for the client, and for processes inside the target's network.
pub(crate) const FROM_OUTSIDE: [&str; 2] = [TARGET_IPV4, TARGET_IPV6];
pub(crate) const FROM_INSIDE: [&str; 4] = ["127.0.0.1", "::1", TARGET_IPV4, TARGET_IPV6];

pub(crate) struct Environment {
    pub(crate) target: Network,
    pub(crate) client: Network,
}

/// Creates both networks. Panics without root.
pub(crate) fn environment() -> Environment {
    environment_with(&["--net"])
}

/// The same, with the target in its own user namespace, as in a rootless container.
pub(crate) fn rootless_environment() -> Environment {
    environment_with(&["--user", "--map-root-user", "--net"])
}

fn environment_with(target_namespaces: &[&str]) -> Environment {
    assert!(
        rustix::process::geteuid().is_root(),
        "needs root: run with sudo, or leave it ignored"
    );
    let environment = Environment {
        target: Network::new(target_namespaces),
        client: Network::new(&["--net"]),
    };
    let peer = environment.client.pid().to_string();
    let mac = |number: u8| format!("02:00:00:00:00:0{number}");
    environment.target.run(&format!(
        "ip link add eth0 address {} type veth peer name eth0 address {} netns {peer}",
        mac(2),
        mac(1)
    ));
    for (network, number, other) in [(&environment.client, 1, 2), (&environment.target, 2, 1)] {
        network.run(&format!("ip address add 10.77.0.{number}/24 dev eth0"));
        network.run(&format!("ip address add fd77::{number}/64 dev eth0 nodad"));
        network.run("ip link set eth0 up");
        // Neighbour discovery may fail on a busy machine while the interface of the other end comes up.
        let other_mac = mac(other);
        network.run(&format!(
            "ip neighbour add fd77::{other} lladdr {other_mac} dev eth0 nud permanent"
        ));
    }
    environment
}

impl Environment {
    pub(crate) async fn redirect(&self) -> Redirect {
        self.redirect_as("the agent of a test").await
    }

    /// An agent in the process of the test.
    pub(crate) fn agent(&self) -> Agent {
        Agent::for_process(self.target.pid()).expect("root has all rights")
    }

    pub(crate) async fn redirect_as(&self, holder: &str) -> Redirect {
        let redirect = Redirect::new(&self.agent(), holder).await;
        redirect.expect("root has all rights")
    }

    /// A third network, which the client reaches through the target as its router.
    pub(crate) fn routed_network(&self) -> Network {
        let routed_network = Network::new(&["--net"]);
        let peer = routed_network.pid();
        let veth = "link add eth1 type veth peer name eth0 netns";
        self.target.run(&format!("ip {veth} {peer}"));
        for (network, device, number) in [(&self.target, "eth1", 1), (&routed_network, "eth0", 2)] {
            let address = format!("10.78.0.{number}/24");
            network.run(&format!("ip address add {address} dev {device}"));
            network.run(&format!("ip link set {device} up"));
        }
        self.client.run("ip route add default via 10.77.0.2");
        routed_network.run("ip route add default via 10.78.0.1");
        self.target.inside(|| {
            fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("root may enable forwarding");
        });
        routed_network
    }

    /// Waits until no rules and no listeners of the agent are left in the target's network.
    pub(crate) async fn wait_until_clean(&self) {
        let clean = async {
            while !self.tables().is_empty() || self.has_agent_listeners() {
                tokio::task::yield_now().await;
            }
        };
        with_timeout(clean).await;
    }

    /// Whether a socket is bound to 192.0.2.1, the address of the agent's listeners.
    pub(crate) fn has_agent_listeners(&self) -> bool {
        ["tcp", "udp"].iter().any(|name| {
            let path = format!("/proc/{}/net/{name}", self.target.pid());
            let sockets = fs::read_to_string(path).expect("the resident is running");
            sockets.contains("010200C0")
        })
    }

    /// The nftables tables in the target's network.
    pub(crate) fn tables(&self) -> String {
        self.target.run("nft list tables")
    }
}

/// A network namespace. It ends with its resident process. The resident reads a pipe of the test until its end, so it also
/// ends if the test is killed.
pub(crate) struct Network {
    resident: Child,
}

impl Network {
    fn new(namespaces: &[&str]) -> Self {
        let mut resident = Command::new("unshare")
            .args(namespaces)
            .args(["sh", "-c"])
            .arg("ip link set lo up && echo ready && exec cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare can be started");
        let mut line = String::new();
        let stdout = resident.stdout.as_mut().expect("it is piped");
        let read = BufReader::new(stdout).read_line(&mut line);
        read.expect("the resident starts");
        assert_eq!(line, "ready\n");
        Self { resident }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.resident.id()
    }

    /// Runs a closure inside the network. Sockets that it creates belong to the network, also if they are used elsewhere.
    pub(crate) fn inside<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        let enter = || {
            enter(self.pid());
            act()
        };
        thread::scope(|scope| {
            scope
                .spawn(enter)
                .join()
                .expect("the closure does not panic")
        })
    }

    /// A TCP counter of the kernel for this network.
    pub(crate) fn tcp_counter(&self, name: &str) -> u64 {
        let path = format!("/proc/{}/net/snmp", self.pid());
        let counters = fs::read_to_string(path).expect("the resident is running");
        let mut lines = counters.lines().filter(|line| line.starts_with("Tcp:"));
        let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
        let mut pairs = names.split(' ').zip(values.split(' '));
        let (_, value) = pairs.find(|pair| pair.0 == name).expect("such a counter");
        value.parse().expect("a number")
    }

    /// Waits until a connection with a client at this port is in the state TIME_WAIT.
    pub(crate) async fn wait_for_time_wait(&self, client_port: u16) {
        let entry = format!(":{client_port:04X} 06 ");
        let has_entry = |name: &&str| {
            let path = format!("/proc/{}/net/{name}", self.pid());
            let sockets = fs::read_to_string(path).expect("the resident is running");
            sockets.contains(&entry)
        };
        let waiting = async {
            while !["tcp", "tcp6"].iter().any(has_entry) {
                tokio::task::yield_now().await;
            }
        };
        with_timeout(waiting).await;
    }

    /// Runs a program inside the network, and returns its output.
    pub(crate) fn run(&self, command: &str) -> String {
        self.feed(command, "")
    }

    /// A command that runs inside the network.
    pub(crate) fn command(&self, command: &str) -> Command {
        let mut inside = Command::new("nsenter");
        inside
            .args(["--target", &self.pid().to_string(), "--net"])
            .args(command.split(' '));
        inside
    }

    /// Runs a program inside the network with this input, and returns its output.
    pub(crate) fn feed(&self, command: &str, input: &str) -> String {
        let mut running = self
            .command(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("nsenter can be started");
        let mut stdin = running.stdin.take().expect("it is piped");
        stdin.write_all(input.as_bytes()).expect("it reads");
        drop(stdin);
        let output = running.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{command}: {}", output.status);
        String::from_utf8(output.stdout).expect("text")
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = self.resident.kill();
        let _ = self.resident.wait();
    }
}

/// Moves the calling thread into the network of a process, permanently.
pub(crate) fn enter(pid: u32) {
    let path = format!("/proc/{pid}/ns/net");
    let namespace = fs::File::open(path).expect("the process is running");
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .expect("root may enter");
}

pub(crate) fn socket_address(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse::<IpAddr>().expect("an address"), port)
}
