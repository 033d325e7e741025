//! How many tests ran: read from what the test runners print.

use std::fmt;
use std::iter::Sum;

use anyhow::Result;

use super::results::TestResult;
use crate::process::Finished;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

/// Runs a failed test once more, alone, and returns whether it passed.
pub(crate) type Retry = Box<dyn FnOnce() -> Result<bool> + Send>;

/// The result of a phase, or of a part of it.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) counts: Counts,
    /// Details beyond the counts.
    pub(crate) notes: Vec<String>,
    /// Single tests, each with the label of its executable.
    pub(crate) tests: Vec<(String, TestResult)>,
    /// Failed tests that can be run again, by name. Each is one of the failures in `counts`.
    pub(crate) retries: Vec<(String, Retry)>,
}

/// A program that runs tests, named for the way it reports them.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Runner {
    Cargo,
    Go,
    Unittest,
    Node,
    Playwright,
}

impl Runner {
    /// The sum of all counts in the output. `None` when there is no count at all: the runner died or never started.
    pub(crate) fn count(self, output: &str) -> Option<Counts> {
        let counts: Vec<Counts> = match self {
            Self::Cargo => output.lines().filter_map(cargo_line).collect(),
            Self::Go => output.lines().filter_map(go_line).collect(),
            Self::Unittest => unittest_count(output).into_iter().collect(),
            Self::Node => output.lines().filter_map(node_line).collect(),
            Self::Playwright => output.lines().filter_map(playwright_line).collect(),
        };
        (!counts.is_empty()).then(|| counts.into_iter().sum())
    }

    /// Counts the tests of a program that has ended. A runner that ended badly without a failed test, or well without
    /// any test, is one failure: something did not run that should have.
    pub(crate) fn judge(self, name: &str, finished: &Finished) -> Outcome {
        let counts = self.count(&finished.output).unwrap_or_default();
        let status = finished.status;
        if counts.passed == 0 && counts.failed == 0 {
            return Outcome::failure(format!("{name} ended without running a test ({status})"));
        }
        let mut outcome = Outcome::counted(counts);
        if !status.success() && counts.failed == 0 {
            outcome.add(Outcome::failure(format!(
                "{name} died ({status}), though none of its tests failed"
            )));
        }
        outcome
    }
}

impl Outcome {
    pub(crate) fn counted(counts: Counts) -> Self {
        Self {
            counts,
            ..Self::default()
        }
    }

    /// One check that passed.
    pub(crate) fn success() -> Self {
        Self::counted(Counts::passed(1))
    }

    /// One check that failed.
    pub(crate) fn failure(note: impl Into<String>) -> Self {
        Self {
            counts: Counts::failed(1),
            notes: vec![note.into()],
            ..Self::default()
        }
    }

    /// Nothing was tested.
    pub(crate) fn note(note: impl Into<String>) -> Self {
        Self {
            notes: vec![note.into()],
            ..Self::default()
        }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.counts = [self.counts, other.counts].into_iter().sum();
        self.notes.extend(other.notes);
        self.tests.extend(other.tests);
        self.retries.extend(other.retries);
    }
}

impl Counts {
    fn passed(passed: u64) -> Self {
        Self {
            passed,
            ..Self::default()
        }
    }

    fn failed(failed: u64) -> Self {
        Self {
            failed,
            ..Self::default()
        }
    }
}

impl Sum for Counts {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |total, one| Self {
            passed: total.passed + one.passed,
            failed: total.failed + one.failed,
            skipped: total.skipped + one.skipped,
        })
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} passed, {} failed, {} skipped",
            self.passed, self.failed, self.skipped
        )
    }
}

/// Zeros are left out: in a column of phases the failures must stand out.
impl fmt::Display for Outcome {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts {
            passed,
            failed,
            skipped,
        } = self.counts;
        let parts: Vec<String> = [(passed, "passed"), (failed, "failed"), (skipped, "skipped")]
            .into_iter()
            .filter(|(number, _)| *number > 0)
            .map(|(number, word)| format!("{number} {word}"))
            .collect();
        if parts.is_empty() {
            formatter.write_str(&self.notes.join("; "))
        } else {
            formatter.write_str(&parts.join(", "))
        }
    }
}

/// `test result: FAILED. 3 passed; 1 failed; 0 ignored; …`
fn cargo_line(line: &str) -> Option<Counts> {
    let (_, numbers) = line
        .trim_start()
        .strip_prefix("test result: ")?
        .split_once(". ")?;
    let mut parts = numbers.split("; ");
    Some(Counts {
        passed: number_before(parts.next()?, " passed")?,
        failed: number_before(parts.next()?, " failed")?,
        skipped: number_before(parts.next()?, " ignored")?,
    })
}

/// `--- PASS: TestName (0.00s)`. A subtest's line is indented: it is part of the test that it belongs to.
fn go_line(line: &str) -> Option<Counts> {
    if line.starts_with("--- PASS: ") {
        Some(Counts::passed(1))
    } else if line.starts_with("--- FAIL: ") {
        Some(Counts::failed(1))
    } else {
        None
    }
}

/// `  3 failed`, `  7 passed (48.7s)`. One that was flaky or did not run has not passed.
fn playwright_line(line: &str) -> Option<Counts> {
    let (number, word) = line.strip_prefix("  ")?.split_once(' ')?;
    let number = number.parse().ok()?;
    match word.split(' ').next()? {
        "passed" => Some(Counts::passed(number)),
        "failed" | "flaky" | "interrupted" | "did" => Some(Counts::failed(number)),
        "skipped" => Some(Counts {
            skipped: number,
            ..Counts::default()
        }),
        _ => None,
    }
}

/// `Ran 3 tests in 0.001s`, and then `OK`, `OK (skipped=1)` or `FAILED (failures=1, errors=1, skipped=1)`.
fn unittest_count(output: &str) -> Option<Counts> {
    let ran: u64 = output
        .lines()
        .filter_map(|line| line.strip_prefix("Ran ")?.split(' ').next()?.parse().ok())
        .next_back()?;
    let verdict = output
        .lines()
        .rfind(|line| line.starts_with("OK") || line.starts_with("FAILED"))?;
    let named = |name: &str| -> u64 {
        verdict
            .split(['(', ')', ','])
            .find_map(|part| {
                part.trim()
                    .strip_prefix(name)?
                    .strip_prefix('=')?
                    .parse()
                    .ok()
            })
            .unwrap_or(0)
    };
    let failed = named("failures") + named("errors") + named("unexpected successes");
    let skipped = named("skipped");
    Some(Counts {
        passed: ran.saturating_sub(failed + skipped),
        failed,
        skipped,
    })
}

/// `# pass 3` in TAP, `ℹ pass 3` for people. A cancelled test did not do what it should, so it failed.
fn node_line(line: &str) -> Option<Counts> {
    let (name, number) = line
        .strip_prefix("# ")
        .or_else(|| line.strip_prefix("ℹ "))?
        .split_once(' ')?;
    let number: u64 = number.trim().parse().ok()?;
    match name {
        "pass" => Some(Counts::passed(number)),
        "fail" | "cancelled" => Some(Counts::failed(number)),
        "skipped" => Some(Counts {
            skipped: number,
            ..Counts::default()
        }),
        _ => None,
    }
}

fn number_before(text: &str, suffix: &str) -> Option<u64> {
    text.trim().strip_suffix(suffix)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    fn check(runner: Runner, output: &str, expected: Option<(u64, u64, u64)>) {
        let expected = expected.map(|(passed, failed, skipped)| Counts {
            passed,
            failed,
            skipped,
        });
        assert_eq!(runner.count(output), expected, "{runner:?}: {output}");
    }

    #[test]
    fn cargo_prints_a_line_for_each_binary() {
        check(
            Runner::Cargo,
            "running 3 tests\ntest a ... ok\n\n\
             test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\n\
             test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n",
            Some((4, 2, 1)),
        );
        check(
            Runner::Cargo,
            "error: could not compile `lab` (lib) due to 1 previous error\n",
            None,
        );
    }

    #[test]
    fn go_prints_a_line_for_each_test() {
        check(
            Runner::Go,
            "=== RUN   TestOne\n=== RUN   TestOne/part\n--- PASS: TestOne (0.00s)\n    --- PASS: TestOne/part (0.00s)\n\
             --- FAIL: TestTwo (0.00s)\nFAIL\nFAIL\texample\t0.002s\n",
            Some((1, 1, 0)),
        );
        check(Runner::Go, "FAIL\texample [build failed]\n", None);
    }

    #[test]
    fn unittest_prints_one_verdict() {
        check(
            Runner::Unittest,
            "...\n-----\nRan 3 tests in 0.001s\n\nOK\n",
            Some((3, 0, 0)),
        );
        check(
            Runner::Unittest,
            "Ran 4 tests in 0.001s\n\nOK (skipped=1)\n",
            Some((3, 0, 1)),
        );
        check(
            Runner::Unittest,
            "Ran 1 test in 0.001s\n\nFAILED (errors=1)\n",
            Some((0, 1, 0)),
        );
        check(
            Runner::Unittest,
            "Ran 9 tests in 0.1s\n\nFAILED (failures=1, errors=2, skipped=3)\n",
            Some((3, 3, 3)),
        );
        check(
            Runner::Unittest,
            "python3: No module named unittest\n",
            None,
        );
    }

    #[test]
    fn node_prints_a_summary_in_two_dialects() {
        check(
            Runner::Node,
            "TAP version 13\n# tests 5\n# suites 0\n# pass 3\n# fail 1\n# cancelled 1\n# skipped 0\n# todo 0\n",
            Some((3, 2, 0)),
        );
        check(
            Runner::Node,
            "ℹ tests 2\nℹ pass 2\nℹ fail 0\nℹ duration_ms 41.2\n",
            Some((2, 0, 0)),
        );
        check(Runner::Node, "node: bad option: --test\n", None);
    }

    #[test]
    fn playwright_prints_a_line_for_each_outcome() {
        check(
            Runner::Playwright,
            "  ✓  1 a (2s)\n  2 failed\n    tests/page.spec.ts:1:1\n  1 did not run\n  7 passed (48.7s)\n",
            Some((7, 3, 0)),
        );
        check(Runner::Playwright, "  3 passed (1.2s)\n", Some((3, 0, 0)));
        check(Runner::Playwright, "Error: No tests found\n", None);
    }

    #[test]
    fn a_runner_that_did_not_run_its_tests_has_failed() {
        let all_passed = "test result: ok. 2 passed; 0 failed; 0 ignored\n";
        let one_failed = "test result: FAILED. 2 passed; 1 failed; 0 ignored\n";
        let none_ran = "test result: ok. 0 passed; 0 failed; 0 ignored\n";
        let no_counts = "error: could not compile\n";
        for (exit_code, output, counts, note) in [
            (0, all_passed, "2 passed", None),
            (101, one_failed, "2 passed, 1 failed", None),
            (
                0,
                none_ran,
                "1 failed",
                Some("ended without running a test (exit status: 0)"),
            ),
            (
                101,
                no_counts,
                "1 failed",
                Some("ended without running a test (exit status: 101)"),
            ),
            (
                101,
                all_passed,
                "2 passed, 1 failed",
                Some("died (exit status: 101), though none of its tests failed"),
            ),
        ] {
            let finished = Finished {
                status: ExitStatus::from_raw(exit_code << 8),
                output: output.to_owned(),
            };
            let outcome = Runner::Cargo.judge("cargo test", &finished);
            assert_eq!(outcome.to_string(), counts);
            assert_eq!(
                outcome.notes,
                Vec::from_iter(note.map(|note| format!("cargo test {note}")))
            );
        }
    }
}
