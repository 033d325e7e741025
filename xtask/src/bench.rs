//! `cargo xtask bench`: runs benchmarks, and compares the results with a baseline of the same run and with a goal.
//!
//! A goal that is missed is reported, not an error: the reader decides whether the machine or the code was slow.

mod groups;
mod hostile;
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
mod tunnel;
mod wire;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use ::lab::Paths;
use anyhow::{Context, Result, bail};
use clap::Args;

pub(crate) use self::hostile::{prepare as prepare_hostile_soak, soak as soak_hostile_peers};
pub(crate) use self::row::Row;
use crate::{privilege, table};

/// A benchmark.
#[derive(Debug)]
pub(crate) struct Bench {
    name: &'static str,
    description: &'static str,
    /// Runs as the caller, before the rest runs as root.
    prepare: fn() -> Result<()>,
    /// Whether it creates namespaces and devices.
    needs_root: bool,
    measure: fn(&Extent) -> Result<Vec<Row>>,
}

const BENCHES: &[Bench] = &[
    Bench {
        name: "lab",
        description: "clusters: start, idle cost, loading an image, stop",
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
        description: "sessions on a cluster: start, stolen and other traffic, connections, DNS names, memory; and with an operator, many at once",
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
        name: "tunnel",
        description: "the reverse tunnel beside remotedialer and a direct connection: throughput, latency, stalled readers, many agents, an outage",
        prepare: tunnel::prepare,
        needs_root: true,
        measure: tunnel::measure,
    },
    Bench {
        name: "monitor",
        description: "monitoring sessions: the cost of an event, `standin ui` with many of them, the page",
        prepare: monitor::prepare,
        needs_root: true,
        measure: monitor::measure,
    },
    Bench {
        name: "hostile",
        description: "hostile peers: what their connections cost sessions with an operator; a Primary with a hostile member; the agent's memory with stalled clients",
        prepare: hostile::prepare,
        needs_root: true,
        measure: hostile::measure,
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

/// How much to measure.
#[derive(Debug, Default, Args)]
pub(crate) struct Extent {
    /// Fewer and shorter rounds, where a bench supports it: for a first impression
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
    /// The number of rounds: `usual` is enough for a good median.
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
        && let Some(exit_code) =
            privilege::continue_as_root("the bench creates namespaces and devices", &[])?
    {
        return Ok(exit_code);
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
        None => bail!("there is no bench `{name}`. Available benches:\n{}", list()),
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
    fn an_unknown_name_lists_the_available_benches() {
        let message = find("nothing").unwrap_err().to_string();
        for bench in BENCHES {
            assert!(message.contains(bench.name), "{message}");
        }
    }
}
