//! Polls a connection after the tasks that use it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use hyper::rt::Executor;

/// A future that yields to all tasks that are ready when it is woken.
///
/// The runtime polls a task that was woken by the running task next. A connection would therefore write after each of its
/// streams: as many packets as there are streams with data at the same time. When the connection yields first, the data of
/// all streams is written together. If no other task is ready, it is polled immediately.
#[derive(Debug)]
pub struct PollLast<F> {
    future: F,
    has_yielded: bool,
}

/// Polls a future after all other tasks that are ready.
pub fn poll_last<F: Future + Unpin>(future: F) -> PollLast<F> {
    PollLast {
        future,
        has_yielded: false,
    }
}

impl<F: Future + Unpin> Future for PollLast<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.has_yielded = !self.has_yielded;
        if self.has_yielded {
            // A task that wakes itself is put at the end of the queue.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Pin::new(&mut self.future).poll(context)
    }
}

/// Runs the tasks of one HTTP/2 client. The first task is the connection: hyper spawns it with the handshake, and later one
/// task for each body. The connection is polled after all others.
#[derive(Debug, Clone, Default)]
pub struct ConnectionPolledLast {
    has_connection: Arc<AtomicBool>,
}

impl<F> Executor<F> for ConnectionPolledLast
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        match self.has_connection.swap(true, Ordering::Relaxed) {
            true => drop(tokio::spawn(future)),
            false => drop(tokio::spawn(poll_last(Box::pin(future)))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tokio::sync::Notify;

    use super::*;

    /// How often a task is polled that is woken by many tasks, all of which were ready before the first one ran.
    async fn count_polls(polled_last: bool) -> usize {
        const TASKS: usize = 50;
        let (polls, wake) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let done = Arc::new(AtomicUsize::new(0));
        let (counted, woken, all) = (polls.clone(), wake.clone(), done.clone());
        let waiting = Box::pin(async move {
            while all.load(Ordering::SeqCst) < TASKS {
                woken.notified().await;
                counted.fetch_add(1, Ordering::SeqCst);
            }
        });
        let waiting = match polled_last {
            true => tokio::spawn(poll_last(waiting)),
            false => tokio::spawn(waiting),
        };
        tokio::task::yield_now().await;
        let begin = tokio::spawn(async move {
            for _ in 0..TASKS {
                let (wake, done) = (wake.clone(), done.clone());
                tokio::spawn(async move {
                    done.fetch_add(1, Ordering::SeqCst);
                    wake.notify_one();
                });
            }
        });
        begin.await.unwrap();
        waiting.await.unwrap();
        polls.load(Ordering::SeqCst)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn wakeups_of_many_tasks_are_merged() {
        let (separate, merged) = (count_polls(false).await, count_polls(true).await);
        assert!(
            merged * 4 < separate,
            "{merged} polls instead of {separate}"
        );
    }
}
