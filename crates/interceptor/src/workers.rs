//! Threads for what may take long. A job never waits for another: if no thread is idle, one is started.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Jobs are shallow; what is not used of a stack costs nothing but addresses.
const STACK: usize = 512 * 1024;

type Job = Box<dyn FnOnce() + Send>;

/// How long a thread without work stays.
const IDLE: Duration = Duration::from_secs(10);

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Threads that wait for a job.
    waiting: usize,
    /// All threads.
    threads: usize,
    /// No more jobs come.
    closed: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    job_added: Condvar,
}

/// A pool that grows with the number of calls that wait at once, which is at most the application's threads.
#[derive(Clone, Default)]
pub(crate) struct Workers(Arc<Shared>);

impl std::fmt::Debug for Workers {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Workers").finish_non_exhaustive()
    }
}

impl Workers {
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = lock(&self.0.state);
        state.jobs.push_back(Box::new(job));
        let enough = state.jobs.len() <= state.waiting;
        if !enough {
            state.threads += 1;
        }
        drop(state);
        if enough {
            self.0.job_added.notify_one();
            return;
        }
        let shared = Arc::clone(&self.0);
        let started = std::thread::Builder::new()
            .name("standin-worker".to_owned())
            .stack_size(STACK)
            .spawn(move || work(&shared));
        if let Err(error) = started {
            self.do_without(&error);
        }
    }

    /// No more jobs come: threads without one end now.
    pub(crate) fn close(&self) {
        lock(&self.0.state).closed = true;
        self.0.job_added.notify_all();
    }

    /// No thread can be had. The job waits for one that has time, and only if there is none is it done here.
    fn do_without(&self, error: &std::io::Error) {
        let mut state = lock(&self.0.state);
        state.threads -= 1;
        let job = if state.threads == 0 {
            state.jobs.pop_back()
        } else {
            None
        };
        drop(state);
        tracing::warn!(%error, "no thread for a slow call");
        if let Some(job) = job {
            job();
        }
    }
}

fn work(shared: &Shared) {
    crate::sys::files::apply_no_creation_mask();
    let mut state = lock(&shared.state);
    loop {
        while let Some(job) = state.jobs.pop_front() {
            drop(state);
            job();
            state = lock(&shared.state);
        }
        state.waiting += 1;
        let (guard, timeout) = shared
            .job_added
            .wait_timeout_while(state, IDLE, |state| state.jobs.is_empty() && !state.closed)
            .unwrap_or_else(PoisonError::into_inner);
        state = guard;
        state.waiting -= 1;
        if (timeout.timed_out() || state.closed) && state.jobs.is_empty() {
            state.threads -= 1;
            return;
        }
    }
}

/// Locks, also when another thread panicked while it held the lock: the data is valid between any two statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
