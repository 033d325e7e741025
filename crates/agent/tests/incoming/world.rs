//! A target and a client, each in a network of its own, with a cable between them.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd as _;
use std::process::{Child, Command, Stdio};
use std::thread;

use agent::Agent;
use agent::incoming::redirect::Redirect;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::programs::soon;

pub(crate) const TARGET_IPV4: &str = "10.77.0.2";
pub(crate) const TARGET_IPV6: &str = "fd77::2";
pub(crate) const CLIENT_IPV4: &str = "10.77.0.1";
pub(crate) const CLIENT_IPV6: &str = "fd77::1";
pub(crate) const BEYOND_IPV4: &str = "10.78.0.2";

/// All ways to the target's ports: from the client, and from inside.
pub(crate) const FROM_OUTSIDE: [&str; 2] = [TARGET_IPV4, TARGET_IPV6];
pub(crate) const FROM_INSIDE: [&str; 4] = ["127.0.0.1", "::1", TARGET_IPV4, TARGET_IPV6];

pub(crate) struct World {
    pub(crate) target: Network,
    pub(crate) client: Network,
}

/// Makes both networks, or says why it cannot.
pub(crate) fn world() -> Option<World> {
    world_with(&["--net"])
}

/// The same, with a target in a user namespace of its own, as a container of an ordinary user has it.
pub(crate) fn rootless_world() -> Option<World> {
    world_with(&["--user", "--map-root-user", "--net"])
}

fn world_with(targets_namespaces: &[&str]) -> Option<World> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: making networks needs root");
        return None;
    }
    let world = World {
        target: Network::new(targets_namespaces),
        client: Network::new(&["--net"]),
    };
    let peer = world.client.pid().to_string();
    let cable = "link add eth0 type veth peer name eth0 netns";
    world.target.run(&format!("ip {cable} {peer}"));
    for (network, number) in [(&world.client, 1), (&world.target, 2)] {
        network.run(&format!("ip address add 10.77.0.{number}/24 dev eth0"));
        network.run(&format!("ip address add fd77::{number}/64 dev eth0 nodad"));
        network.run("ip link set eth0 up");
    }
    Some(world)
}

impl World {
    pub(crate) async fn redirect(&self) -> Redirect {
        self.redirect_as("the agent of a test").await
    }

    /// An agent of this process.
    pub(crate) fn agent(&self) -> Agent {
        Agent::for_process(self.target.pid()).expect("root may do everything")
    }

    pub(crate) async fn redirect_as(&self, holder: &str) -> Redirect {
        let redirect = Redirect::new(&self.agent(), holder).await;
        redirect.expect("root may do everything")
    }

    /// A third network, which the client reaches through the target.
    pub(crate) fn beyond(&self) -> Network {
        let beyond = Network::new(&["--net"]);
        let peer = beyond.pid();
        let cable = "link add eth1 type veth peer name eth0 netns";
        self.target.run(&format!("ip {cable} {peer}"));
        for (network, device, number) in [(&self.target, "eth1", 1), (&beyond, "eth0", 2)] {
            let address = format!("10.78.0.{number}/24");
            network.run(&format!("ip address add {address} dev {device}"));
            network.run(&format!("ip link set {device} up"));
        }
        self.client.run("ip route add default via 10.77.0.2");
        beyond.run("ip route add default via 10.78.0.1");
        self.target.inside(|| {
            fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("root may route");
        });
        beyond
    }

    /// Waits until no rule and no listener of ours is left in the target's network.
    pub(crate) async fn nothing_is_left(&self) {
        let gone = async {
            while !self.tables().is_empty() || self.has_our_listeners() {
                tokio::task::yield_now().await;
            }
        };
        soon(gone).await;
    }

    /// Whether a socket is bound to 192.0.2.1, as our listeners are.
    pub(crate) fn has_our_listeners(&self) -> bool {
        ["tcp", "udp"].iter().any(|name| {
            let path = format!("/proc/{}/net/{name}", self.target.pid());
            let sockets = fs::read_to_string(path).expect("the resident is there");
            sockets.contains("010200C0")
        })
    }

    /// The tables that nftables has in the target's network.
    pub(crate) fn tables(&self) -> String {
        self.target.run("nft list tables")
    }
}

/// A network namespace. It ends with the process that lives in it, and that ends with the test, however it ends.
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
        let mut word = String::new();
        let stdout = resident.stdout.as_mut().expect("it is piped");
        let read = BufReader::new(stdout).read_line(&mut word);
        read.expect("the resident speaks");
        assert_eq!(word, "ready\n");
        Self { resident }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.resident.id()
    }

    /// Does something inside. Sockets that are made there stay there, whoever uses them.
    pub(crate) fn inside<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        let enter = || {
            enter(self.pid());
            act()
        };
        thread::scope(|scope| scope.spawn(enter).join().expect("it does not panic"))
    }

    /// What the kernel has counted of TCP in this network.
    pub(crate) fn tcp_counter(&self, name: &str) -> u64 {
        let path = format!("/proc/{}/net/snmp", self.pid());
        let counters = fs::read_to_string(path).expect("the resident is there");
        let mut lines = counters.lines().filter(|line| line.starts_with("Tcp:"));
        let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
        let mut pairs = names.split(' ').zip(values.split(' '));
        let (_, value) = pairs.find(|pair| pair.0 == name).expect("such a counter");
        value.parse().expect("a number")
    }

    /// Waits until a connection with a client at this port has ended, and is remembered for late packets (TIME_WAIT).
    pub(crate) async fn remembers(&self, clients_port: u16) {
        let remembered = format!(":{clients_port:04X} 06 ");
        let is_remembered = |name: &&str| {
            let path = format!("/proc/{}/net/{name}", self.pid());
            let sockets = fs::read_to_string(path).expect("the resident is there");
            sockets.contains(&remembered)
        };
        let waiting = async {
            while !["tcp", "tcp6"].iter().any(is_remembered) {
                tokio::task::yield_now().await;
            }
        };
        soon(waiting).await;
    }

    /// Runs a program inside, and answers what it printed.
    pub(crate) fn run(&self, command: &str) -> String {
        self.feed(command, "")
    }

    /// A program that is to run inside.
    pub(crate) fn command(&self, command: &str) -> Command {
        let mut inside = Command::new("nsenter");
        inside
            .args(["--target", &self.pid().to_string(), "--net"])
            .args(command.split(' '));
        inside
    }

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

/// Moves the calling thread into the network of a process, for good.
pub(crate) fn enter(pid: u32) {
    let path = format!("/proc/{pid}/ns/net");
    let namespace = fs::File::open(path).expect("the process is there");
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .expect("root may enter");
}

pub(crate) fn socket_address(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse::<IpAddr>().expect("an address"), port)
}
