//! Makes an agent, in one way or the other.

use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, ResourceExt as _};
use tokio::time::sleep;

use super::Agent;
use super::manifest::Plan;
use crate::access::Cluster;
use crate::error::{Error, Result, status};
use crate::pod::Replica;
use crate::refusal::Obstacle;

/// Who changes objects, for those who look later.
const MANAGER: &str = "standin";
/// How often to look whether the Job's pod was refused.
const LOOK_EVERY: Duration = Duration::from_millis(300);

/// An agent, or what stands in its way.
pub(super) type Made = Result<Result<Agent, Obstacle>>;

pub(super) async fn ephemeral(cluster: &Cluster, plan: Plan<'_>, replica: &Replica) -> Made {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &replica.namespace);
    let patch = Patch::Strategic(plan.ephemeral_container(replica));
    let parameters = PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let patched = pods
        .patch_ephemeral_containers(&replica.pod, &parameters, &patch)
        .await;
    if let Err(error) = patched {
        return obstacle(error, "start an agent in the target's pod").map(Err);
    }
    Ok(Ok(Agent {
        cluster: cluster.clone(),
        namespace: replica.namespace.clone(),
        pod: replica.pod.clone(),
        container: plan.name.to_owned(),
        job: None,
        listens: plan.listen,
    }))
}

pub(super) async fn pod(
    cluster: &Cluster,
    plan: Plan<'_>,
    replica: Option<&Replica>,
    namespace: &str,
) -> Made {
    let jobs: Api<Job> = Api::namespaced(cluster.client.clone(), namespace);
    let job = plan.job(replica).map_err(|error| Error::AgentFailed {
        pod: plan.name.to_owned(),
        why: format!("its settings make no Job: {error}"),
    })?;
    let parameters = PostParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PostParams::default()
    };
    if let Err(error) = jobs.create(&parameters, &job).await {
        return obstacle(error, "start an agent as a pod").map(Err);
    }
    let mut agent = Agent {
        cluster: cluster.clone(),
        namespace: namespace.to_owned(),
        pod: plan.name.to_owned(),
        container: "agent".to_owned(),
        job: Some(plan.name.to_owned()),
        listens: plan.listen,
    };
    let patience = plan.settings.startup_timeout;
    let found = tokio::select! {
        pod = pod_of_job(cluster, namespace, plan.name) => Ok(Ok(pod?)),
        obstacle = refused(cluster, namespace, plan.name) => Ok(Err(obstacle)),
        () = sleep(patience) => Err(Error::Timeout {
            pod: plan.name.to_owned(),
            waited: patience,
            why: format!("the Job {} in {namespace} has made no pod", plan.name),
        }),
    };
    match found {
        Ok(Ok(pod)) => {
            agent.pod = pod;
            Ok(Ok(agent))
        }
        Ok(Err(obstacle)) => {
            agent.remove().await;
            Ok(Err(obstacle))
        }
        Err(error) => {
            agent.remove().await;
            Err(error)
        }
    }
}

/// What a refused request means.
fn obstacle(error: kube::Error, action: &str) -> Result<Obstacle> {
    match status(&error) {
        // Somebody's policy may choose any of these; a pod that is not there any more or another one is no policy.
        Some(status) if matches!(status.code, 400 | 403 | 422) => {
            Ok(Obstacle::read(&status.message))
        }
        _ => Err(Error::api(action, error)),
    }
}

/// Waits for the pod that a Job makes.
async fn pod_of_job(cluster: &Cluster, namespace: &str, job: &str) -> Result<String> {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), namespace);
    let config = watcher::Config::default().labels(&format!("job-name={job}"));
    let mut events = pin!(watcher(pods, config).default_backoff());
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod)) => {
                return Ok(pod.name_any());
            }
            Err(watcher::Error::InitialListFailed(error)) => {
                return Err(Error::api("find the agent's pod", error));
            }
            Ok(_) | Err(_) => {}
        }
    }
    std::future::pending().await
}

/// Waits for the reason why a Job cannot make its pod: the cluster judges pods, and not the Jobs that make them.
async fn refused(cluster: &Cluster, namespace: &str, job: &str) -> Obstacle {
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), namespace);
    let fields = format!("involvedObject.kind=Job,involvedObject.name={job},reason=FailedCreate");
    let parameters = ListParams::default().fields(&fields);
    loop {
        sleep(LOOK_EVERY).await;
        let Ok(found) = events.list(&parameters).await else {
            // Who may not read events waits for the pod.
            return std::future::pending().await;
        };
        if let Some(message) = found.items.into_iter().find_map(|event| event.message) {
            return Obstacle::read(&message);
        }
    }
}
