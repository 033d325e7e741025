//! The pods of a target, as they come and go.

use std::collections::{BTreeMap, HashMap};
use std::pin::pin;

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
use crate::error::{Error, Result, chain, code};
use crate::pod::{Replica, Unfit, judge};
use crate::resolve::{Owner, Selection, resolve};
use crate::rights;
use crate::target::{Kind, Workload};

/// The pods of a target now. Those that can be used are in the order of preference.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Known {
    pub replicas: Vec<Replica>,
    /// Pods that cannot be used, and why not.
    pub others: Vec<(String, Unfit)>,
}

/// Follows the pods of a target until it is dropped.
#[derive(Debug)]
pub struct Replicas {
    target: Workload,
    /// From the task that follows to everybody.
    known: watch::Receiver<Known>,
    follower: AbortHandle,
}

impl Replicas {
    /// Resolves a target and begins to follow its pods. Must be called on a runtime.
    pub async fn follow(cluster: &Cluster, target: &Workload) -> Result<Self> {
        let selection = resolve(cluster, target).await?;
        let (known_by_all, known) = watch::channel(Known::default());
        let (known_first, first) = oneshot::channel();
        let follower = Follower {
            cluster: cluster.clone(),
            target: target.clone(),
            owner: selection.owner.clone(),
            jobs: HashMap::new(),
            pods: BTreeMap::new(),
            coming: BTreeMap::new(),
            known: known_by_all,
            first: Some(known_first),
        };
        let replicas = Self {
            target: target.clone(),
            known,
            follower: tokio::spawn(follower.follow(selection)).abort_handle(),
        };
        match first.await {
            Ok(result) => result.map(|()| replicas),
            Err(_) => Err(replicas.no_pod("nobody follows its pods".to_owned())),
        }
    }

    /// The pods as they are now.
    pub fn now(&self) -> Known {
        self.known.borrow().clone()
    }

    /// The pod to prefer, or why there is none.
    pub fn best(&self) -> Result<Replica> {
        let Known { replicas, others } = self.now();
        let best = replicas.into_iter().next();
        best.ok_or_else(|| self.no_pod(explain(&self.target, &others)))
    }

    fn no_pod(&self, why: String) -> Error {
        Error::NoPod {
            target: self.target.to_string(),
            namespace: self.target.namespace.clone(),
            why,
        }
    }

    /// Waits until there is a pod that can be used and is not this one. One whose container was restarted counts as
    /// another.
    pub async fn another_than(&self, before: Option<&Replica>) {
        let is_new = |replica: &Replica| {
            before.is_none_or(|before| {
                (&replica.uid, &replica.container_id) != (&before.uid, &before.container_id)
            })
        };
        self.until(|known| known.replicas.iter().any(is_new)).await;
    }

    /// Waits until the pods are as wished.
    pub async fn until(&self, wish: impl Fn(&Known) -> bool) {
        let mut known = self.known.clone();
        if known.wait_for(|known| wish(known)).await.is_err() {
            // Nobody follows any more: nothing will change.
            std::future::pending::<()>().await;
        }
    }

    /// Ends when the pods have changed since `before`, with what they are now. Whoever compares the two knows who has come
    /// and who has gone.
    pub async fn changed(&self, before: &Known) -> Known {
        self.until(|known| known != before).await;
        self.now()
    }
}

impl Drop for Replicas {
    fn drop(&mut self) {
        self.follower.abort();
    }
}

fn explain(target: &Workload, others: &[(String, Unfit)]) -> String {
    const SHOWN: usize = 5;
    if others.is_empty() {
        return match target.kind {
            Kind::CronJob => format!(
                "no job of it is running; `kubectl create job --from=cronjob/{0} {0}-now -n {1}` starts one",
                target.name, target.namespace
            ),
            Kind::Pod => "there is no such pod".to_owned(),
            _ => "it has none; is it scaled to zero?".to_owned(),
        };
    }
    let mut lines: Vec<String> = others
        .iter()
        .take(SHOWN)
        .map(|(pod, unfit)| format!("pod {pod} {unfit}"))
        .collect();
    if others.len() > SHOWN {
        lines.push(format!("and {} more", others.len() - SHOWN));
    }
    lines.join("; ")
}

struct Follower {
    cluster: Cluster,
    target: Workload,
    owner: Owner,
    /// Whether a Job, by its uid, belongs to the CronJob that is the target.
    jobs: HashMap<String, bool>,
    pods: BTreeMap<String, Pod>,
    /// What a new list has brought so far.
    coming: BTreeMap<String, Pod>,
    known: watch::Sender<Known>,
    /// To whoever waits for the first list.
    first: Option<oneshot::Sender<Result<()>>>,
}

impl Follower {
    async fn follow(mut self, selection: Selection) {
        let pods: Api<Pod> = Api::namespaced(self.cluster.client.clone(), &self.target.namespace);
        let events = watcher::watcher(pods, selection.watcher_config()).default_backoff();
        let mut events = pin!(events);
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => self.take(event).await,
                Err(error) => {
                    tracing::debug!(error = chain(&error), "the pods cannot be followed now");
                    // Later errors pass, and what is known stays known.
                    if let Some(first) = self.first.take() {
                        let _ = first.send(Err(self.explain(error).await));
                        return;
                    }
                }
            }
        }
    }

    async fn take(&mut self, event: Event<Pod>) {
        match event {
            Event::Init => self.coming.clear(),
            Event::InitApply(pod) => {
                if self.is_ours(&pod).await {
                    self.coming.insert(pod.name_any(), pod);
                }
            }
            Event::InitDone => {
                self.pods = std::mem::take(&mut self.coming);
                self.publish();
                if let Some(first) = self.first.take() {
                    let _ = first.send(Ok(()));
                }
            }
            Event::Apply(pod) => {
                if self.is_ours(&pod).await {
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
        let mut known = Known::default();
        for pod in self.pods.values() {
            match judge(pod, self.target.container.as_deref()) {
                Ok(replica) => known.replicas.push(replica),
                Err(unfit) => known.others.push((pod.name_any(), unfit)),
            }
        }
        known.replicas.sort_by_key(Replica::rank);
        self.known.send_if_modified(|before| {
            let changed = *before != known;
            *before = known;
            changed
        });
    }

    async fn is_ours(&mut self, pod: &Pod) -> bool {
        let owners = pod.owner_references();
        let controller = owners.iter().find(|owner| owner.controller == Some(true));
        match &self.owner {
            Owner::Anybody => true,
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
        if let Some(known) = self.jobs.get(&job.uid) {
            return *known;
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

    /// What the user is told when the pods could not even be listed.
    async fn explain(&self, error: watcher::Error) -> Error {
        let (watcher::Error::InitialListFailed(source)
        | watcher::Error::WatchStartFailed(source)
        | watcher::Error::WatchFailed(source)) = error
        else {
            return self.no_list(chain(&error));
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
