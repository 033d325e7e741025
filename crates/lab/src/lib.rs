//! Real Kubernetes clusters on one machine, for the demo, the tests and the benchmarks.
//!
//! Start reading at [`Lab::up`], which goes from an empty machine to clusters with running pods. Each node is a set of
//! namespaces with a real kubelet and container runtime ([`node`]). The clusters share a bridge that one process per lab
//! owns ([`daemon`]). Network faults between clusters go through a [`wire`].
//!
//! A program that uses the lab calls [`role::run_if_requested`] as the first statement of `main`.
//!
//! | module | what it does |
//! |---|---|
//! | [`lab`] | starts, finds, inspects and removes a lab |
//! | [`cluster`] | operations on one running cluster: images, components, node power |
//! | [`client`] | `kubectl` and `helm` for a cluster, of the lab or of a kubeconfig context |
//! | [`plan`] | requests, and the names, addresses and roles that follow from them |
//! | [`daemon`] | the process of a lab: bridge, nodes, network faults |
//! | [`node`] | process 1 of a node: root file system, components and their supervision |
//! | [`role`] | starts this program again as daemon or as process 1 of a node |
//! | [`control`] | requests to these processes over Unix sockets |
//! | [`wire`] | delay, loss, rate limits and cuts between network namespaces |
//! | [`cgroup`] | control groups of labs and nodes, for cgroup v1 and v2 |
//! | [`pki`] | keys, certificates and kubeconfigs |
//! | [`api`] | requests to an API server while a cluster starts |
//! | [`dns`] | CoreDNS in a cluster |
//! | [`binaries`] | builds Kubernetes, etcd, CoreDNS and Helm |
//! | [`image`], [`debian`] | container images, and their root filesystems from Debian packages |
//! | [`standind`], [`shop`] | the images of the agent and of the sample shop |
//! | [`hostile`] | a pod that opens many connections to the listeners of others |
//! | [`host_checks`] | what the host must provide, checked before anything is changed |
//! | [`cleanup`] | finds resources that a lab left on the host |
//! | [`usage`] | memory and processor time of a lab |
//! | [`paths`], [`environment`] | directories, files and environment variables |
//! | [`command`], [`progress`], [`error`] | child processes, progress output, errors |

mod api;
pub mod binaries;
mod cgroup;
pub mod cleanup;
mod client;
mod cluster;
mod command;
mod control;
mod daemon;
pub mod debian;
mod dns;
pub mod environment;
mod error;
pub mod host_checks;
pub mod hostile;
pub mod image;
mod lab;
mod node;
mod paths;
mod pki;
mod plan;
mod progress;
pub mod role;
pub mod shop;
pub mod standind;
mod usage;
pub mod wire;

pub use client::Client;
pub use cluster::{Cluster, output_of};
pub use command::cargo;
pub use daemon::LinkStatus;
pub use error::{Error, Result};
pub use lab::{Lab, LabStatus, Lifetime, NodeOverview, Power};
pub use node::{ComponentState, ComponentStatus};
pub use paths::Paths;
pub use pki::base64;
pub use plan::{
    CLUSTER_NAMES, ClusterPlan, ClusterRequest, HOST, LabRequest, MAX_CLUSTERS, Network, NodePlan,
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
