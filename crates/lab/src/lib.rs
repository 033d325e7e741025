//! Real Kubernetes clusters on one machine, for the demo, the tests and the benchmarks.
//!
//! Read [`Lab::up`] first: it is the story from nothing to clusters whose pods run. Each node is a set of namespaces
//! with a real kubelet and container runtime ([`node`]), the clusters meet on a bridge that one process holds
//! ([`keeper`]), and faults between them are carried by a [`wire`].
//!
//! A program that uses the lab calls [`role::run_if_asked`] first thing in `main`.

mod api;
pub mod binaries;
mod cgroup;
mod client;
mod cluster;
mod command;
mod control;
pub mod debian;
mod dns;
pub mod environment;
mod error;
pub mod image;
mod keeper;
mod lab;
mod node;
mod paths;
mod pki;
mod plan;
mod progress;
pub mod remains;
pub mod role;
pub mod shop;
pub mod standind;
pub mod surroundings;
mod usage;
pub mod wire;

pub use client::Client;
pub use cluster::{Cluster, output_of};
pub use command::cargo;
pub use error::{Error, Result};
pub use keeper::LinkStatus;
pub use lab::{Lab, LabStatus, Lifetime, NodeOverview, Power};
pub use node::{ComponentState, ComponentStatus};
pub use paths::Paths;
pub use pki::base64;
pub use plan::{
    CLUSTER_NAMES, ClusterPlan, ClusterRequest, HOST, LabRequest, MOST_CLUSTERS, Network, NodePlan,
    Shape,
};
pub use progress::Progress;
pub use usage::Usage;
pub use wire::Conditions;

/// The names of the programs that nodes run.
pub mod component {
    pub use crate::node::components::{
        API_SERVER, CONTAINERD, CONTROLLER_MANAGER, ETCD, KUBE_PROXY, KUBELET, SCHEDULER,
    };
}
