//! The status of a lab: nodes, components and network faults.

use std::path::PathBuf;

use serde::Serialize;

use super::Lab;
use crate::cluster::Cluster;
use crate::daemon::{self, LinkStatus};
use crate::error::Result;
use crate::node::ComponentStatus;
use crate::plan::NodePlan;

/// The nodes with their components, and the links that have faults.
#[derive(Clone, Debug, Serialize)]
pub struct LabStatus {
    pub name: String,
    pub network: String,
    pub detached: bool,
    pub kubeconfig: PathBuf,
    pub nodes: Vec<NodeOverview>,
    pub links: Vec<LinkStatus>,
}

#[derive(Clone, Debug, Serialize)]
pub struct NodeOverview {
    pub cluster: String,
    pub node: String,
    pub address: String,
    pub power: Power,
    pub components: Vec<ComponentStatus>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Power {
    On,
    Off,
    Frozen,
}

impl Lab {
    pub fn status(&self) -> Result<LabStatus> {
        let status = self.call_daemon(&daemon::Request::Status)?;
        let overview = |cluster: &Cluster, node: &NodePlan| {
            let running = status
                .nodes
                .iter()
                .find(|running| running.node == node.name);
            let power = match running {
                None => Power::Off,
                Some(running) if running.frozen => Power::Frozen,
                Some(_) => Power::On,
            };
            let components = if power == Power::On {
                cluster.components(&node.name).unwrap_or_default()
            } else {
                Vec::new()
            };
            NodeOverview {
                cluster: cluster.name().to_owned(),
                node: node.name.clone(),
                address: node.address.to_string(),
                power,
                components,
            }
        };
        Ok(LabStatus {
            name: self.name.clone(),
            network: self.network.subnet(),
            detached: status.released,
            kubeconfig: self.kubeconfig(),
            nodes: self
                .clusters
                .iter()
                .flat_map(|cluster| {
                    cluster
                        .plan()
                        .nodes
                        .iter()
                        .map(move |node| overview(cluster, node))
                })
                .collect(),
            links: status.links,
        })
    }
}
