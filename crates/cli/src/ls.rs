//! `standin ls`: what there is to stand in for in a namespace.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use cluster::{Cluster, Listing};

use crate::exec::settings::load_with;
use crate::exec::{ClusterFlags, Progress, access};

#[derive(Debug, Args)]
#[command(after_help = "Names of the first column are what `standin exec -t` takes.")]
pub(crate) struct LsArguments {
    #[command(flatten)]
    cluster: ClusterFlags,
    /// The configuration file, as for `standin exec`
    #[arg(short = 'f', long = "config-file", value_name = "FILE")]
    config_file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &LsArguments) -> Result<ExitCode> {
    let progress = Progress::new(true);
    let add_flags = |layers| arguments.cluster.add_to(layers);
    let file = arguments.config_file.as_deref();
    let settings = load_with(file, add_flags, &progress)?.settings;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the runtime does not start")?;
    let (listing, namespace) = runtime.block_on(async {
        let cluster = Cluster::connect(&access(&settings)).await?;
        let namespace = cluster.namespace().to_owned();
        let listing = cluster::list(&cluster, &namespace).await?;
        Ok::<_, cluster::Error>((listing, namespace))
    })?;
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&listing.targets)?);
    } else {
        print!("{}", table(&listing));
    }
    if listing.targets.is_empty() {
        progress.say(&format!(
            "there is nothing in the namespace {namespace}; `-n` names another one"
        ));
    }
    if !listing.forbidden.is_empty() {
        progress.say(&format!(
            "not listed, because you may not: {}",
            listing.forbidden.join(", ")
        ));
    }
    Ok(ExitCode::SUCCESS)
}

fn table(listing: &Listing) -> String {
    let header = ["TARGET", "PODS", "CONTAINERS"].map(str::to_owned);
    let rows = listing.targets.iter().map(|target| {
        [
            target.target.clone(),
            target.available.to_string(),
            target.containers.join(", "),
        ]
    });
    let rows: Vec<[String; 3]> = std::iter::once(header).chain(rows).collect();
    let width = |column: usize| {
        let lengths = rows.iter().map(|row| row[column].chars().count());
        lengths.max().unwrap_or(0)
    };
    let (targets, pods) = (width(0), width(1));
    let lines = rows.iter().map(|[target, count, containers]| {
        let line = format!("{target:targets$}  {count:>pods$}  {containers}");
        format!("{}\n", line.trim_end())
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use cluster::Listed;

    use super::*;

    #[test]
    fn a_table_has_columns() {
        let listed = |target: &str, available, containers: &[&str]| Listed {
            target: target.to_owned(),
            kind: "deployment",
            name: String::new(),
            namespace: String::new(),
            containers: containers.iter().map(ToString::to_string).collect(),
            available,
        };
        let listing = Listing {
            targets: vec![
                listed("deployment/checkout", 12, &["app", "helper"]),
                listed("service/none", 0, &[]),
            ],
            forbidden: Vec::new(),
        };
        assert_eq!(
            table(&listing),
            "\
TARGET               PODS  CONTAINERS
deployment/checkout    12  app, helper
service/none            0
"
        );
    }
}
