//! The pods of a target that is a Service. A user who may change a Service chooses its pods, so a right to the Service is no right
//! to its pods: the user needs the right to each pod, or to a workload that controls it, as well.

use std::collections::BTreeMap;

use api::{MirrordClusterSession, TargetKind, TargetPath};
use cluster::{Cluster, Kind, PodOwners};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt as _;

use super::validate::ValidatedSpec;
use crate::Shared;
use crate::authorize::is_authorized;
use crate::error::{Error, Result};
use crate::front_proxy::User;
use crate::multicluster::sessions::assertion;

/// Why pods are not part of the session, by their uid.
pub(super) async fn refusals(
    shared: &Shared,
    cluster: &Cluster,
    session: &MirrordClusterSession,
    spec: &ValidatedSpec,
    pods: &[Pod],
) -> Result<BTreeMap<String, String>> {
    let mut refusals = BTreeMap::new();
    let is_service = spec
        .target
        .as_ref()
        .is_some_and(|target| target.kind == Kind::Service);
    let Some(user) = assertion::user_of(shared, session).filter(|_| is_service) else {
        return Ok(refusals);
    };
    let is_allowed = async |name: Option<String>| {
        let verdict = is_authorized(&shared.client, &user, &spec.namespace, name).await;
        verdict.map_err(|refusal| Error::AccessReview(refusal.message))
    };
    if is_allowed(None).await? {
        return Ok(refusals);
    }
    let mut owners = PodOwners::new(cluster, &spec.namespace);
    // Most pods have the same owner.
    let mut reviewed: BTreeMap<String, bool> = BTreeMap::new();
    for pod in pods {
        let workloads = workloads(&mut owners, pod).await?;
        let mut has_right = false;
        for workload in workloads.iter().rev() {
            let address = workload.address();
            has_right = match reviewed.get(&address) {
                Some(verdict) => *verdict,
                None => is_allowed(Some(address.clone())).await?,
            };
            reviewed.insert(address, has_right);
            if has_right {
                break;
            }
        }
        if !has_right {
            let uid = pod.uid().unwrap_or_default();
            refusals.insert(uid, refusal(&user, spec, workloads.last()));
        }
    }
    Ok(refusals)
}

/// The pod, its controller, and the controller of that one, as far as they can be targets.
async fn workloads(owners: &mut PodOwners, pod: &Pod) -> Result<Vec<TargetPath>> {
    let controllers = owners.of_pod(pod).await;
    let controllers = controllers.map_err(|error| Error::Cluster(Box::new(error)))?;
    let controllers = controllers
        .into_iter()
        .filter_map(|owner| Some((kind_of(&owner)?, owner.name)));
    let all = std::iter::once((TargetKind::Pod, pod.name_any())).chain(controllers);
    let path = |(kind, name)| TargetPath {
        kind,
        name,
        container: None,
    };
    Ok(all.map(path).collect())
}

/// Another API group may have a kind of the same name.
fn kind_of(owner: &OwnerReference) -> Option<TargetKind> {
    let (group, _) = owner.api_version.split_once('/')?;
    Some(match (group, owner.kind.as_str()) {
        ("apps", "Deployment") => TargetKind::Deployment,
        ("apps", "StatefulSet") => TargetKind::StatefulSet,
        ("apps", "DaemonSet") => TargetKind::DaemonSet,
        ("apps", "ReplicaSet") => TargetKind::ReplicaSet,
        ("batch", "Job") => TargetKind::Job,
        ("batch", "CronJob") => TargetKind::CronJob,
        ("argoproj.io", "Rollout") => TargetKind::Rollout,
        _ => return None,
    })
}

fn refusal(user: &User, spec: &ValidatedSpec, workload: Option<&TargetPath>) -> String {
    let workload = workload.map_or_else(|| "it".to_owned(), ToString::to_string);
    format!(
        "{} may have a session with {}, and not with {workload}, which the Service selects as well; ask for the right to \
         {workload}",
        user.name, spec.target_path
    )
}

#[cfg(test)]
mod tests;
