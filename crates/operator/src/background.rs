//! Work that a replica cannot be without: the copies of what is stored, certificates, probes, the leader's election.
//!
//! None of it ever ends by itself. A replica in which one of these tasks is gone would go on answering with what it knew last,
//! so it says which one that was, is neither healthy nor ready any more, sends its clients elsewhere and ends with an error.
//! Kubernetes starts it again.

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};

use futures_util::FutureExt as _;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::error::Error;
use crate::metrics::{FailedTasks, TaskLabels};

/// Clones start tasks of the same replica.
#[derive(Clone)]
pub(crate) struct Background {
    failed_tasks: FailedTasks,
    /// Cancelled when a task has failed, so that the replica ends.
    ending: CancellationToken,
    /// Cancelled when no task is needed any more.
    done: CancellationToken,
    /// The first one. Others may only follow from it.
    failure: Arc<OnceLock<Failure>>,
}

/// A task that is not there any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the task `{task}` {why}")]
pub(crate) struct Failure {
    pub(crate) task: &'static str,
    pub(crate) why: String,
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

    /// Starts a task that never ends by itself.
    pub(crate) fn spawn(
        &self,
        task: &'static str,
        work: impl Future<Output = ()> + Send + 'static,
    ) {
        let background = self.clone();
        tokio::spawn(async move {
            let done = background.done.clone();
            let why = match done.run_until_cancelled_owned(caught(work)).await {
                None => return,
                Some(Ok(())) => "has ended by itself".to_owned(),
                Some(Err(Panicked(said))) => format!("has panicked: {said}"),
            };
            background.fail(Failure { task, why });
        });
    }

    /// Counts what has failed and goes on all the same.
    pub(crate) fn count(&self, task: &'static str) {
        self.failed_tasks.get_or_create(&TaskLabels { task }).inc();
    }

    /// What this replica ends for, if it does.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        self.failure.get()
    }

    /// Ends all tasks, which is no failure of theirs, when it is dropped.
    pub(crate) fn end_with_guard(&self) -> DropGuard {
        self.done.clone().drop_guard()
    }

    fn fail(&self, failure: Failure) {
        self.count(failure.task);
        tracing::error!(
            task = failure.task,
            why = failure.why,
            "this replica cannot go on, and ends"
        );
        let _ = self.failure.set(failure);
        self.ending.cancel();
    }
}

/// What somebody who panicked has said.
#[derive(Debug)]
pub(crate) struct Panicked(String);

impl From<Panicked> for Error {
    fn from(Panicked(said): Panicked) -> Self {
        Self::Panicked(said)
    }
}

/// Work that may panic without taking its caller along.
pub(crate) async fn caught<Done>(work: impl Future<Output = Done>) -> Result<Done, Panicked> {
    // Whoever asks for it drops the work, and looks at nothing that it may have left half done.
    let done = AssertUnwindSafe(work).catch_unwind().await;
    done.map_err(|said| Panicked(text(said.as_ref())))
}

fn text(said: &(dyn Any + Send)) -> String {
    let literal = said.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let made = || said.downcast_ref::<String>().cloned();
    literal
        .or_else(made)
        .unwrap_or_else(|| "nothing in words".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    /// What becomes of a replica with one task.
    async fn failure_of(work: impl Future<Output = ()> + Send + 'static) -> (String, String) {
        let (metrics, ending) = (Metrics::new(), CancellationToken::new());
        let background = Background::new(ending.clone(), metrics.failed_tasks.clone());
        background.spawn("idler", std::future::pending());
        background.spawn("worker", work);
        ending.cancelled().await;
        let failure = background.failure().unwrap().to_string();
        (failure, metrics.text())
    }

    #[tokio::test]
    async fn a_task_that_ends_or_panics_ends_the_replica_by_name() {
        let dead = [
            (failure_of(async {}).await, "has ended by itself"),
            (
                failure_of(async { panic!("out of {}", "luck") }).await,
                "has panicked: out of luck",
            ),
            (
                failure_of(async { panic!("literally") }).await,
                "has panicked: literally",
            ),
        ];
        for ((failure, numbers), why) in dead {
            assert_eq!(failure, format!("the task `worker` {why}"));
            let counted = "standin_operator_failed_tasks_total{task=\"worker\"} 1\n";
            assert!(numbers.contains(counted), "{numbers}");
        }
    }

    #[tokio::test]
    async fn a_task_that_is_not_needed_any_more_has_not_failed() {
        let ending = CancellationToken::new();
        let background = Background::new(ending.clone(), FailedTasks::default());
        let (is_there, mut is_gone) = tokio::sync::oneshot::channel::<()>();
        let work = async move {
            let _is_there = is_there;
            std::future::pending::<()>().await;
        };
        background.spawn("worker", work);
        tokio::task::yield_now().await;
        assert!(
            is_gone
                .try_recv()
                .is_err_and(|it| it == tokio::sync::oneshot::error::TryRecvError::Empty)
        );
        drop(background.end_with_guard());
        assert!(is_gone.await.is_err());
        assert_eq!(background.failure(), None);
        assert!(!ending.is_cancelled());
    }

    #[tokio::test]
    async fn what_panics_while_it_is_caught_is_an_error() {
        let looked = caught(async { Ok::<(), Error>(()) }).await;
        assert!(matches!(looked, Ok(Ok(()))));
        let panicked = caught(async { panic!("{}", 7) }).await;
        let error = panicked.map_err(Error::from).unwrap_err();
        assert_eq!(error.to_string(), "the operator has a mistake: 7");
    }
}
