//! `cargo xtask soak`: repeats a test many times, to find failures that occur once in a hundred runs.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use lab::cleanup::HostResources;
use lab::{Lab, LabRequest, Lifetime, Paths, Progress, Shape};

use crate::{bench, duration, privilege, process, table};

/// A test that must succeed every time.
#[derive(Debug)]
pub(crate) struct Soak {
    name: &'static str,
    description: &'static str,
    default_cycles: u32,
    /// Runs once as the caller, before the rest runs as root.
    prepare: fn() -> Result<()>,
    needs_root: bool,
    /// One cycle. It leaves nothing behind, so that the next starts from the same state.
    cycle: fn(&Cycle<'_>) -> Result<()>,
}

/// One repetition.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cycle<'run> {
    /// From 1.
    pub(crate) number: u32,
    /// The folder of programs that are already built.
    pub(crate) programs: Option<&'run Path>,
}

const SOAKS: &[Soak] = &[
    Soak {
        name: "lab",
        description: "two clusters start, and stop without leaving anything behind",
        default_cycles: 20,
        prepare: || crate::lab::prepare(&Paths::from_environment(), 2, 1),
        needs_root: true,
        cycle: up_and_down,
    },
    Soak {
        name: "output",
        description: "the last lines of a program's output are never lost",
        default_cycles: 200,
        prepare: || Ok(()),
        needs_root: false,
        cycle: keep_last_line,
    },
    Soak {
        name: "hostile",
        description: "with 10,000 hostile connections to each listener, sessions start, policies change, and no probe fails",
        default_cycles: 3,
        prepare: bench::prepare_hostile_soak,
        needs_root: true,
        cycle: bench::soak_hostile_peers,
    },
];

#[derive(Debug, Args)]
pub(crate) struct SoakArguments {
    /// What to repeat; without a name, the soaks are listed
    name: Option<String>,
    /// How many times; each soak has its own default
    #[arg(long, requires = "name", value_parser = clap::value_parser!(u32).range(1..))]
    cycles: Option<u32>,
    /// Continue after a cycle that failed, instead of stopping with its state left in place
    #[arg(long, requires = "name")]
    keep_going: bool,
    /// Use the programs in this folder instead of building some, as `cargo xtask bench --programs` does
    #[arg(long, requires = "name", value_name = "FOLDER")]
    programs: Option<PathBuf>,
}

pub(crate) fn run(arguments: &SoakArguments) -> Result<ExitCode> {
    let Some(name) = &arguments.name else {
        print!("{}", list());
        return Ok(ExitCode::SUCCESS);
    };
    let Some(soak) = SOAKS.iter().find(|soak| soak.name == name) else {
        bail!("there is no soak `{name}`. Available soaks:\n{}", list());
    };
    if arguments.programs.is_none() {
        (soak.prepare)()?;
    }
    if soak.needs_root
        && let Some(exit_code) =
            privilege::continue_as_root("the soak creates namespaces and devices", &[])?
    {
        return Ok(exit_code);
    }
    let cycles = arguments.cycles.unwrap_or(soak.default_cycles);
    let results = repeat(cycles, arguments.keep_going, |number| {
        let programs = arguments.programs.as_deref();
        (soak.cycle)(&Cycle { number, programs })
    });
    print!("{}", summary(cycles, &results));
    let all_succeeded = results.iter().all(|result| result.error.is_none());
    Ok(ExitCode::from(u8::from(!all_succeeded)))
}

/// The result of one cycle.
struct CycleResult {
    number: u32,
    elapsed: Duration,
    error: Option<anyhow::Error>,
}

fn repeat(cycles: u32, keep_going: bool, cycle: impl Fn(u32) -> Result<()>) -> Vec<CycleResult> {
    let mut results = Vec::new();
    for number in 1..=cycles {
        let started = Instant::now();
        let error = cycle(number).err();
        let elapsed = started.elapsed();
        let verdict = error
            .as_ref()
            .map_or_else(|| "ok".to_owned(), |error| format!("FAILED: {error:#}"));
        eprintln!(
            "cycle {number} of {cycles}: {verdict} ({})",
            duration::display(elapsed)
        );
        let stop = error.is_some() && !keep_going;
        results.push(CycleResult {
            number,
            elapsed,
            error,
        });
        if stop {
            break;
        }
    }
    results
}

fn summary(cycles: u32, results: &[CycleResult]) -> String {
    let (failures, successes): (Vec<_>, Vec<_>) =
        results.iter().partition(|result| result.error.is_some());
    let mut text = String::new();
    for failure in &failures {
        if let Some(error) = &failure.error {
            text.push_str(&format!("cycle {} failed: {error:#}\n", failure.number));
        }
    }
    let mut times: Vec<Duration> = successes.iter().map(|result| result.elapsed).collect();
    times.sort();
    if let (Some(shortest), Some(median), Some(longest)) =
        (times.first(), times.get(times.len() / 2), times.last())
    {
        text.push_str(&format!(
            "shortest {}, median {}, longest {}\n",
            duration::display(*shortest),
            duration::display(*median),
            duration::display(*longest)
        ));
    }
    let not_run = (cycles as usize).saturating_sub(results.len());
    let (succeeded, failed) = (successes.len(), failures.len());
    text.push_str(&format!(
        "{succeeded} of {cycles} cycles succeeded, {failed} failed, {not_run} not run\n"
    ));
    text
}

fn list() -> String {
    let rows: Vec<Vec<String>> = SOAKS
        .iter()
        .map(|soak| {
            vec![
                soak.name.to_owned(),
                soak.default_cycles.to_string(),
                soak.description.to_owned(),
            ]
        })
        .collect();
    table::render(
        &["soak", "cycles", "what must work every time"],
        &["cycles"],
        &rows,
    )
}

fn up_and_down(_: &Cycle<'_>) -> Result<()> {
    let name = &format!("soak-{}", std::process::id());
    let paths = Paths::from_environment();
    let before = HostResources::snapshot();
    let request = LabRequest::new(name, 2, 1, Shape::Full)?;
    let _lab = Lab::up(&paths, &request, Lifetime::Owned, &Progress::silent())?;
    Lab::down(&paths, name)?;
    let left = HostResources::wait_for_cleanup(&before, &[], Duration::from_secs(30));
    ensure!(left.is_empty(), "left behind: {left:?}");
    Ok(())
}

/// The counts of `cargo xtask test` are read from the last lines that a runner prints, so none may be lost.
fn keep_last_line(cycle: &Cycle<'_>) -> Result<()> {
    let number = cycle.number;
    let expected = format!("last line {number}");
    let mut command = Command::new("sh");
    command.args([
        "-c",
        &format!("seq 1 20000; echo '{expected}' >&2; exit {}", number % 7),
    ]);
    let finished = process::copy_output(command, io::sink())?;
    let last = finished
        .output
        .lines()
        .last()
        .context("all output was lost")?;
    ensure!(
        last == expected,
        "the last line is {last:?}, not {expected:?}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail_every_third(number: u32) -> Result<()> {
        ensure!(!number.is_multiple_of(3), "the third is bad");
        Ok(())
    }

    #[test]
    fn the_first_failure_stops_the_soak() {
        let results = repeat(10, false, fail_every_third);
        assert_eq!(
            summary(10, &results),
            "cycle 3 failed: the third is bad\n\
             shortest 0.0 s, median 0.0 s, longest 0.0 s\n\
             2 of 10 cycles succeeded, 1 failed, 7 not run\n"
        );
    }

    #[test]
    fn keep_going_runs_all_cycles() {
        let results = repeat(7, true, fail_every_third);
        assert!(summary(7, &results).ends_with("\n5 of 7 cycles succeeded, 2 failed, 0 not run\n"));
    }

    #[test]
    fn a_few_cycles_of_each_light_soak() {
        let results = repeat(5, false, |number| {
            keep_last_line(&Cycle {
                number,
                programs: None,
            })
        });
        assert!(results.iter().all(|result| result.error.is_none()));
    }
}
