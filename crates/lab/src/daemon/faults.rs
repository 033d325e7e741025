//! Faults between the clusters and the developer's machine.
//!
//! Without faults packets take the bridge. A fault between two endpoints adds routes through the wire to each other's
//! addresses in their namespaces; healing it removes the routes. Connections survive both.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::BorrowedFd;

use serde::{Deserialize, Serialize};

use super::nodes::{Nodes, RunningNode};
use super::switch::{Switch, ip, nsenter};
use crate::command::run_with_input;
use crate::error::{Error, Result};
use crate::plan::HOST;
use crate::wire::{Conditions, LinkCounters, Wire};

/// The wire's device in a node.
const NODE_DEVICE: &str = "wire0";
/// The nftables table with the rules that block connections to a node.
const TABLE: &str = "standin_lab";

/// The faults from one endpoint to another, and the wire's counters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkStatus {
    pub from: String,
    pub to: String,
    pub conditions: Conditions,
    /// Whether connections may be opened in this direction.
    pub dialling: bool,
    pub counters: LinkCounters,
}

type Direction = (String, String);

#[derive(Default)]
pub(super) struct Faults {
    /// Only directions with a fault.
    conditions: BTreeMap<Direction, Conditions>,
    /// Directions in which no connections may be opened.
    dial_blocked: BTreeSet<Direction>,
    /// Present while any condition is set.
    wire: Option<Wire>,
    /// The ports that the wire has now.
    attached: BTreeSet<String>,
}

impl Faults {
    pub(super) fn set_conditions(
        &mut self,
        switch: &Switch,
        nodes: &Nodes,
        from: &str,
        to: &str,
        conditions: Conditions,
    ) -> Result<()> {
        check_pair(nodes, from, to)?;
        let direction = (from.to_owned(), to.to_owned());
        let before = self.conditions.get(&direction).cloned().unwrap_or_default();
        self.store(&direction, conditions.clone());
        let applied = self.apply(switch, nodes, &direction, conditions);
        if applied.is_err() {
            // The status must not show conditions that are not in effect.
            self.store(&direction, before);
        }
        if self.conditions.is_empty() {
            self.drop_wire();
        }
        applied
    }

    fn store(&mut self, direction: &Direction, conditions: Conditions) {
        if conditions.is_perfect() {
            self.conditions.remove(direction);
        } else {
            self.conditions.insert(direction.clone(), conditions);
        }
    }

    fn apply(
        &mut self,
        switch: &Switch,
        nodes: &Nodes,
        (from, to): &Direction,
        conditions: Conditions,
    ) -> Result<()> {
        self.connect_wire(switch, nodes, from, to)?;
        if let Some(wire) = &self.wire {
            wire.set(from, to, conditions)?;
        }
        self.route(switch, nodes, from, to)
    }

    pub(super) fn set_dialling(
        &mut self,
        switch: &Switch,
        nodes: &Nodes,
        from: &str,
        to: &str,
        allowed: bool,
    ) -> Result<()> {
        check_pair(nodes, from, to)?;
        if to == HOST {
            return Err(Error::Refused(
                "connections can be blocked only towards a cluster: the lab changes no firewall rule of this machine"
                    .to_owned(),
            ));
        }
        let direction = (from.to_owned(), to.to_owned());
        if allowed {
            self.dial_blocked.remove(&direction);
        } else {
            self.dial_blocked.insert(direction);
        }
        self.apply_dial_rules(switch, nodes, to)
    }

    /// Removes all faults. A link that cannot be healed does not prevent the others from being healed.
    pub(super) fn heal(&mut self, switch: &Switch, nodes: &Nodes) -> Result<()> {
        let broken: Vec<Direction> = std::mem::take(&mut self.conditions).into_keys().collect();
        let blocked: BTreeSet<String> = std::mem::take(&mut self.dial_blocked)
            .into_iter()
            .map(|(_, to)| to)
            .collect();
        let routed = broken
            .iter()
            .map(|(from, to)| self.route(switch, nodes, from, to));
        let unblocked = blocked
            .iter()
            .map(|cluster| self.apply_dial_rules(switch, nodes, cluster));
        let healed = routed.chain(unblocked).fold(Ok(()), Result::and);
        self.drop_wire();
        healed
    }

    /// Applies the faults of a cluster to one of its nodes that has just started. Its namespace is new, so it has neither
    /// the wire's device nor the nftables rules.
    pub(super) fn apply_to_new_node(
        &mut self,
        switch: &Switch,
        nodes: &Nodes,
        cluster: &str,
        node: &str,
    ) -> Result<()> {
        self.attached.remove(node);
        let directions: Vec<Direction> = self
            .conditions
            .keys()
            .filter(|(from, to)| from == cluster || to == cluster)
            .cloned()
            .collect();
        for (from, to) in directions {
            self.connect_wire(switch, nodes, &from, &to)?;
            self.route(switch, nodes, &from, &to)?;
        }
        self.apply_dial_rules(switch, nodes, cluster)
    }

    pub(super) fn drop_wire(&mut self) {
        self.wire = None;
        self.attached.clear();
    }

    pub(super) fn status(&self) -> Vec<LinkStatus> {
        let links = self
            .wire
            .as_ref()
            .and_then(|wire| wire.report().ok())
            .map(|report| report.links)
            .unwrap_or_default();
        let counters = |(from, to): &Direction| {
            links
                .iter()
                .find(|link| link.from == *from && link.to == *to)
                .map(|link| link.counters)
                .unwrap_or_default()
        };
        let directions: BTreeSet<&Direction> =
            self.conditions.keys().chain(&self.dial_blocked).collect();
        directions
            .into_iter()
            .map(|direction| LinkStatus {
                from: direction.0.clone(),
                to: direction.1.clone(),
                conditions: self.conditions.get(direction).cloned().unwrap_or_default(),
                dialling: !self.dial_blocked.contains(direction),
                counters: counters(direction),
            })
            .collect()
    }

    /// Attaches every node of both endpoints to the wire.
    fn connect_wire(&mut self, switch: &Switch, nodes: &Nodes, from: &str, to: &str) -> Result<()> {
        if self.conditions.is_empty() && self.wire.is_none() {
            return Ok(());
        }
        let wire = match &self.wire {
            Some(wire) => wire,
            None => self.wire.insert(Wire::start()?),
        };
        for endpoint in [from, to] {
            for port in ports(switch, nodes, endpoint) {
                if self.attached.contains(&port.name) {
                    continue;
                }
                let _ = wire.detach(&port.name);
                wire.attach(
                    endpoint,
                    &port.name,
                    port.namespace,
                    &port.device,
                    &[IpAddr::V4(port.address)],
                )?;
                self.attached.insert(port.name);
            }
        }
        Ok(())
    }

    /// Routes the packets between two endpoints through the wire, or over the bridge when they have no fault.
    fn route(&self, switch: &Switch, nodes: &Nodes, from: &str, to: &str) -> Result<()> {
        let key = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        let faulty = self.conditions.contains_key(&key(from, to))
            || self.conditions.contains_key(&key(to, from));
        for (here, there) in [(from, to), (to, from)] {
            for port in ports(switch, nodes, here) {
                let batch: String = addresses(switch, nodes, there)
                    .iter()
                    .map(|other| {
                        if faulty {
                            format!(
                                "route replace {}/32 dev {} src {}\n",
                                other, port.device, port.address
                            )
                        } else {
                            format!("route flush {other}/32\n")
                        }
                    })
                    .collect();
                match port.path {
                    Some(path) => ip(Some(&path), &batch)?,
                    None => switch.on_host(&batch)?,
                }
            }
        }
        Ok(())
    }

    /// Writes the nftables rules that block new connections to the nodes of a cluster.
    fn apply_dial_rules(&self, switch: &Switch, nodes: &Nodes, cluster: &str) -> Result<()> {
        let blocked_sources: Vec<String> = self
            .dial_blocked
            .iter()
            .filter(|(_, to)| to == cluster)
            .flat_map(|(from, _)| addresses(switch, nodes, from))
            .map(|address| address.to_string())
            .collect();
        let mut rules = format!("table inet {TABLE} {{}}\ndelete table inet {TABLE}\n");
        if !blocked_sources.is_empty() {
            rules += &format!(
                "table inet {TABLE} {{\n  chain dialling {{\n    type filter hook prerouting priority -10;\n    \
                 ip saddr {{ {} }} ct state new drop\n  }}\n}}\n",
                blocked_sources.join(", ")
            );
        }
        for node in nodes.of_cluster(cluster) {
            let mut command = nsenter(&node.network_namespace_path());
            run_with_input(command.args(["nft", "-f", "-"]), &rules)?;
        }
        Ok(())
    }
}

/// A port of an endpoint on the wire: one for each node of a cluster, or the one of the host.
struct Port<'a> {
    name: String,
    address: Ipv4Addr,
    device: String,
    namespace: BorrowedFd<'a>,
    /// The namespace as a path. `None` is the developer's machine.
    path: Option<String>,
}

fn ports<'a>(switch: &'a Switch, nodes: &'a Nodes, endpoint: &'a str) -> Vec<Port<'a>> {
    if endpoint == HOST {
        return vec![Port {
            name: HOST.to_owned(),
            address: switch.network().host(),
            device: format!("{}w", switch.network().device()),
            namespace: switch.host_namespace(),
            path: None,
        }];
    }
    let of_node = |node: &'a RunningNode| Port {
        name: node.plan.name.clone(),
        address: node.plan.address,
        device: NODE_DEVICE.to_owned(),
        namespace: node.network_namespace(),
        path: Some(node.network_namespace_path()),
    };
    nodes.of_cluster(endpoint).map(of_node).collect()
}

/// All addresses from which an endpoint can open connections, including those of stopped nodes.
fn addresses(switch: &Switch, nodes: &Nodes, endpoint: &str) -> Vec<Ipv4Addr> {
    if endpoint == HOST {
        vec![switch.network().host()]
    } else {
        nodes.addresses(endpoint)
    }
}

fn check_pair(nodes: &Nodes, from: &str, to: &str) -> Result<()> {
    if from == to {
        return Err(Error::Refused(format!("{from} has no link to itself")));
    }
    for endpoint in [from, to] {
        if endpoint != HOST && !nodes.has_plan(endpoint) {
            return Err(Error::Refused(format!(
                "this lab has no cluster `{endpoint}`; endpoints are its clusters and `{HOST}`"
            )));
        }
    }
    Ok(())
}
