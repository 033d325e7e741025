//! `cargo xtask bench`: measures something, and compares it with a baseline measured in the same run and with a goal.
//!
//! A goal that is missed is reported, not an error: the reader decides whether the machine or the code was slow.

mod groups;
mod images;
mod incoming;
mod kubernetes;
mod lab;
mod load;
mod monitor;
mod multicluster;
mod repository;
mod row;
mod server;
mod session;
mod wire;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use ::lab::Paths;
use anyhow::{Context, Result, bail};
use clap::Args;

pub(crate) use self::row::Row;
use crate::{privilege, table};

/// Something that can be measured.
#[derive(Debug)]
pub(crate) struct Bench {
    name: &'static str,
    description: &'static str,
    /// Done as the caller, before the rest is done as root.
    prepare: fn() -> Result<()>,
    /// Namespaces and devices are made for it.
    needs_root: bool,
    measure: fn(&Extent) -> Result<Vec<Row>>,
}

const BENCHES: &[Bench] = &[
    Bench {
        name: "lab",
        description: "clusters: start, idle cost, loading an image, end",
        prepare: || crate::lab::prepare(&Paths::from_environment(), 3, 1),
        needs_root: true,
        measure: |_| lab::measure(),
    },
    Bench {
        name: "wire",
        description: "the wire of network faults: throughput and timing",
        prepare: || Ok(()),
        needs_root: true,
        measure: |_| wire::measure(),
    },
    Bench {
        name: "session",
        description: "sessions: starting, files, connections, faults, memory, over links of 0, 5 and 40 ms",
        prepare: session::prepare,
        needs_root: true,
        measure: session::measure,
    },
    Bench {
        name: "incoming",
        description: "incoming traffic: stolen, not matched, mirrored; for minutes, and with many connections",
        prepare: session::prepare,
        needs_root: true,
        measure: incoming::measure,
    },
    Bench {
        name: "kubernetes",
        description: "sessions on a cluster: start, stolen and other traffic, connections, names, memory; and with an operator, many at once",
        prepare: kubernetes::prepare,
        needs_root: true,
        measure: kubernetes::measure,
    },
    Bench {
        name: "multicluster",
        description: "sessions over three clusters with links of 0, 20 and 80 ms: start, files, stolen traffic, a member that is cut off; many sessions, many members",
        prepare: multicluster::prepare,
        needs_root: true,
        measure: multicluster::measure,
    },
    Bench {
        name: "monitor",
        description: "watching sessions: the cost of an event, `standin ui` with many of them, the page",
        prepare: monitor::prepare,
        needs_root: true,
        measure: monitor::measure,
    },
    Bench {
        name: "repository",
        description: "the checks that run before every commit",
        prepare: || Ok(()),
        needs_root: false,
        measure: |_| repository::measure(),
    },
];

#[derive(Debug, Args)]
pub(crate) struct BenchArguments {
    /// What to measure; without a name, the benches are listed
    name: Option<String>,
    /// Also write the rows to this file, as a JSON array
    #[arg(long, value_name = "FILE", requires = "name")]
    json: Option<PathBuf>,
    #[command(flatten)]
    extent: Extent,
}

/// How much is measured.
#[derive(Debug, Args)]
pub(crate) struct Extent {
    /// Measure less often and less long, where a bench can: for a first look
    #[arg(long, requires = "name")]
    quick: bool,
    /// Only these groups of measures, where a bench has groups
    #[arg(long, requires = "name", value_name = "GROUP", value_delimiter = ',')]
    only: Vec<String>,
    /// Measure the programs in this folder instead of building some: `standin`, and `standind` and `workload`, which need
    /// no other file
    #[arg(long, requires = "name", value_name = "FOLDER")]
    programs: Option<PathBuf>,
}

impl Extent {
    /// How many rounds to measure, of as many that make a good median.
    fn rounds(&self, usual: usize) -> usize {
        if self.quick { 1 } else { usual }
    }
}

pub(crate) fn run(arguments: &BenchArguments) -> Result<ExitCode> {
    let Some(name) = &arguments.name else {
        print!("{}", list());
        return Ok(ExitCode::SUCCESS);
    };
    let bench = find(name)?;
    if arguments.extent.programs.is_none() {
        (bench.prepare)()?;
    }
    if bench.needs_root
        && let Some(ended) =
            privilege::continue_as_root("the bench makes namespaces and devices", &[])?
    {
        return Ok(ended);
    }
    let rows = (bench.measure)(&arguments.extent).with_context(|| format!("measuring {name}"))?;
    print!("{}", row::render(&rows));
    if let Some(file) = &arguments.json {
        fs::write(file, row::json(&rows)?)
            .with_context(|| format!("writing {}", file.display()))?;
        eprintln!("Written to {}", file.display());
    }
    let missed = rows.iter().filter(|row| row.is_missed()).count();
    if missed > 0 {
        eprintln!("{missed} of {} measures missed the goal", rows.len());
    }
    Ok(ExitCode::SUCCESS)
}

fn find(name: &str) -> Result<&'static Bench> {
    match BENCHES.iter().find(|bench| bench.name == name) {
        Some(bench) => Ok(bench),
        None => bail!("there is no bench `{name}`. These are there:\n{}", list()),
    }
}

fn list() -> String {
    let rows: Vec<Vec<String>> = BENCHES
        .iter()
        .map(|bench| vec![bench.name.to_owned(), bench.description.to_owned()])
        .collect();
    table::render(&["bench", "what it measures"], &[], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let message = find("nothing").unwrap_err().to_string();
        for bench in BENCHES {
            assert!(message.contains(bench.name), "{message}");
        }
    }
}
