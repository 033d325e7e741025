//! Requests for labs, and the plan that follows: names, addresses, roles. Pure functions, nothing is started here.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The endpoint name of the developer's machine in network faults.
pub const HOST: &str = "host";

/// The default names of clusters.
pub const CLUSTER_NAMES: [&str; 4] = ["east", "west", "north", "south"];

pub const MAX_CLUSTERS: usize = CLUSTER_NAMES.len();
/// Limited by the addresses that [`Network`] has for one cluster.
pub(crate) const MAX_NODES: usize = 9;

/// What a cluster runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// A cluster that runs pods and has DNS.
    #[default]
    Full,
    /// etcd, API server and controllers; no node, so no pod ever runs.
    ControlPlaneOnly,
}

/// A requested cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterRequest {
    pub name: String,
    pub nodes: usize,
    pub shape: Shape,
}

/// A requested lab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabRequest {
    pub name: String,
    pub clusters: Vec<ClusterRequest>,
}

impl LabRequest {
    /// Identical clusters with the first `clusters` of the [`CLUSTER_NAMES`].
    pub fn new(name: &str, clusters: usize, nodes: usize, shape: Shape) -> Result<Self> {
        if !(1..=MAX_CLUSTERS).contains(&clusters) {
            return Err(Error::Refused(format!(
                "a lab has 1 to {MAX_CLUSTERS} clusters, not {clusters}"
            )));
        }
        let request = LabRequest {
            name: name.to_owned(),
            clusters: CLUSTER_NAMES[..clusters]
                .iter()
                .map(|cluster| ClusterRequest {
                    name: (*cluster).to_owned(),
                    nodes,
                    shape,
                })
                .collect(),
        };
        request.check()?;
        Ok(request)
    }

    pub fn check(&self) -> Result<()> {
        check_name("lab", &self.name)?;
        for cluster in &self.clusters {
            check_name("cluster", &cluster.name)?;
            if cluster.name == HOST {
                return Err(Error::Refused(format!(
                    "`{HOST}` is the developer's machine, not a cluster"
                )));
            }
            if !(1..=MAX_NODES).contains(&cluster.nodes) {
                return Err(Error::Refused(format!(
                    "a cluster has 1 to {MAX_NODES} nodes, not {}",
                    cluster.nodes
                )));
            }
            if cluster.shape == Shape::ControlPlaneOnly && cluster.nodes > 1 {
                return Err(Error::Refused(format!(
                    "cluster {} is a control plane only, so it cannot have {} nodes",
                    cluster.name, cluster.nodes
                )));
            }
        }
        Ok(())
    }
}

/// Names are used for folders, host names and devices, so they may only have characters that all of these accept.
pub(crate) fn check_name(what: &str, name: &str) -> Result<()> {
    let fits = (1..=20).contains(&name.len())
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        && !name.ends_with('-');
    if fits {
        Ok(())
    } else {
        Err(Error::Refused(format!(
            "`{name}` cannot be the name of a {what}: use 1 to 20 of a-z, 0-9 and -, a letter first"
        )))
    }
}

/// The address range of a lab. Each running lab has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    slot: u8,
}

impl Network {
    pub const SLOTS: u8 = 32;

    pub fn in_slot(slot: u8) -> Self {
        Network { slot }
    }

    /// The lab's one device on the developer's machine. It also names the lab's cgroups.
    pub fn device(self) -> String {
        format!("standin{}", self.slot)
    }

    pub fn subnet(self) -> String {
        format!("10.200.{}.0/24", self.slot)
    }

    /// The developer's machine, seen from the clusters.
    pub fn host(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 200, self.slot, 1)
    }

    pub fn contains(self, address: Ipv4Addr) -> bool {
        address.octets()[..3] == [10, 200, self.slot]
    }

    fn node(self, cluster: u8, node: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 200, self.slot, 10 * cluster + node)
    }
}

/// A cluster with its addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterPlan {
    pub name: String,
    pub shape: Shape,
    pub pod_range: String,
    pub service_range: String,
    /// The address of the API server inside the cluster.
    pub service_address: Ipv4Addr,
    pub dns_address: Ipv4Addr,
    pub nodes: Vec<NodePlan>,
}

/// A node with its addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodePlan {
    pub name: String,
    pub address: Ipv4Addr,
    pub pod_subnet: String,
    pub role: NodeRole,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeRole {
    /// Control plane, and pods unless the cluster is a control plane only.
    First,
    Worker,
}

impl ClusterPlan {
    /// `number` counts the clusters of a lab from 1.
    pub fn new(network: Network, number: u8, request: &ClusterRequest) -> Self {
        let pods = 210 + number;
        let services = 220 + number;
        let nodes = (0..u8::try_from(request.nodes).unwrap_or(u8::MAX))
            .map(|node| NodePlan {
                name: format!("{}-{}", request.name, node + 1),
                address: network.node(number, node),
                pod_subnet: format!("10.{pods}.{node}.0/24"),
                role: if node == 0 {
                    NodeRole::First
                } else {
                    NodeRole::Worker
                },
            })
            .collect();
        ClusterPlan {
            name: request.name.clone(),
            shape: request.shape,
            pod_range: format!("10.{pods}.0.0/16"),
            service_range: format!("10.{services}.0.0/16"),
            service_address: Ipv4Addr::new(10, services, 0, 1),
            dns_address: Ipv4Addr::new(10, services, 0, 10),
            nodes,
        }
    }

    /// The node that runs the control plane.
    pub fn first_node(&self) -> &NodePlan {
        &self.nodes[0]
    }

    pub fn api_server(&self) -> String {
        format!("https://{}:6443", self.first_node().address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_of_a_lab_have_distinct_addresses() {
        let network = Network::in_slot(3);
        let request = LabRequest::new("lab", 4, MAX_NODES, Shape::Full).unwrap();
        let plans: Vec<_> = (1..)
            .zip(&request.clusters)
            .map(|(number, cluster)| ClusterPlan::new(network, number, cluster))
            .collect();
        let mut addresses: Vec<_> = plans
            .iter()
            .flat_map(|plan| plan.nodes.iter().map(|node| node.address))
            .collect();
        let count = addresses.len();
        addresses.push(network.host());
        addresses.sort();
        addresses.dedup();
        assert_eq!(addresses.len(), count + 1);
        assert!(addresses.iter().all(|address| network.contains(*address)));
        assert_eq!(plans[1].api_server(), "https://10.200.3.20:6443");
        assert_eq!(plans[1].nodes[2].pod_subnet, "10.212.2.0/24");
    }

    #[test]
    fn bad_requests_are_refused_with_the_limit() {
        let check = |clusters, nodes, shape, expected: &str| {
            let error = LabRequest::new("lab", clusters, nodes, shape)
                .unwrap_err()
                .to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(0, 1, Shape::Full, "1 to 4 clusters");
        check(5, 1, Shape::Full, "1 to 4 clusters");
        check(1, 0, Shape::Full, "1 to 9 nodes");
        check(1, 10, Shape::Full, "1 to 9 nodes");
        check(1, 2, Shape::ControlPlaneOnly, "control plane only");
        for name in [
            "",
            "-x",
            "Lab",
            "a_b",
            "x-",
            "0a",
            "a-name-that-is-much-too-long",
        ] {
            let error = LabRequest::new(name, 1, 1, Shape::Full)
                .unwrap_err()
                .to_string();
            assert!(error.contains("cannot be the name of a lab"), "{error}");
        }
    }
}
