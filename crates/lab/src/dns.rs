//! DNS inside a cluster: CoreDNS, as a pod like in any other cluster.

use crate::binaries::Binaries;
use crate::cluster::Cluster;
use crate::error::Result;
use crate::image::{Cache, Image, ImageArchive};
use crate::lab::wait_for_default_account;
use crate::node::components::KUBELET;

const MANIFESTS: &str = include_str!("../manifests/coredns.yaml");
const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/kube-system/deployments/coredns";

pub(crate) fn image(cache: &Cache, binaries: &Binaries) -> Result<ImageArchive> {
    let image = Image::new("registry.lab/coredns:1")
        .file("/coredns", binaries.program("coredns"), 0o755)
        .entrypoint(["/coredns"]);
    Ok(image.write_cached(cache)?)
}

pub(crate) fn install(cluster: &Cluster) -> Result<()> {
    wait_for_default_account(cluster)?;
    let plan = cluster.plan();
    let manifests = MANIFESTS
        .replace("DNS_ADDRESS", &plan.dns_address.to_string())
        .replace("FIRST_NODE", &plan.first_node().name);
    cluster.client().apply("kube-system", &manifests)
}

pub(crate) fn wait(cluster: &Cluster) -> Result<()> {
    let api = cluster.api()?;
    let first = &cluster.plan().first_node().name;
    cluster.wait_for(first, KUBELET, "CoreDNS is not available", || {
        api.has_condition(DEPLOYMENT, "Available")
    })
}
