//! Threads that have become something: taken the target's identity, or entered one of its namespaces.
//!
//! Such a thread can do only that, so these are no threads of the runtime. They are started when there is work and no
//! idle one, up to a limit, and end when they have been idle for a while. What waits is bounded by the number of streams
//! that a connection may have, because each waits for its answer.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use tokio::sync::oneshot;

use crate::{Error, Result};

const IDLE: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub(crate) struct Workers(Arc<Shared>);

/// What a new thread does first. Its failure fails the job for which the thread was started.
type Become = Box<dyn Fn() -> Result<()> + Send + Sync>;
/// A job that gets to know whether its thread has become what it should.
type Job = Box<dyn FnOnce(Result<()>) + Send>;

struct Shared {
    name: &'static str,
    most_threads: usize,
    become_what_is_needed: Become,
    state: Mutex<State>,
    work_is_there: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    threads: usize,
    idle: usize,
    ended: bool,
}

/// Ends the threads when the last owner is gone; the threads themselves hold only the shared part.
#[derive(Debug)]
pub(crate) struct Pool(Workers);

impl Pool {
    pub(crate) fn new(
        name: &'static str,
        most_threads: usize,
        become_what_is_needed: impl Fn() -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self(Workers(Arc::new(Shared {
            name,
            most_threads,
            become_what_is_needed: Box::new(become_what_is_needed),
            state: Mutex::default(),
            work_is_there: Condvar::new(),
        })))
    }

    pub(crate) fn workers(&self) -> Workers {
        self.0.clone()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut state = self.0.0.state();
        state.ended = true;
        state.waiting.clear();
        drop(state);
        self.0.0.work_is_there.notify_all();
    }
}

impl Workers {
    /// Does `work` on one of the threads.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (answer_to_caller, answer) = oneshot::channel();
        self.0.clone().submit(Box::new(move |ready| {
            // A caller that is gone needs no answer.
            let _ = answer_to_caller.send(ready.and_then(|()| work()));
        }))?;
        answer
            .await
            .unwrap_or_else(|_| Err(no_thread(Errno::CANCELED)))
    }
}

impl Workers {
    /// Has `work` done on one of the threads, without waiting for it. Without a thread, it is not done.
    pub(crate) fn start(&self, work: impl FnOnce() + Send + 'static) {
        let _ = self.0.clone().submit(Box::new(move |ready| {
            if ready.is_ok() {
                work();
            }
        }));
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Jobs run outside of the lock, so a poisoned state is a whole one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn submit(self: Arc<Self>, job: Job) -> Result<()> {
        let mut state = self.state();
        if state.idle > state.waiting.len() || state.threads >= self.most_threads {
            state.waiting.push_back(job);
            drop(state);
            self.work_is_there.notify_one();
            return Ok(());
        }
        state.threads += 1;
        state.waiting.push_back(job);
        drop(state);
        let shared = Arc::clone(&self);
        let started = thread::Builder::new()
            .name(self.name.to_owned())
            .stack_size(256 * 1024)
            .spawn(move || shared.work());
        let Err(error) = started else { return Ok(()) };
        let mut state = self.state();
        state.threads -= 1;
        if state.threads > 0 {
            // Another thread will come to it.
            return Ok(());
        }
        state.waiting.clear();
        Err(no_thread(crate::error::errno_of(&error)))
    }

    fn work(&self) {
        if let Err(error) = (self.become_what_is_needed)() {
            self.refuse(error);
            return;
        }
        while let Some(job) = self.next_job() {
            job(Ok(()));
        }
    }

    /// The job for which this thread was started fails, and without any thread so does what else waits.
    fn refuse(&self, error: Error) {
        let mut state = self.state();
        state.threads -= 1;
        let job = state.waiting.pop_front();
        let others = match state.threads {
            0 => std::mem::take(&mut state.waiting),
            _ => VecDeque::new(),
        };
        drop(state);
        drop(others);
        if let Some(job) = job {
            job(Err(error));
        }
    }

    fn next_job(&self) -> Option<Job> {
        let mut state = self.state();
        loop {
            if let Some(job) = state.waiting.pop_front() {
                return Some(job);
            }
            if state.ended {
                state.threads -= 1;
                return None;
            }
            state.idle += 1;
            let (woken, timeout) = self
                .work_is_there
                .wait_timeout(state, IDLE)
                .unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            if timeout.timed_out() && state.waiting.is_empty() {
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
        let meeting = Arc::new(Barrier::new(2));
        let other = Arc::clone(&meeting);
        let blocked = tokio::spawn({
            let workers = workers.clone();
            async move { workers.run(move || Ok(other.wait().is_leader())).await }
        });
        // Only ends when both run at the same time.
        let own = workers.run(move || Ok(meeting.wait().is_leader())).await;
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
    async fn a_thread_that_cannot_become_says_why() {
        let pool = Pool::new("test", 4, || Err(Error::NoHello));
        let answer = pool.workers().run(|| Ok(())).await;
        assert!(matches!(answer, Err(Error::NoHello)));
        let answer = pool.workers().run(|| Ok(())).await;
        assert!(matches!(answer, Err(Error::NoHello)));
    }

    #[tokio::test]
    async fn after_the_end_there_is_no_work() {
        let pool = Pool::new("test", 1, || Ok(()));
        let workers = pool.workers();
        workers.run(|| Ok(())).await.unwrap();
        drop(pool);
        let _ = workers.run(|| Ok(())).await;
        assert_eq!(workers.0.state().waiting.len(), 0);
    }
}
