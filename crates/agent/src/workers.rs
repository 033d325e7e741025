//! Thread pools whose threads have assumed the target's credentials or entered one of its namespaces.
//!
//! Such a thread cannot be used for anything else, so these are not threads of the runtime. They are started when there is a
//! job and no idle thread, up to a limit, and end after an idle timeout. The queue is bounded by the number of streams of a
//! connection, because each stream waits for its job.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use tokio::sync::oneshot;

use crate::{Error, Result};

/// How long an idle thread waits for a job before it ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// A handle to submit jobs to a pool.
#[derive(Debug, Clone)]
pub(crate) struct Workers(Arc<Shared>);

/// Runs first on a new thread. If it fails, the job for which the thread was started fails.
type ThreadSetup = Box<dyn Fn() -> Result<()> + Send + Sync>;
/// A job. Its argument says whether the setup of its thread succeeded.
type Job = Box<dyn FnOnce(Result<()>) + Send>;

struct Shared {
    name: &'static str,
    max_threads: usize,
    setup: ThreadSetup,
    state: Mutex<State>,
    job_available: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    threads: usize,
    idle: usize,
    ended: bool,
}

/// Owns the threads and ends them on drop. The threads themselves reference only the shared state.
#[derive(Debug)]
pub(crate) struct Pool(Workers);

impl Pool {
    pub(crate) fn new(
        name: &'static str,
        max_threads: usize,
        setup: impl Fn() -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self(Workers(Arc::new(Shared {
            name,
            max_threads,
            setup: Box::new(setup),
            state: Mutex::default(),
            job_available: Condvar::new(),
        })))
    }

    pub(crate) fn workers(&self) -> Workers {
        self.0.clone()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut state = self.0.0.state.lock();
        state.ended = true;
        state.queue.clear();
        drop(state);
        self.0.0.job_available.notify_all();
    }
}

impl Workers {
    /// Runs `work` on one of the threads and returns its result.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (sender, receiver) = oneshot::channel();
        self.0.clone().submit(Box::new(move |ready| {
            // The caller may have been cancelled.
            let _ = sender.send(ready.and_then(|()| work()));
        }))?;
        receiver
            .await
            .unwrap_or_else(|_| Err(no_thread(Errno::CANCELED)))
    }
}

impl Workers {
    /// Runs `work` on one of the threads, without waiting for it. If no thread can be started, `work` is dropped.
    pub(crate) fn start(&self, work: impl FnOnce() + Send + 'static) {
        let _ = self.0.clone().submit(Box::new(move |ready| {
            if ready.is_ok() {
                work();
            }
        }));
    }
}

impl Shared {
    fn submit(self: Arc<Self>, job: Job) -> Result<()> {
        let mut state = self.state.lock();
        if state.idle > state.queue.len() || state.threads >= self.max_threads {
            state.queue.push_back(job);
            drop(state);
            self.job_available.notify_one();
            return Ok(());
        }
        state.threads += 1;
        state.queue.push_back(job);
        drop(state);
        let shared = Arc::clone(&self);
        let started = thread::Builder::new()
            .name(self.name.to_owned())
            .stack_size(256 * 1024)
            .spawn(move || shared.work());
        let Err(error) = started else { return Ok(()) };
        let mut state = self.state.lock();
        state.threads -= 1;
        if state.threads > 0 {
            // Another thread will execute the job.
            return Ok(());
        }
        state.queue.clear();
        Err(no_thread(crate::error::errno_of(&error)))
    }

    fn work(&self) {
        if let Err(error) = (self.setup)() {
            self.fail_setup(error);
            return;
        }
        while let Some(job) = self.next_job() {
            job(Ok(()));
        }
    }

    /// Fails the job for which this thread was started, and all queued jobs if there is no other thread.
    fn fail_setup(&self, error: Error) {
        let mut state = self.state.lock();
        state.threads -= 1;
        let job = state.queue.pop_front();
        let others = match state.threads {
            0 => std::mem::take(&mut state.queue),
            _ => VecDeque::new(),
        };
        drop(state);
        drop(others);
        if let Some(job) = job {
            job(Err(error));
        }
    }

    fn next_job(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.queue.pop_front() {
                return Some(job);
            }
            if state.ended {
                state.threads -= 1;
                return None;
            }
            state.idle += 1;
            let timeout = self.job_available.wait_for(&mut state, IDLE_TIMEOUT);
            state.idle -= 1;
            if timeout.timed_out() && state.queue.is_empty() {
                state.threads -= 1;
                return None;
            }
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Shared")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

fn no_thread(source: Errno) -> Error {
    Error::Agent {
        action: "start a thread",
        hint: "raise its limit of processes",
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn a_blocked_job_does_not_delay_another() {
        let pool = Pool::new("test", 2, || Ok(()));
        let workers = pool.workers();
        let barrier = Arc::new(Barrier::new(2));
        let other = Arc::clone(&barrier);
        let blocked = tokio::spawn({
            let workers = workers.clone();
            async move { workers.run(move || Ok(other.wait().is_leader())).await }
        });
        // Ends only if both jobs run concurrently.
        let own = workers.run(move || Ok(barrier.wait().is_leader())).await;
        assert_ne!(own.unwrap(), blocked.await.unwrap().unwrap());
    }

    #[tokio::test]
    async fn jobs_beyond_the_limit_wait() {
        let pool = Pool::new("test", 1, || Ok(()));
        let running = Arc::new(AtomicUsize::new(0));
        let jobs = (0..50).map(|_| {
            let (workers, running) = (pool.workers(), Arc::clone(&running));
            tokio::spawn(async move {
                let job = move || {
                    assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0);
                    running.fetch_sub(1, Ordering::SeqCst);
                    Ok(())
                };
                workers.run(job).await
            })
        });
        for job in jobs.collect::<Vec<_>>() {
            job.await.unwrap().unwrap();
        }
    }

    #[tokio::test]
    async fn a_failed_setup_fails_the_job() {
        let pool = Pool::new("test", 4, || Err(Error::NoHello));
        let result = pool.workers().run(|| Ok(())).await;
        assert!(matches!(result, Err(Error::NoHello)));
        let result = pool.workers().run(|| Ok(())).await;
        assert!(matches!(result, Err(Error::NoHello)));
    }

    #[tokio::test]
    async fn no_job_stays_queued_after_the_pool_is_dropped() {
        let pool = Pool::new("test", 1, || Ok(()));
        let workers = pool.workers();
        workers.run(|| Ok(())).await.unwrap();
        drop(pool);
        let _ = workers.run(|| Ok(())).await;
        assert_eq!(workers.0.state.lock().queue.len(), 0);
    }
}
