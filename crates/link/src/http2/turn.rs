//! The turn of a connection among the tasks that use it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A future that lets all tasks go first that are ready when it is woken.
///
/// A runtime runs next whoever the running task has woken. A connection would so write after each of its streams: as many
/// packets as streams that have something to say at the same time. When it waits for its turn they leave together. With
/// nobody else there it goes on at once.
#[derive(Debug)]
pub struct AfterOthers<F> {
    future: F,
    has_let_others_go: bool,
}

/// Polls a future after all who are ready before it.
pub fn after_others<F: Future + Unpin>(future: F) -> AfterOthers<F> {
    AfterOthers {
        future,
        has_let_others_go: false,
    }
}

impl<F: Future + Unpin> Future for AfterOthers<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.has_let_others_go = !self.has_let_others_go;
        if self.has_let_others_go {
            // A task that wakes itself is the last in the queue.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Pin::new(&mut self.future).poll(context)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Notify;

    use super::*;

    /// How often somebody is woken whom many tasks wake, each of them ready before the first ran.
    async fn turns(waits: bool) -> usize {
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
        let waiting = match waits {
            true => tokio::spawn(after_others(waiting)),
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
    async fn what_many_have_to_say_is_heard_at_once() {
        let (alone, together) = (turns(false).await, turns(true).await);
        assert!(together * 4 < alone, "{together} turns instead of {alone}");
    }
}
