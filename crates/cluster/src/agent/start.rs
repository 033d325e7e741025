//! Creates an agent in the cluster: as an ephemeral container or as a Job with a pod.

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

use super::ClusterAgent;
use super::manifest::Plan;
use crate::access::Cluster;
use crate::error::{Error, Result, status};
use crate::pod::Replica;
use crate::refusal::Denial;

/// The field manager of objects that are created or changed here.
const FIELD_MANAGER: &str = "standin";
/// How often the events are polled for a refusal of the Job's pod.
const POLL_INTERVAL: Duration = Duration::from_millis(300);

/// The agent, or why the cluster denied it.
pub(super) type StartResult = Result<Result<ClusterAgent, Denial>>;

pub(super) async fn ephemeral(cluster: &Cluster, plan: Plan<'_>, replica: &Replica) -> StartResult {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &replica.namespace);
    let patch = Patch::Strategic(plan.ephemeral_container(replica));
    let parameters = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let patched = pods
        .patch_ephemeral_containers(&replica.pod, &parameters, &patch)
        .await;
    if let Err(error) = patched {
        return denial(error, "start an agent in the target's pod").map(Err);
    }
    Ok(Ok(ClusterAgent {
        cluster: cluster.clone(),
        namespace: replica.namespace.clone(),
        pod: replica.pod.clone(),
        container: plan.name.to_owned(),
        job: None,
        listen: plan.listen,
    }))
}

pub(super) async fn pod(
    cluster: &Cluster,
    plan: Plan<'_>,
    replica: Option<&Replica>,
    namespace: &str,
) -> StartResult {
    let jobs: Api<Job> = Api::namespaced(cluster.client.clone(), namespace);
    let job = plan.job(replica).map_err(|error| Error::AgentFailed {
        pod: plan.name.to_owned(),
        why: format!("its settings make no Job: {error}"),
    })?;
    let parameters = PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    };
    if let Err(error) = jobs.create(&parameters, &job).await {
        return denial(error, "start an agent as a pod").map(Err);
    }
    let mut agent = ClusterAgent {
        cluster: cluster.clone(),
        namespace: namespace.to_owned(),
        pod: plan.name.to_owned(),
        container: "agent".to_owned(),
        job: Some(plan.name.to_owned()),
        listen: plan.listen,
    };
    let startup_timeout = plan.settings.startup_timeout;
    let found = tokio::select! {
        pod = pod_of_job(cluster, namespace, plan.name) => Ok(Ok(pod?)),
        denial = pod_denied(cluster, namespace, plan.name) => Ok(Err(denial)),
        () = sleep(startup_timeout) => Err(Error::Timeout {
            pod: plan.name.to_owned(),
            waited: startup_timeout,
            why: format!("the Job {} in {namespace} has created no pod", plan.name),
        }),
    };
    match found {
        Ok(Ok(pod)) => {
            agent.pod = pod;
            Ok(Ok(agent))
        }
        Ok(Err(denial)) => {
            agent.remove().await;
            Ok(Err(denial))
        }
        Err(error) => {
            agent.remove().await;
            Err(error)
        }
    }
}

/// The denial that an error response stands for, if it is one.
fn denial(error: kube::Error, action: &str) -> Result<Denial> {
    match status(&error) {
        // An admission policy may respond with any of these. A deleted or replaced pod has another code.
        Some(status) if matches!(status.code, 400 | 403 | 422) => {
            Ok(Denial::parse(&status.message))
        }
        _ => Err(Error::api(action, error)),
    }
}

/// Waits for the pod of a Job.
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

/// Waits for the reason why a Job cannot create its pod: admission applies to pods, and not to the Jobs that create them.
async fn pod_denied(cluster: &Cluster, namespace: &str, job: &str) -> Denial {
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), namespace);
    let fields = format!("involvedObject.kind=Job,involvedObject.name={job},reason=FailedCreate");
    let parameters = ListParams::default().fields(&fields);
    loop {
        sleep(POLL_INTERVAL).await;
        let Ok(found) = events.list(&parameters).await else {
            // Without the right to read events, only the timeout ends the wait for the pod.
            return std::future::pending().await;
        };
        if let Some(message) = found.items.into_iter().find_map(|event| event.message) {
            return Denial::parse(&message);
        }
    }
}
