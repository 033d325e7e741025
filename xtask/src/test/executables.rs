//! Runs test executables, several at a time, and runs single tests again.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::build::TestExecutable;
use super::counts::{Counts, Outcome, Runner};
use super::results::{self, Verdict};
use crate::process::Finished;
use crate::{duration, environment, privilege, process};

/// `nohup` and some CI runners ignore these signals, and programs inherit that. Tests send them.
const DEFAULT_SIGNALS: &str = "--default-signal=HUP,INT,QUIT";

/// `timeout` ends a test executable that hangs, with everything it has started. What it printed names the tests that had not
/// ended.
const KILL_AFTER: &str = "--kill-after=10";
const TIMED_OUT: i32 = 124;
const UNIT_TIMEOUT: Duration = Duration::from_mins(15);

/// Test functions with this in their name are programs that other tests start, and not tests.
const HELPER_PROCESS: &str = "helper_process";

/// A test executable, and how it is run.
#[derive(Debug, Clone)]
pub(crate) struct TestRun {
    pub(crate) label: String,
    pub(crate) path: PathBuf,
    pub(crate) directory: PathBuf,
    pub(crate) as_root: bool,
    /// `--ignored`, `--include-ignored` or nothing.
    pub(crate) selection: Option<&'static str>,
    /// Whether the harness is libtest itself, which can report times.
    pub(crate) is_libtest: bool,
    /// Another run executes what this one ignores.
    pub(crate) is_completed_by_another: bool,
    pub(crate) threads: Option<usize>,
    pub(crate) timeout: Duration,
    pub(crate) variables: Vec<(&'static str, OsString)>,
}

impl TestRun {
    pub(crate) fn new(executable: &TestExecutable) -> Self {
        Self {
            label: executable.label(),
            path: executable.path.clone(),
            directory: executable.directory.clone(),
            as_root: false,
            selection: None,
            is_libtest: true,
            is_completed_by_another: false,
            threads: None,
            timeout: UNIT_TIMEOUT,
            variables: Vec::new(),
        }
    }

    /// Runs only a group of the tests on clusters.
    pub(crate) fn with_group(&self, group: &str) -> Self {
        let mut run = self.clone();
        run.label = format!("{} ({group})", self.label);
        run.variables
            .push((environment::E2E_GROUP, OsString::from(group)));
        run
    }

    /// Runs all its tests. An executable without tests is no failure.
    pub(crate) fn run(&self) -> Result<Outcome> {
        let finished = process::tee(self.command())?;
        Ok(self.outcome(&finished))
    }

    /// Runs one test alone, and returns whether it passed.
    pub(crate) fn run_again(&self, test: &str) -> Result<bool> {
        let mut command = self.command();
        command.args(["--exact", test]);
        let finished = process::tee(command)?;
        let has_passed = results::read(&finished.output)
            .iter()
            .any(|result| result.name == test && result.verdict == Verdict::Passed);
        Ok(has_passed && finished.status.success())
    }

    fn command(&self) -> Command {
        let mut command = if self.as_root {
            privilege::command("env")
        } else {
            Command::new("env")
        };
        command
            .arg(DEFAULT_SIGNALS)
            .args(["timeout", KILL_AFTER])
            .arg(self.timeout.as_secs().to_string())
            .arg(&self.path)
            .current_dir(&self.directory)
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .args(self.selection);
        if let Some(threads) = self.threads {
            command.arg(format!("--test-threads={threads}"));
        }
        if self.is_libtest {
            // Times of tests are still unstable in libtest, which takes this as leave to report them.
            command
                .env("RUSTC_BOOTSTRAP", "1")
                .args(["-Zunstable-options", "--report-time"])
                .args(["--skip", HELPER_PROCESS]);
        }
        command
    }

    fn outcome(&self, finished: &Finished) -> Outcome {
        let mut outcome = if finished.status.code() == Some(TIMED_OUT) {
            let timeout = duration::display(self.timeout);
            Outcome::failure(format!("{} timed out after {timeout}", self.label))
        } else if is_empty(finished) {
            Outcome::default()
        } else if let Some(counts) = only_skipped(finished) {
            Outcome::counted(counts)
        } else {
            Runner::Cargo.judge(&self.label, finished)
        };
        if self.is_completed_by_another {
            outcome.counts.skipped = 0;
        }
        for result in results::read(&finished.output) {
            if result.verdict == Verdict::Failed {
                let (run, test) = (self.clone(), result.name.clone());
                outcome.retries.push((
                    format!("{} {}", self.label, result.name),
                    Box::new(move || run.run_again(&test)),
                ));
            }
            outcome.tests.push((self.label.clone(), result));
        }
        outcome
    }
}

/// The counts of a run that ended well and left out all its tests.
fn only_skipped(finished: &Finished) -> Option<Counts> {
    let counts = Runner::Cargo.count(&finished.output)?;
    let has_run = counts.passed > 0 || counts.failed > 0;
    (finished.status.success() && !has_run).then_some(counts)
}

/// It ended well and has no test.
fn is_empty(finished: &Finished) -> bool {
    finished.status.success()
        && Runner::Cargo
            .count(&finished.output)
            .is_some_and(|counts| counts == Counts::default())
}

/// Runs all of them at the same time. Their output is shown line by line as it comes.
pub(crate) fn run_together(runs: &[TestRun]) -> Outcome {
    let mut total = Outcome::default();
    let outcomes = thread::scope(|scope| {
        let threads: Vec<_> = runs.iter().map(|run| scope.spawn(|| run.run())).collect();
        threads
            .into_iter()
            .map(|thread| match thread.join() {
                Ok(outcome) => {
                    outcome.unwrap_or_else(|error| Outcome::failure(format!("{error:#}")))
                }
                Err(_) => Outcome::failure("a thread that ran tests has panicked"),
            })
            .collect::<Vec<_>>()
    });
    for outcome in outcomes {
        total.add(outcome);
    }
    total
}

/// Runs all of them, so many at a time. The output of each is shown when it ends.
pub(crate) fn run_all(runs: Vec<TestRun>, at_once: usize) -> Outcome {
    let queue = Mutex::new(VecDeque::from(runs));
    let total = Mutex::new(Outcome::default());
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while let Some(run) = next(&queue) {
                    let outcome = run_quietly(&run).unwrap_or_else(|error| {
                        Outcome::failure(format!("{}: {error:#}", run.label))
                    });
                    if let Ok(mut total) = total.lock() {
                        total.add(outcome);
                    }
                }
            });
        }
    });
    total
        .into_inner()
        .unwrap_or_else(|_| Outcome::failure("a thread that ran tests has panicked".to_owned()))
}

fn next(queue: &Mutex<VecDeque<TestRun>>) -> Option<TestRun> {
    queue.lock().ok()?.pop_front()
}

fn run_quietly(run: &TestRun) -> Result<Outcome> {
    let started = Instant::now();
    let finished = process::copy_output(run.command(), std::io::sink())?;
    let outcome = run.outcome(&finished);
    // One call, so that what runs beside it does not come between the lines.
    eprint!(
        "{}",
        shown(
            &run.label,
            &duration::display(started.elapsed()),
            &finished,
            &outcome
        )
    );
    Ok(outcome)
}

/// Everything that a run with a failure printed, and one line of one that passed.
fn shown(label: &str, elapsed: &str, finished: &Finished, outcome: &Outcome) -> String {
    if outcome.counts.failed == 0 {
        return format!("    {label}: {} ({elapsed})\n", outcome.counts);
    }
    format!(
        "==> {label}\n{}    {label}: {} ({elapsed})\n",
        finished.output, outcome.counts
    )
}
