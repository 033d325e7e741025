//! The pods of a target at one moment, for callers that poll anyway. See [`crate::Replicas`] for a watch.

use std::collections::HashSet;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};

use crate::access::Cluster;
use crate::error::{Error, Result};
use crate::resolve::{Filter, Owner, resolve};
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
    let jobs = match &selection.owner {
        Owner::JobOf(cron_job) => jobs_of(cluster, &target.namespace, cron_job).await?,
        _ => HashSet::new(),
    };
    let is_of_target = |pod: &Pod| {
        let owners = pod.owner_references();
        let controller = owners.iter().find(|owner| owner.controller == Some(true));
        match &selection.owner {
            Owner::Any => true,
            Owner::Kind(kind) => controller.is_some_and(|owner| owner.kind == *kind),
            Owner::Object(uid) => controller.is_some_and(|owner| owner.uid == *uid),
            Owner::JobOf(_) => controller.is_some_and(|owner| jobs.contains(&owner.uid)),
        }
    };
    Ok(found.items.into_iter().filter(is_of_target).collect())
}

async fn jobs_of(cluster: &Cluster, namespace: &str, cron_job: &str) -> Result<HashSet<String>> {
    let jobs: Api<Job> = Api::namespaced(cluster.client.clone(), namespace);
    let found = jobs.list(&ListParams::default()).await;
    let found = found.map_err(|error| Error::api("list jobs", error))?;
    let is_of_target = |job: &Job| {
        job.owner_references()
            .iter()
            .any(|owner| owner.uid == cron_job)
    };
    let ours = found.items.iter().filter(|job| is_of_target(job));
    Ok(ours.filter_map(kube::ResourceExt::uid).collect())
}
