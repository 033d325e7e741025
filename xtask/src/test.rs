//! `cargo xtask test`: every check and every test of the repository, in phases.
//!
//! A phase that fails does not keep the others from running, so that one run shows everything that is wrong. The
//! exception is `packages`: without its packages the rest would only repeat the same failure in other words.

mod counts;
mod phase;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};

use self::counts::{Counts, Outcome};
use self::phase::{Phase, Settings};
use crate::{duration, privilege, process, table, workspace};

#[derive(Debug, Args)]
pub(crate) struct TestArguments {
    /// Run the stories on these contexts of the kubeconfig instead of on the lab
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
    let settings = Settings {
        root: workspace::root()?,
        contexts: arguments.contexts.clone(),
    };
    let phases = selected(&arguments.only);
    check_surroundings(&phases, &settings)?;
    let results = run_phases(&phases, |phase| phase.run(&settings));
    print!("{}", summary(&results));
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

/// What would only be noticed after minutes, when packages are installed and everything is built, is asked first.
fn check_surroundings(phases: &[Phase], settings: &Settings) -> Result<()> {
    let uses_go = |phase: &Phase| matches!(phase, Phase::Tidy | Phase::Shop | Phase::E2e);
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

/// A line per phase, what went wrong, and the sum of all counts alone on the last line.
fn summary(results: &[PhaseResult]) -> String {
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
    format!("\n{table}\n{failures}{total}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(passed: u64, failed: u64) -> Outcome {
        Outcome::counted(Counts { passed, failed })
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
        let results = run_phases(
            &[Phase::Packages, Phase::Format, Phase::Unit, Phase::E2e],
            |phase| match phase {
                Phase::Packages => Ok(Outcome::note("nothing to install")),
                Phase::Unit => Ok(outcome(30, 2)),
                Phase::E2e => bail!("the lab is not there"),
                _ => Ok(outcome(1, 0)),
            },
        );
        assert_eq!(
            summary(&results),
            "
phase      time  result
packages  0.0 s  nothing to install
format    0.0 s  1 passed
unit      0.0 s  30 passed, 2 failed
e2e       0.0 s  1 failed

e2e: the lab is not there
31 passed, 3 failed
"
        );
    }

    #[test]
    fn without_packages_nothing_else_runs() {
        let results = run_phases(&[Phase::Packages, Phase::Format], |phase| match phase {
            Phase::Packages => bail!("no network"),
            _ => panic!("{phase:?} must not run"),
        });
        assert!(summary(&results).contains("format    0.0 s  not run\n"));
        assert!(summary(&results).ends_with("\n0 passed, 1 failed\n"));
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
