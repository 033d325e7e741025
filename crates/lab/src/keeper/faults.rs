//! Faults between the clusters and the developer's machine.
//!
//! Without faults packets take the bridge. A fault between two endpoints puts a route to each other's addresses
//! through the wire into their namespaces; healing it takes the routes away. Connections survive both.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::BorrowedFd;

use serde::{Deserialize, Serialize};

use super::nodes::{Nodes, RunningNode};
use super::switch::{Switch, in_namespace, ip};
use crate::command::run_with_input;
use crate::error::{Error, Result};
use crate::plan::HOST;
use crate::wire::{Conditions, LinkCounters, Wire};

/// The wire's device in a node.
const NODE_DEVICE: &str = "wire0";
/// The table of the rules that keep others from dialling a node.
const TABLE: &str = "standin_lab";

/// What is wrong from one endpoint to another, and what the wire has seen.
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
    /// Only imperfect ones.
    conditions: BTreeMap<Direction, Conditions>,
    undialable: BTreeSet<Direction>,
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
        self.remember(&direction, conditions.clone());
        let applied = self.apply(switch, nodes, &direction, conditions);
        if applied.is_err() {
            // What is not in force must not be shown as if it were.
            self.remember(&direction, before);
        }
        if self.conditions.is_empty() {
            self.drop_wire();
        }
        applied
    }

    fn remember(&mut self, direction: &Direction, conditions: Conditions) {
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
                "only a cluster can be kept from being dialled: the lab changes no firewall rule of this machine"
                    .to_owned(),
            ));
        }
        let direction = (from.to_owned(), to.to_owned());
        if allowed {
            self.undialable.remove(&direction);
        } else {
            self.undialable.insert(direction);
        }
        self.guard(switch, nodes, to)
    }

    /// Makes everything perfect, as far as it goes: one link that cannot be healed does not keep the others.
    pub(super) fn heal(&mut self, switch: &Switch, nodes: &Nodes) -> Result<()> {
        let broken: Vec<Direction> = std::mem::take(&mut self.conditions).into_keys().collect();
        let guarded: BTreeSet<String> = std::mem::take(&mut self.undialable)
            .into_iter()
            .map(|(_, to)| to)
            .collect();
        let routed = broken
            .iter()
            .map(|(from, to)| self.route(switch, nodes, from, to));
        let unguarded = guarded
            .iter()
            .map(|cluster| self.guard(switch, nodes, cluster));
        let healed = routed.chain(unguarded).fold(Ok(()), Result::and);
        self.drop_wire();
        healed
    }

    /// A node that has just started shares the faults of its cluster. Its namespace is new, so whatever it had of the
    /// wire and of the rules is gone.
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
        self.guard(switch, nodes, cluster)
    }

    pub(super) fn drop_wire(&mut self) {
        self.wire = None;
        self.attached.clear();
    }

    pub(super) fn status(&self) -> Vec<LinkStatus> {
        let seen = self
            .wire
            .as_ref()
            .and_then(|wire| wire.report().ok())
            .map(|report| report.links)
            .unwrap_or_default();
        let counters = |(from, to): &Direction| {
            seen.iter()
                .find(|link| link.from == *from && link.to == *to)
                .map(|link| link.counters)
                .unwrap_or_default()
        };
        let directions: BTreeSet<&Direction> =
            self.conditions.keys().chain(&self.undialable).collect();
        directions
            .into_iter()
            .map(|direction| LinkStatus {
                from: direction.0.clone(),
                to: direction.1.clone(),
                conditions: self.conditions.get(direction).cloned().unwrap_or_default(),
                dialling: !self.undialable.contains(direction),
                counters: counters(direction),
            })
            .collect()
    }

    /// Makes sure that the wire reaches every node of both endpoints.
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

    /// Sends what two endpoints have for each other through the wire, or over the bridge when nothing is wrong.
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

    /// Writes the rules of all nodes of a cluster that others may not dial.
    fn guard(&self, switch: &Switch, nodes: &Nodes, cluster: &str) -> Result<()> {
        let refused: Vec<String> = self
            .undialable
            .iter()
            .filter(|(_, to)| to == cluster)
            .flat_map(|(from, _)| addresses(switch, nodes, from))
            .map(|address| address.to_string())
            .collect();
        let mut rules = format!("table inet {TABLE} {{}}\ndelete table inet {TABLE}\n");
        if !refused.is_empty() {
            rules += &format!(
                "table inet {TABLE} {{\n  chain dialling {{\n    type filter hook prerouting priority -10;\n    \
                 ip saddr {{ {} }} ct state new drop\n  }}\n}}\n",
                refused.join(", ")
            );
        }
        for node in nodes.of_cluster(cluster) {
            let mut command = in_namespace(&node.network_namespace_path());
            run_with_input(command.args(["nft", "-f", "-"]), &rules)?;
        }
        Ok(())
    }
}

/// Where an endpoint meets the wire: one port for each node of a cluster, or the machine's one.
struct Port<'a> {
    name: String,
    address: Ipv4Addr,
    device: String,
    namespace: BorrowedFd<'a>,
    /// `None` is the developer's machine.
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

/// All addresses from which an endpoint could dial, also those of nodes that are off now.
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
        if endpoint != HOST && !nodes.knows(endpoint) {
            return Err(Error::Refused(format!(
                "this lab has no cluster `{endpoint}`; endpoints are its clusters and `{HOST}`"
            )));
        }
    }
    Ok(())
}
