//! Watches the pods of a target.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use backoff::Backoff;
use error_chain::error_chain;
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::{Api, ResourceExt as _};
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::sleep;

use crate::access::Cluster;
use crate::error::{Error, Result, code};
use crate::owner::{Owner, PodOwners};
use crate::pod::{Replica, UnusablePod, check_pod};
use crate::resolve::{Selection, resolve};
use crate::rights;
use crate::target::{Kind, Workload};

const MIN_BACKOFF: Duration = Duration::from_millis(200);
const MAX_BACKOFF: Duration = Duration::from_secs(5);

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
            owners: PodOwners::new(cluster, &target.namespace),
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
    owners: PodOwners,
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
                Ok(event) => {
                    let Err(error) = self.apply(event).await else {
                        continue;
                    };
                    tracing::debug!(
                        resource = "owner",
                        error = error_chain(&error),
                        "request failed"
                    );
                    if let Some(first) = self.first.take() {
                        let _ = first.send(Err(error));
                        return;
                    }
                }
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

    async fn apply(&mut self, event: Event<Pod>) -> Result<()> {
        match event {
            Event::Init => self.relisted.clear(),
            Event::InitApply(pod) => {
                if self.is_of_target(&pod).await? {
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
                if self.is_of_target(&pod).await? {
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
        Ok(())
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

    /// Whether the target controls a pod. After the first list, a failure of the API server is transient: the request is
    /// repeated, and the last pods stay valid.
    async fn is_of_target(&mut self, pod: &Pod) -> Result<bool> {
        let mut backoff = Backoff::new(MIN_BACKOFF, MAX_BACKOFF);
        loop {
            let error = match self.owners.is_of(pod, &self.owner).await {
                Ok(is_of_target) => return Ok(is_of_target),
                Err(error) => error,
            };
            match code(&error) {
                Some(403) => return Err(self.forbidden("read the owner of a pod").await),
                _ if self.first.is_some() => {
                    return Err(self.cluster.first_error("read the owner of a pod", error));
                }
                _ => {}
            }
            let error = error_chain(&error);
            tracing::debug!(resource = "owner", error, "request failed, retrying");
            sleep(backoff.next_delay()).await;
        }
    }

    async fn forbidden(&self, action: &str) -> Error {
        let needed = rights::for_session(self.target.kind);
        let (client, namespace) = (&self.cluster.client, &self.target.namespace);
        rights::forbidden(client, namespace, action, None, &needed).await
    }

    /// The error if the pods could not be listed at all.
    async fn explain(&self, error: watcher::Error) -> Error {
        let (watcher::Error::InitialListFailed(source)
        | watcher::Error::WatchStartFailed(source)
        | watcher::Error::WatchFailed(source)) = error
        else {
            return self.no_list(error_chain(&error));
        };
        match code(&source) {
            Some(403) => self.forbidden("list pods").await,
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
