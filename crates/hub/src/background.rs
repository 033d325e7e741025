//! Background tasks that a replica needs: the registry, certificates, the configuration, probes.
//!
//! None of these tasks ever returns. A replica in which one has ended would serve stale data, so it logs the task, reports
//! itself as unhealthy and not ready, hands its agents over to other replicas and exits with an error. Kubernetes restarts
//! it.

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};

use futures_util::FutureExt as _;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::metrics::{FailedTasks, TaskLabels};

/// Spawns background tasks and records the first failure. Clones share their state.
#[derive(Clone)]
pub(crate) struct Background {
    failed_tasks: FailedTasks,
    /// Cancelled when a task has failed, so that the replica shuts down.
    ending: CancellationToken,
    /// Cancelled when the tasks are not needed any more.
    done: CancellationToken,
    /// The first failure. Later ones may be consequences of it.
    failure: Arc<OnceLock<TaskFailure>>,
}

/// A background task that ended or panicked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the task `{task}` {reason}")]
pub(crate) struct TaskFailure {
    pub(crate) task: &'static str,
    pub(crate) reason: String,
}

impl Background {
    /// Cancels `ending` when a task fails.
    pub(crate) fn new(ending: CancellationToken, failed_tasks: FailedTasks) -> Self {
        Self {
            failed_tasks,
            ending,
            done: CancellationToken::new(),
            failure: Arc::default(),
        }
    }

    /// Cancelled when the replica shuts down, also because a task has failed.
    pub(crate) fn ending(&self) -> CancellationToken {
        self.ending.clone()
    }

    /// Starts a task that must not return.
    pub(crate) fn spawn(
        &self,
        task: &'static str,
        work: impl Future<Output = ()> + Send + 'static,
    ) {
        let background = self.clone();
        tokio::spawn(async move {
            let done = background.done.clone();
            let reason = match done.run_until_cancelled_owned(catch_panic(work)).await {
                None => return,
                Some(Ok(())) => "has ended unexpectedly".to_owned(),
                Some(Err(Panicked(message))) => format!("has panicked: {message}"),
            };
            background.fail(TaskFailure { task, reason });
        });
    }

    /// The failure for which this replica shuts down, if any.
    pub(crate) fn failure(&self) -> Option<&TaskFailure> {
        self.failure.get()
    }

    /// Returns a guard that stops all tasks when it is dropped. Stopped tasks have not failed.
    pub(crate) fn stop_guard(&self) -> DropGuard {
        self.done.clone().drop_guard()
    }

    fn fail(&self, failure: TaskFailure) {
        let labels = TaskLabels { task: failure.task };
        self.failed_tasks.get_or_create(&labels).inc();
        tracing::error!(
            task = failure.task,
            reason = failure.reason,
            "background task failed, shutting down"
        );
        let _ = self.failure.set(failure);
        self.ending.cancel();
    }
}

/// The message of a panic.
#[derive(Debug)]
struct Panicked(String);

/// Runs work that may panic, and returns a panic as an error.
async fn catch_panic<Done>(work: impl Future<Output = Done>) -> Result<Done, Panicked> {
    // The caller drops the work and does not use state that it may have left inconsistent.
    let done = AssertUnwindSafe(work).catch_unwind().await;
    done.map_err(|payload| Panicked(panic_message(payload.as_ref())))
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    let literal = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned());
    let formatted = || payload.downcast_ref::<String>().cloned();
    literal
        .or_else(formatted)
        .unwrap_or_else(|| "a payload that is not text".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use crate::sessions::Sessions;

    /// The failure and the metrics of a replica that runs this task.
    async fn failure_of(work: impl Future<Output = ()> + Send + 'static) -> (String, String) {
        let (metrics, ending) = (Metrics::new(), CancellationToken::new());
        let background = Background::new(ending.clone(), metrics.failed_tasks.clone());
        background.spawn("idler", std::future::pending());
        background.spawn("worker", work);
        ending.cancelled().await;
        let failure = background.failure().unwrap().to_string();
        (
            failure,
            metrics.text(&Sessions::new(), jiff::Timestamp::now()),
        )
    }

    #[tokio::test]
    async fn a_task_that_ends_or_panics_shuts_the_replica_down() {
        let failed = [
            (failure_of(async {}).await, "has ended unexpectedly"),
            (
                failure_of(async { panic!("out of {}", "luck") }).await,
                "has panicked: out of luck",
            ),
            (
                failure_of(async { panic!("literally") }).await,
                "has panicked: literally",
            ),
        ];
        for ((failure, metrics), reason) in failed {
            assert_eq!(failure, format!("the task `worker` {reason}"));
            let counted = "standin_hub_failed_tasks_total{task=\"worker\"} 1\n";
            assert!(metrics.contains(counted), "{metrics}");
        }
    }

    #[tokio::test]
    async fn a_stopped_task_has_not_failed() {
        let ending = CancellationToken::new();
        let background = Background::new(ending.clone(), FailedTasks::default());
        let (running, mut stopped) = tokio::sync::oneshot::channel::<()>();
        let work = async move {
            let _running = running;
            std::future::pending::<()>().await;
        };
        background.spawn("worker", work);
        tokio::task::yield_now().await;
        assert!(
            stopped
                .try_recv()
                .is_err_and(|it| it == tokio::sync::oneshot::error::TryRecvError::Empty)
        );
        drop(background.stop_guard());
        assert!(stopped.await.is_err());
        assert_eq!(background.failure(), None);
        assert!(!ending.is_cancelled());
    }
}
