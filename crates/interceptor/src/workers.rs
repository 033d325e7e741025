//! A thread pool for jobs that may block. A job never waits for another one: if no thread is idle, a new one is
//! started.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Jobs have shallow stacks; unused stack only costs address space.
const STACK_SIZE: usize = 512 * 1024;

type Job = Box<dyn FnOnce() + Send>;

/// How long an idle thread is kept.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Number of idle threads.
    waiting: usize,
    /// Number of all threads.
    threads: usize,
    /// No more jobs will be added.
    closed: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    job_added: Condvar,
}

/// A pool that grows with the number of concurrently blocked calls, which is at most the number of application threads.
#[derive(Clone, Default)]
pub(crate) struct Workers(Arc<Shared>);

impl std::fmt::Debug for Workers {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Workers").finish_non_exhaustive()
    }
}

thread_local! {
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
}

impl Workers {
    /// Whether the current thread belongs to a pool. Without threads, jobs run on the thread that adds them.
    pub(crate) fn is_worker_thread() -> bool {
        IS_WORKER.get()
    }

    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.0.state.lock();
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
            .stack_size(STACK_SIZE)
            .spawn(move || work(&shared));
        if let Err(error) = started {
            self.run_without_thread(&error);
        }
    }

    /// No more jobs will be added: idle threads exit now.
    pub(crate) fn close(&self) {
        self.0.state.lock().closed = true;
        self.0.job_added.notify_all();
    }

    /// Handles a failure to start a thread: the job is left to a busy thread, or runs on this thread if there is none.
    fn run_without_thread(&self, error: &std::io::Error) {
        let mut state = self.0.state.lock();
        state.threads -= 1;
        let job = if state.threads == 0 {
            state.jobs.pop_back()
        } else {
            None
        };
        drop(state);
        tracing::warn!(%error, "cannot start worker thread");
        if let Some(job) = job {
            job();
        }
    }
}

fn work(shared: &Shared) {
    IS_WORKER.set(true);
    crate::sys::files::clear_umask();
    let mut state = shared.state.lock();
    loop {
        while let Some(job) = state.jobs.pop_front() {
            drop(state);
            job();
            state = shared.state.lock();
        }
        state.waiting += 1;
        let timeout = shared.job_added.wait_while_for(
            &mut state,
            |state| state.jobs.is_empty() && !state.closed,
            IDLE_TIMEOUT,
        );
        state.waiting -= 1;
        if (timeout.timed_out() || state.closed) && state.jobs.is_empty() {
            state.threads -= 1;
            return;
        }
    }
}
