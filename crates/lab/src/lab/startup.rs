//! Starts a planned cluster until its pods can run.

use std::fs;
use std::thread;

use super::lifecycle::write_json;
use super::{Lab, in_parallel};
use crate::cluster::{Cluster, stopped_thread};
use crate::daemon;
use crate::dns;
use crate::error::{Error, ErrorContext as _, Result};
use crate::host_checks;
use crate::image::ImageArchive;
use crate::node;
use crate::node::components::{self, CONTAINERD, MachinePrograms};
use crate::pki;
use crate::plan::{NodePlan, Shape};
use crate::progress::Progress;

/// Starts a cluster from nothing. Files and nodes of an earlier attempt are removed first.
pub(super) fn start_cluster(
    lab: &Lab,
    cluster: &Cluster,
    images: &[ImageArchive],
    progress: &Progress,
) -> Result<()> {
    let running = lab.call_daemon(&daemon::Request::Status)?.nodes;
    for node in &cluster.plan.nodes {
        if running.iter().any(|running| running.node == node.name) {
            cluster.stop_node(&node.name)?;
        }
        let folder = lab.paths.node(&node.name);
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
        }
    }
    prepare_folders(lab, cluster)?;
    in_parallel(&cluster.plan.nodes, |node| {
        let request = daemon::Request::StartNode {
            cluster: cluster.plan.clone(),
            node: node.name.clone(),
        };
        lab.call_daemon(&request).map(drop)
    })?;
    in_parallel(&cluster.plan.nodes, |node| {
        start_components(cluster, node, images, progress)
    })?;
    match cluster.plan.shape {
        Shape::ControlPlaneOnly => wait_for_default_account(cluster)?,
        Shape::Full => {
            dns::install(cluster)?;
            cluster.wait_for_nodes()?;
            let nodes = cluster.plan.nodes.len();
            progress.step(format!("{}: {nodes} node(s) Ready", cluster.name()));
            dns::wait(cluster)?;
            progress.step(format!(
                "{}: pods can run and names resolve",
                cluster.name()
            ));
        }
    }
    cluster.mark_complete()
}

/// Starts the nodes of a complete cluster that were stopped.
pub(super) fn restart_stopped_nodes(
    lab: &Lab,
    cluster: &Cluster,
    progress: &Progress,
) -> Result<()> {
    let running = lab.call_daemon(&daemon::Request::Status)?.nodes;
    for node in &cluster.plan.nodes {
        if !running.iter().any(|running| running.node == node.name) {
            cluster.start_node(&node.name)?;
            progress.step(format!("{}: started again", node.name));
        }
    }
    Ok(())
}

/// Waits for the `default` service account: the API server rejects pods until the controllers have created it.
pub(crate) fn wait_for_default_account(cluster: &Cluster) -> Result<()> {
    let api = cluster.api()?;
    let path = "/api/v1/namespaces/default/serviceaccounts/default";
    cluster.wait_for(
        &cluster.plan.first_node().name,
        components::CONTROLLER_MANAGER,
        "the default service account is missing",
        || api.get(path).is_ok_and(|account| account.is_some()),
    )
}

fn prepare_folders(lab: &Lab, cluster: &Cluster) -> Result<()> {
    let authorities = lab.paths.authority(cluster.name());
    if !authorities.exists() {
        pki::create_authorities(&authorities)?;
    }
    let machine = machine_programs()?;
    let group = daemon::lab_group(lab.network)?;
    for node in &cluster.plan.nodes {
        let folder = lab.paths.node(&node.name);
        for part in ["log", "cni"] {
            let path = folder.join(part);
            fs::create_dir_all(&path).with_context(|| format!("create {}", path.display()))?;
        }
        pki::create_node(&folder.join("pki"), &authorities, &cluster.plan, node)?;
        let group = group.of_node(&node.name).name();
        for (name, text) in components::files(&cluster.plan, node, &group, &machine) {
            let file = folder.join(name);
            fs::write(&file, text).with_context(|| format!("write {}", file.display()))?;
        }
        let spec = node::NodeSpec {
            name: node.name.clone(),
            lab_group: lab.network.device(),
            programs: cluster.binaries.directory().to_owned(),
            components: components::components(&cluster.plan, node),
        };
        write_json(&node::spec_file(&folder), &spec)?;
    }
    Ok(())
}

/// Starts the components of a node in their order, each as soon as its dependencies are ready.
fn start_components(
    cluster: &Cluster,
    node: &NodePlan,
    images: &[ImageArchive],
    progress: &Progress,
) -> Result<()> {
    let list = components::components(&cluster.plan, node);
    let has = |name: &str| list.iter().any(|component| component.name == name);
    let start = |name: &str| {
        if has(name) {
            cluster.start_component(&node.name, name)
        } else {
            Ok(())
        }
    };
    // The container runtime and the control plane do not depend on each other, so they start concurrently.
    thread::scope(|scope| {
        let images = scope.spawn(|| {
            start(CONTAINERD)?;
            if has(CONTAINERD) {
                load_first_images(cluster, node, images)
            } else {
                Ok(())
            }
        });
        start(components::ETCD)?;
        start(components::API_SERVER)?;
        cluster.wait_for_api_server()?;
        if has(components::API_SERVER) {
            progress.step(format!("{}: API server ready", cluster.name()));
        }
        start(components::CONTROLLER_MANAGER)?;
        start(components::SCHEDULER)?;
        images.join().unwrap_or_else(|_| Err(stopped_thread()))?;
        start(components::KUBELET)?;
        start(components::KUBE_PROXY)
    })
}

fn load_first_images(cluster: &Cluster, node: &NodePlan, images: &[ImageArchive]) -> Result<()> {
    let is_responding = || {
        cluster.in_node(&node.name).is_ok_and(|mut command| {
            command
                .args([
                    "ctr",
                    "--address",
                    "/run/containerd/containerd.sock",
                    "version",
                ])
                .output()
                .is_ok_and(|output| output.status.success())
        })
    };
    cluster.wait_for(
        &node.name,
        CONTAINERD,
        "the container runtime does not respond",
        is_responding,
    )?;
    in_parallel(&images.iter().collect::<Vec<_>>(), |image| {
        cluster.load_into_node(&node.name, image.path())
    })
}

fn machine_programs() -> Result<MachinePrograms> {
    let missing = |what: &str| Error::Refused(format!("{what} disappeared while the lab started"));
    Ok(MachinePrograms {
        runc: host_checks::find_program("runc")
            .ok_or_else(|| missing("runc"))?
            .display()
            .to_string(),
        network_plugins: host_checks::network_plugins()
            .ok_or_else(|| missing("the network plugins"))?
            .display()
            .to_string(),
    })
}
