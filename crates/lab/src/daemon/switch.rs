//! The lab's network: a bridge in the daemon's own network namespace, with one veth pair to the host and one to each
//! node.

use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::process::{self, Command};

use nix::sched::{CloneFlags, unshare};

use crate::command::{run, run_with_input};
use crate::error::{Error, ErrorContext as _, Result};
use crate::plan::{Network, NodePlan};

const BRIDGE: &str = "lab";

pub(super) struct Switch {
    network: Network,
    host_namespace: File,
}

impl Switch {
    /// Moves the calling process to a new network namespace and creates the bridge there. Must be called before any
    /// thread is started, so that all threads are in the new namespace.
    pub(super) fn create() -> Result<Self> {
        let host_namespace = File::open("/proc/self/ns/net")
            .with_context(|| "open the network namespace".to_owned())?;
        unshare(CloneFlags::CLONE_NEWNET)
            .with_context(|| "create a network namespace".to_owned())?;
        ip(
            None,
            &format!("link set lo up\nlink add {BRIDGE} type bridge\nlink set {BRIDGE} up\n"),
        )?;
        let network = claim_network(&host_namespace)?;
        let switch = Switch {
            network,
            host_namespace,
        };
        ip(
            None,
            &format!("link set uplink master {BRIDGE}\nlink set uplink up\n"),
        )?;
        let device = network.device();
        switch.on_host(&format!(
            "addr add {}/24 dev {device}\nlink set {device} up\n",
            network.host()
        ))?;
        Ok(switch)
    }

    pub(super) fn network(&self) -> Network {
        self.network
    }

    pub(super) fn host_namespace(&self) -> BorrowedFd<'_> {
        self.host_namespace.as_fd()
    }

    /// Runs a batch of `ip` commands on the developer's machine.
    pub(super) fn on_host(&self, batch: &str) -> Result<()> {
        ip(Some(&namespace_path(&self.host_namespace)), batch)
    }

    /// Creates the veth pair to a node, and configures the node's address, default route and IP forwarding.
    pub(super) fn connect(&self, pid: i32, node: &NodePlan, pod_range: &str) -> Result<()> {
        let [.., slot, last] = node.address.octets();
        let port = format!("to-{last}");
        // The MAC address is the same after each start, because ARP caches keep it for longer than a start takes.
        let hardware = format!("02:00:0a:c8:{slot:02x}:{last:02x}");
        ip(
            None,
            &format!(
                "link add {port} type veth peer name eth0 address {hardware} netns {pid}\n\
                 link set {port} master {BRIDGE}\nlink set {port} up\n"
            ),
        )?;
        let inside = format!("/proc/{pid}/ns/net");
        ip(
            Some(&inside),
            &format!(
                "link set lo up\naddr add {}/24 dev eth0\nlink set eth0 up\nroute add default via {}\n",
                node.address,
                self.network.host()
            ),
        )?;
        run(nsenter(&inside).args(["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]))?;
        // Traffic of pods leaves the cluster with the node's address. SNAT is used and not MASQUERADE: the kernel drops a
        // masqueraded connection when its packets leave through another device, which happens when a fault is set.
        run(nsenter(&inside)
            .args(["iptables", "-w", "-t", "nat", "-A", "POSTROUTING"])
            .args([
                "-s",
                pod_range,
                "!",
                "-d",
                pod_range,
                "-j",
                "SNAT",
                "--to-source",
                &node.address.to_string(),
            ]))?;
        Ok(())
    }

    /// Removes the veth pair to the host. Everything else is removed with the daemon's namespace.
    pub(super) fn remove(&self) -> Result<()> {
        self.on_host(&format!("link del {}\n", self.network.device()))
    }
}

/// Runs `ip -batch` here or in another network namespace.
pub(super) fn ip(namespace: Option<&str>, batch: &str) -> Result<()> {
    let mut command = match namespace {
        Some(namespace) => {
            let mut command = nsenter(namespace);
            command.arg("ip");
            command
        }
        None => Command::new("ip"),
    };
    run_with_input(command.args(["-batch", "-"]), batch).map(drop)
}

/// A command that runs in another network namespace.
pub(super) fn nsenter(path: &str) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={path}"));
    command
}

/// A path to an open namespace file that other processes can open.
fn namespace_path(file: &File) -> String {
    format!("/proc/{}/fd/{}", process::id(), file.as_raw_fd())
}

/// Claims the first network that nothing on the machine uses. Creating the device is the claim: of two labs that start at
/// the same time, only one can create a device of that name.
fn claim_network(host: &File) -> Result<Network> {
    let host_path = namespace_path(host);
    let in_use =
        run(nsenter(&host_path).args(["ip", "-4", "-oneline", "route", "show", "table", "all"]))?;
    for network in (0..Network::SLOTS)
        .map(Network::in_slot)
        .filter(|network| !uses(&in_use, *network))
    {
        let claim = ip(
            Some(&host_path),
            &format!(
                "link add {} type veth peer name uplink netns {}\n",
                network.device(),
                process::id()
            ),
        );
        match claim {
            Ok(()) => return Ok(network),
            Err(Error::Command { output, .. }) if output.contains("File exists") => {}
            Err(error) => return Err(error),
        }
    }
    Err(Error::Refused(format!(
        "all {} networks from {} on are in use on this machine; `cargo xtask lab status` lists the labs, \
         `ip route` the rest",
        Network::SLOTS,
        Network::in_slot(0).subnet()
    )))
}

/// Whether a routing table (`ip route show table all`) has a specific route to addresses of this network. Wide routes,
/// such as a company's route to 10.0.0.0/8, do not count: the lab's more specific route takes precedence.
fn uses(routes: &str, network: Network) -> bool {
    const WIDE_PREFIX_LENGTH: u32 = 15;
    routes.split_whitespace().any(|word| {
        let (address, length) = word.split_once('/').unwrap_or((word, "32"));
        let (Ok(address), Ok(length)) = (address.parse::<Ipv4Addr>(), length.parse::<u32>()) else {
            return false;
        };
        let common = length.min(24);
        let shift = 32 - common;
        (WIDE_PREFIX_LENGTH + 1..=32).contains(&length)
            && u32::from(address) >> shift == u32::from(network.host()) >> shift
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_in_the_routing_table_is_in_use() {
        let routes = "default via 172.16.0.1 dev eth0 \n\
                      10.200.1.0/24 dev standin1 proto kernel scope link src 10.200.1.1 \n\
                      10.200.2.0/23 via 172.16.0.9 dev eth0\n\
                      local 10.200.4.7 dev lo\n\
                      10.0.0.0/8 via 172.16.0.9 dev tun0\n";
        let used: Vec<u8> = (0..6)
            .filter(|slot| uses(routes, Network::in_slot(*slot)))
            .collect();
        assert_eq!(used, [1, 2, 3, 4]);
    }
}
