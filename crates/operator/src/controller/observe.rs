//! What there is: the pods of a session's target, and the agents in them.

use cluster::pod::judge;
use cluster::{Cluster, ordered, pods_of};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;

use super::plan::{Observed, ObservedPod};
use super::validate::Wanted;
use crate::error::{Error, Result, chain};

pub(super) async fn observe(cluster: &Cluster, wanted: &Wanted) -> Result<Observed> {
    match pods_of(cluster, &wanted.target).await {
        Ok(pods) => Ok(observed(&pods, wanted)),
        // A target that is not there is a fact about it; an API server that does not answer is not.
        Err(error) if error.may_pass() => Err(Error::Cluster(Box::new(error))),
        Err(error) => Ok(Observed::nothing(chain(&error))),
    }
}

fn observed(pods: &[Pod], wanted: &Wanted) -> Observed {
    let prefix = wanted.agent_prefix();
    let mut observed = Observed::default();
    for pod in pods {
        match judge(pod, wanted.target.container.as_deref()) {
            Ok(replica) => observed.pods.push(ObservedPod {
                address: pod.status.as_ref().and_then(|status| status.pod_ip.clone()),
                agents: ordered(pod, &prefix),
                replica,
            }),
            Err(unfit) => observed
                .unfit
                .push(format!("pod {} {unfit}", pod.name_any())),
        }
    }
    observed
        .pods
        .sort_by(|one, other| one.replica.pod.cmp(&other.replica.pod));
    observed
}
