//! Watches the pods of a target.

use std::collections::{BTreeMap, HashMap};
use std::pin::pin;

use error_chain::error_chain;
use futures_util::StreamExt as _;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::{Api, ResourceExt as _};
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;

use crate::access::Cluster;
use crate::error::{Error, Result, code};
use crate::pod::{Replica, UnusablePod, check_pod};
use crate::resolve::{Owner, Selection, resolve};
use crate::rights;
use crate::target::{Kind, Workload};

/// The pods of a target at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TargetPods {
    /// The usable pods, in order of preference.
    pub replicas: Vec<Replica>,
    /// The names of unusable pods, with the reasons.
    pub unusable: Vec<(String, UnusablePod)>,
}

/// Watches the pods of a target until it is dropped.
#[derive(Debug)]
pub struct Replicas {
    target: Workload,
    /// Sent by the watcher task.
    pods: watch::Receiver<TargetPods>,
    watcher: AbortHandle,
}

impl Replicas {
    /// Resolves a target and starts to watch its pods. Must be called on a runtime.
    pub async fn watch(cluster: &Cluster, target: &Workload) -> Result<Self> {
        let selection = resolve(cluster, target).await?;
        let (pods_sender, pods) = watch::channel(TargetPods::default());
        let (first_sender, first) = oneshot::channel();
        let watcher = PodWatcher {
            cluster: cluster.clone(),
            target: target.clone(),
            owner: selection.owner.clone(),
            jobs: HashMap::new(),
            pods: BTreeMap::new(),
            relisted: BTreeMap::new(),
            pods_sender,
            first: Some(first_sender),
        };
        let replicas = Self {
            target: target.clone(),
            pods,
            watcher: tokio::spawn(watcher.run(selection)).abort_handle(),
        };
        match first.await {
            Ok(result) => result.map(|()| replicas),
            Err(_) => Err(replicas.no_pod("the watch of its pods has ended".to_owned())),
        }
    }

    /// The current pods.
    pub fn current(&self) -> TargetPods {
        self.pods.borrow().clone()
    }

    /// The preferred pod, or why there is none.
    pub fn best(&self) -> Result<Replica> {
        let TargetPods { replicas, unusable } = self.current();
        let best = replicas.into_iter().next();
        best.ok_or_else(|| self.no_pod(explain(&self.target, &unusable)))
    }

    fn no_pod(&self, why: String) -> Error {
        Error::NoPod {
            target: self.target.to_string(),
            namespace: self.target.namespace.clone(),
            why,
        }
    }

    /// Waits for a usable pod other than this one. A pod whose container was restarted counts as another one.
    pub async fn wait_for_other(&self, before: Option<&Replica>) {
        let is_new = |replica: &Replica| {
            before.is_none_or(|before| {
                (&replica.uid, &replica.container_id) != (&before.uid, &before.container_id)
            })
        };
        self.wait_until(|pods| pods.replicas.iter().any(is_new))
            .await;
    }

    /// Waits until the pods satisfy a condition.
    pub async fn wait_until(&self, condition: impl Fn(&TargetPods) -> bool) {
        let mut pods = self.pods.clone();
        if pods.wait_for(|pods| condition(pods)).await.is_err() {
            // The watcher has ended, so the pods will not change.
            std::future::pending::<()>().await;
        }
    }

    /// Waits until the pods differ from `before`, and returns them.
    pub async fn changed(&self, before: &TargetPods) -> TargetPods {
        self.wait_until(|pods| pods != before).await;
        self.current()
    }
}

impl Drop for Replicas {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

fn explain(target: &Workload, unusable: &[(String, UnusablePod)]) -> String {
    const MAX_SHOWN: usize = 5;
    if unusable.is_empty() {
        return match target.kind {
            Kind::CronJob => format!(
                "no job of it is running; `kubectl create job --from=cronjob/{0} {0}-now -n {1}` starts one",
                target.name, target.namespace
            ),
            Kind::Pod => "there is no such pod".to_owned(),
            _ => "it has none; is it scaled to zero?".to_owned(),
        };
    }
    let mut lines: Vec<String> = unusable
        .iter()
        .take(MAX_SHOWN)
        .map(|(pod, reason)| format!("pod {pod} {reason}"))
        .collect();
    if unusable.len() > MAX_SHOWN {
        lines.push(format!("and {} more", unusable.len() - MAX_SHOWN));
    }
    lines.join("; ")
}

struct PodWatcher {
    cluster: Cluster,
    target: Workload,
    owner: Owner,
    /// Whether a Job, by its uid, belongs to the CronJob that is the target.
    jobs: HashMap<String, bool>,
    pods: BTreeMap<String, Pod>,
    /// The pods of a new list that is not complete yet.
    relisted: BTreeMap<String, Pod>,
    pods_sender: watch::Sender<TargetPods>,
    /// Notified when the first list is complete.
    first: Option<oneshot::Sender<Result<()>>>,
}

impl PodWatcher {
    async fn run(mut self, selection: Selection) {
        let pods: Api<Pod> = Api::namespaced(self.cluster.client.clone(), &self.target.namespace);
        let events = watcher::watcher(pods, selection.watcher_config()).default_backoff();
        let mut events = pin!(events);
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => self.apply(event).await,
                Err(error) => {
                    tracing::debug!(
                        resource = "pods",
                        error = error_chain(&error),
                        "watch failed"
                    );
                    // Later errors are transient, and the last pods stay valid.
                    if let Some(first) = self.first.take() {
                        let _ = first.send(Err(self.explain(error).await));
                        return;
                    }
                }
            }
        }
    }

    async fn apply(&mut self, event: Event<Pod>) {
        match event {
            Event::Init => self.relisted.clear(),
            Event::InitApply(pod) => {
                if self.is_of_target(&pod).await {
                    self.relisted.insert(pod.name_any(), pod);
                }
            }
            Event::InitDone => {
                self.pods = std::mem::take(&mut self.relisted);
                self.publish();
                if let Some(first) = self.first.take() {
                    let _ = first.send(Ok(()));
                }
            }
            Event::Apply(pod) => {
                if self.is_of_target(&pod).await {
                    self.pods.insert(pod.name_any(), pod);
                } else {
                    self.pods.remove(&pod.name_any());
                }
                self.publish();
            }
            Event::Delete(pod) => {
                self.pods.remove(&pod.name_any());
                self.publish();
            }
        }
    }

    fn publish(&self) {
        let mut pods = TargetPods::default();
        for pod in self.pods.values() {
            match check_pod(pod, self.target.container.as_deref()) {
                Ok(replica) => pods.replicas.push(replica),
                Err(reason) => pods.unusable.push((pod.name_any(), reason)),
            }
        }
        pods.replicas.sort_by_key(Replica::rank);
        self.pods_sender.send_if_modified(|before| {
            let changed = *before != pods;
            *before = pods;
            changed
        });
    }

    async fn is_of_target(&mut self, pod: &Pod) -> bool {
        let owners = pod.owner_references();
        let controller = owners.iter().find(|owner| owner.controller == Some(true));
        match &self.owner {
            Owner::Any => true,
            Owner::Kind(kind) => controller.is_some_and(|owner| owner.kind == *kind),
            Owner::Object(uid) => controller.is_some_and(|owner| owner.uid == *uid),
            Owner::JobOf(cron_job) => match controller {
                Some(owner) if owner.kind == "Job" => {
                    let cron_job = cron_job.clone();
                    self.belongs_to(owner, &cron_job).await
                }
                _ => false,
            },
        }
    }

    async fn belongs_to(&mut self, job: &OwnerReference, cron_job: &str) -> bool {
        if let Some(cached) = self.jobs.get(&job.uid) {
            return *cached;
        }
        let jobs: Api<Job> = Api::namespaced(self.cluster.client.clone(), &self.target.namespace);
        let Ok(found) = jobs.get(&job.name).await else {
            return false;
        };
        let owners = found.owner_references();
        let belongs = owners.iter().any(|owner| owner.uid == cron_job);
        self.jobs.insert(job.uid.clone(), belongs);
        belongs
    }

    /// The error if the pods could not be listed at all.
    async fn explain(&self, error: watcher::Error) -> Error {
        let (watcher::Error::InitialListFailed(source)
        | watcher::Error::WatchStartFailed(source)
        | watcher::Error::WatchFailed(source)) = error
        else {
            return self.no_list(error_chain(&error));
        };
        let namespace = &self.target.namespace;
        match code(&source) {
            Some(403) => {
                let needed = rights::for_session(self.target.kind);
                let client = &self.cluster.client;
                rights::forbidden(client, namespace, "list pods", None, &needed).await
            }
            Some(400) => {
                self.no_list("a selector is written as for `kubectl get pods -l`".to_owned())
            }
            _ => self.cluster.first_error("list pods", source),
        }
    }

    fn no_list(&self, why: String) -> Error {
        Error::NoPod {
            target: self.target.to_string(),
            namespace: self.target.namespace.clone(),
            why,
        }
    }
}
