//! `cargo xtask test`: every check and every test of the repository, in phases.
//!
//! A phase that fails does not keep the others from running, so that one run shows everything that is wrong. The
//! exception is `packages`: without its packages the rest would only repeat the same failure in other words.
//!
//! A test that fails is run once more at the end, alone. If it passes then, it is flaky: the run passes and names it.

mod build;
mod counts;
mod executables;
mod phase;
mod results;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};

use self::counts::{Counts, Outcome};
use self::phase::{Phase, Settings};
use self::results::TestResult;
use crate::{duration, privilege, process, table, workspace};

/// How many of the slowest tests the summary lists.
const SLOWEST_SHOWN: usize = 25;

#[derive(Debug, Args)]
pub(crate) struct TestArguments {
    /// Run the tests on clusters on these contexts of the kubeconfig instead of on the lab
    #[arg(long, value_delimiter = ',', value_name = "CONTEXT")]
    contexts: Vec<String>,
    /// Run only these phases. They expect that the packages are installed, unless `packages` is one of them
    #[arg(long, value_delimiter = ',', num_args = 1.., value_name = "PHASE")]
    only: Vec<Phase>,
    /// Print the phases and what each does, and do nothing
    #[arg(long)]
    list: bool,
}

pub(crate) fn run(arguments: &TestArguments) -> Result<ExitCode> {
    if arguments.list {
        print!("{}", list());
        return Ok(ExitCode::SUCCESS);
    }
    let settings = Settings::new(workspace::root()?, arguments.contexts.clone());
    let phases = selected(&arguments.only);
    check_surroundings(&phases, &settings)?;
    let started = Instant::now();
    let mut results = run_phases(&phases, |phase| phase.run(&settings));
    let flaky = run_failed_again(&mut results);
    print!("{}", summary(&results, &flaky, started.elapsed()));
    let failed = results
        .iter()
        .any(|result| result.outcome.counts.failed > 0);
    Ok(ExitCode::from(u8::from(failed)))
}

/// One phase that has ended, or that was left out because an earlier one failed.
struct PhaseResult {
    phase: Phase,
    elapsed: Duration,
    outcome: Outcome,
}

fn list() -> String {
    let rows: Vec<Vec<String>> = Phase::value_variants()
        .iter()
        .map(|phase| vec![phase.name(), phase.description().to_owned()])
        .collect();
    table::render(&["phase", "what it does"], &[], &rows)
}

/// The phases in their order, whatever the order in which they were named.
fn selected(only: &[Phase]) -> Vec<Phase> {
    Phase::value_variants()
        .iter()
        .copied()
        .filter(|phase| only.is_empty() || only.contains(phase))
        .collect()
}

/// Checks first what would otherwise fail only after minutes, when packages are installed and everything is built.
fn check_surroundings(phases: &[Phase], settings: &Settings) -> Result<()> {
    let uses_go = |phase: &Phase| {
        matches!(
            phase,
            Phase::Tidy | Phase::Build | Phase::Shop | Phase::Demo | Phase::E2e
        )
    };
    if phases.iter().any(uses_go) && process::find_program("go").is_none() {
        bail!("`go` was not found on PATH. {}", process::remedy("go"));
    }
    if phases.contains(&Phase::E2e) && settings.uses_lab() {
        privilege::check("the lab makes namespaces, mounts and network devices")?;
    }
    Ok(())
}

fn run_phases(phases: &[Phase], run: impl Fn(Phase) -> Result<Outcome>) -> Vec<PhaseResult> {
    let mut results: Vec<PhaseResult> = Vec::new();
    for &phase in phases {
        if results
            .iter()
            .any(|result| result.phase.is_required() && result.outcome.counts.failed > 0)
        {
            results.push(PhaseResult {
                phase,
                elapsed: Duration::ZERO,
                outcome: Outcome::note("not run"),
            });
            continue;
        }
        eprintln!("\n### {}: {}", phase.name(), phase.description());
        let started = Instant::now();
        let outcome = run(phase).unwrap_or_else(|error| {
            eprintln!("{}: {error:#}", phase.name());
            Outcome::failure(format!("{error:#}"))
        });
        results.push(PhaseResult {
            phase,
            elapsed: started.elapsed(),
            outcome,
        });
    }
    results
}

/// Runs each failed test once more, alone. Returns the names of those that passed then, and counts them as passed.
fn run_failed_again(results: &mut [PhaseResult]) -> Vec<String> {
    let mut flaky = Vec::new();
    for result in results {
        for (name, retry) in std::mem::take(&mut result.outcome.retries) {
            eprintln!("\n### once more, alone: {name}");
            let has_passed = retry().unwrap_or_else(|error| {
                eprintln!("{name}: {error:#}");
                false
            });
            if has_passed {
                result.outcome.counts.failed -= 1;
                result.outcome.counts.passed += 1;
                flaky.push(name);
            } else {
                result
                    .outcome
                    .notes
                    .push(format!("{name} failed twice; its output is above"));
            }
        }
    }
    flaky
}

/// A line per phase, the slowest tests, what failed, flaky tests, and the sum of all counts alone on the last line.
fn summary(results: &[PhaseResult], flaky: &[String], elapsed: Duration) -> String {
    let rows: Vec<Vec<String>> = results
        .iter()
        .map(|result| {
            vec![
                result.phase.name(),
                duration::display(result.elapsed),
                result.outcome.to_string(),
            ]
        })
        .collect();
    let total: Counts = results.iter().map(|result| result.outcome.counts).sum();
    let failures: String = results
        .iter()
        .filter(|result| result.outcome.counts.failed > 0)
        .flat_map(|result| result.outcome.notes.iter().map(|note| (result.phase, note)))
        .map(|(phase, note)| format!("{}: {note}\n", phase.name()))
        .collect();
    let table = table::render(&["phase", "time", "result"], &["time"], &rows);
    let slowest = slowest_tests(results);
    let flaky_names: String = flaky
        .iter()
        .map(|name| format!("flaky: {name} failed, and passed alone\n"))
        .collect();
    format!(
        "\n{table}{slowest}\ntime: {}\n{failures}{flaky_names}flaky: {}\n{total}\n",
        duration::display(elapsed),
        flaky.len()
    )
}

/// A table of the slowest tests and what they waited for, or nothing where no test has a time.
fn slowest_tests(results: &[PhaseResult]) -> String {
    let mut tests: Vec<(&str, &TestResult, Duration)> = results
        .iter()
        .flat_map(|result| &result.outcome.tests)
        .filter_map(|(label, test)| Some((label.as_str(), test, test.elapsed?)))
        .collect();
    if tests.is_empty() {
        return String::new();
    }
    tests.sort_by_key(|(_, _, elapsed)| std::cmp::Reverse(*elapsed));
    let rows: Vec<Vec<String>> = tests
        .into_iter()
        .take(SLOWEST_SHOWN)
        .map(|(label, test, elapsed)| {
            vec![
                format!("{label} {}", test.name),
                duration::display(elapsed),
                test.waited.clone().unwrap_or_default(),
            ]
        })
        .collect();
    let table = table::render(&["slowest tests", "time", "waited"], &["time"], &rows);
    format!("\n{table}")
}

#[cfg(test)]
mod tests {
    use super::results::Verdict;
    use super::*;

    fn outcome(passed: u64, failed: u64) -> Outcome {
        Outcome::counted(Counts {
            passed,
            failed,
            skipped: 0,
        })
    }

    fn shown(results: &mut [PhaseResult]) -> String {
        let flaky = run_failed_again(results);
        summary(results, &flaky, Duration::from_secs(61))
    }

    #[test]
    fn phases_keep_their_order() {
        assert_eq!(
            selected(&[Phase::Unit, Phase::Format]),
            [Phase::Format, Phase::Unit]
        );
        assert_eq!(selected(&[]), Phase::value_variants());
    }

    #[test]
    fn the_summary_is_a_table_and_a_closing_line() {
        let mut results = run_phases(
            &[Phase::Packages, Phase::Format, Phase::Unit, Phase::E2e],
            |phase| match phase {
                Phase::Packages => Ok(Outcome::note("nothing to install")),
                Phase::Unit => Ok(outcome(30, 2)),
                Phase::E2e => bail!("the lab could not be started"),
                _ => Ok(outcome(1, 0)),
            },
        );
        assert_eq!(
            shown(&mut results),
            "
phase      time  result
packages  0.0 s  nothing to install
format    0.0 s  1 passed
unit      0.0 s  30 passed, 2 failed
e2e       0.0 s  1 failed

time: 1 min 01 s
e2e: the lab could not be started
flaky: 0
31 passed, 3 failed, 0 skipped
"
        );
    }

    #[test]
    fn slow_tests_are_listed_with_what_they_waited_for() {
        let test = |name: &str, seconds, waited: Option<&str>| {
            let result = TestResult {
                name: name.to_owned(),
                verdict: Verdict::Passed,
                elapsed: Some(Duration::from_secs(seconds)),
                waited: waited.map(str::to_owned),
            };
            ("agent".to_owned(), result)
        };
        let mut results = run_phases(&[Phase::Unit], |_| {
            Ok(Outcome {
                tests: vec![
                    test("quick", 1, None),
                    test("slow", 20, Some("18.0s: pods")),
                ],
                ..outcome(2, 0)
            })
        });
        let shown = shown(&mut results);
        assert!(
            shown.contains(
                "
slowest tests    time  waited
agent slow     20.0 s  18.0s: pods
agent quick     1.0 s
"
            ),
            "{shown}"
        );
    }

    #[test]
    fn a_test_that_passes_the_second_time_is_flaky_and_one_that_does_not_has_failed() {
        let retry = |name: &str, passes: bool| -> (String, counts::Retry) {
            (name.to_owned(), Box::new(move || Ok(passes)))
        };
        let run = |passes: [bool; 2]| {
            let mut results = run_phases(&[Phase::Unit], |_| {
                Ok(Outcome {
                    retries: vec![retry("link one", passes[0]), retry("link two", passes[1])],
                    ..outcome(5, 2)
                })
            });
            shown(&mut results)
        };
        let both = run([true, true]);
        assert!(
            both.ends_with(
                "flaky: link one failed, and passed alone\nflaky: link two failed, and passed alone\n\
                 flaky: 2\n7 passed, 0 failed, 0 skipped\n"
            ),
            "{both}"
        );
        let one = run([true, false]);
        assert!(
            one.ends_with(
                "unit: link two failed twice; its output is above\nflaky: link one failed, and passed alone\n\
                 flaky: 1\n6 passed, 1 failed, 0 skipped\n"
            ),
            "{one}"
        );
    }

    #[test]
    fn without_packages_nothing_else_runs() {
        let mut results = run_phases(&[Phase::Packages, Phase::Format], |phase| match phase {
            Phase::Packages => bail!("no network"),
            _ => panic!("{phase:?} must not run"),
        });
        let shown = shown(&mut results);
        assert!(shown.contains("format    0.0 s  not run\n"), "{shown}");
        assert!(
            shown.ends_with("\n0 passed, 1 failed, 0 skipped\n"),
            "{shown}"
        );
    }

    #[test]
    fn every_phase_is_listed() {
        let list = list();
        for phase in Phase::value_variants() {
            assert!(
                list.lines().any(|line| line.starts_with(&phase.name())),
                "{list}"
            );
        }
    }
}
