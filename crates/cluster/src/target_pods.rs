//! The pods of a target at one moment, for callers that poll anyway. See [`crate::Replicas`] for a watch.

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;

use crate::access::Cluster;
use crate::error::{Error, Result};
use crate::owner::{Owner, PodOwners, unreadable};
use crate::resolve::{Filter, resolve};
use crate::target::Workload;

/// Resolves a target, and lists its pods.
pub async fn list_target_pods(cluster: &Cluster, target: &Workload) -> Result<Vec<Pod>> {
    let selection = resolve(cluster, target).await?;
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &target.namespace);
    let parameters = match &selection.filter {
        Filter::Name(name) => ListParams::default().fields(&format!("metadata.name={name}")),
        Filter::Labels(labels) => ListParams::default().labels(labels),
    };
    let found = pods.list(&parameters).await;
    let found = found.map_err(|error| Error::api(format!("list the pods of {target}"), error))?;
    let mut owners = PodOwners::new(cluster, &target.namespace);
    if matches!(selection.owner, Owner::Indirect(_)) {
        owners.prepare(&found.items).await.map_err(unreadable)?;
    }
    let mut of_target = Vec::new();
    for pod in found.items {
        let is_of_target = owners.is_of(&pod, &selection.owner).await;
        if is_of_target.map_err(unreadable)? {
            of_target.push(pod);
        }
    }
    Ok(of_target)
}
