//! `cargo xtask changes`: which checks the changes of a pull request need.
//!
//! Reading the changes is separate from deciding about them: the decisions are pure functions of the changed files.

mod diff;
mod fragment;
mod jobs;

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};

use self::diff::Diff;
use self::fragment::Verdict;
use self::jobs::Jobs;
use crate::tidy::Repository;
use crate::workspace;

#[derive(Debug, Subcommand)]
pub(crate) enum ChangesCommand {
    /// Print which jobs of CI are needed, as lines for `$GITHUB_OUTPUT`
    Jobs(JobsArguments),
    /// Fail if users would notice the changes and there is no changelog fragment
    Fragment(FragmentArguments),
}

#[derive(Debug, Args)]
pub(crate) struct JobsArguments {
    /// The commit that the changes are compared with. Without one, everything is needed
    #[arg(long, value_name = "COMMIT", default_value = "")]
    base: String,
}

#[derive(Debug, Args)]
pub(crate) struct FragmentArguments {
    /// The commit that the changes are compared with
    #[arg(long, value_name = "COMMIT")]
    base: String,
    /// The labels of the pull request, as a JSON list
    #[arg(long, value_name = "JSON", default_value = "[]")]
    labels: String,
}

pub(crate) fn run(command: &ChangesCommand) -> Result<ExitCode> {
    let root = workspace::root()?;
    match command {
        ChangesCommand::Jobs(JobsArguments { base }) => {
            let jobs = match base.as_str() {
                "" => Jobs::ALL,
                base => {
                    let repository = Repository::read(&root)?;
                    Jobs::needed(&Diff::read(&root, base)?, repository.sources())
                }
            };
            print!("{jobs}");
            Ok(ExitCode::SUCCESS)
        }
        ChangesCommand::Fragment(FragmentArguments { base, labels }) => {
            let labels: Vec<String> =
                serde_json::from_str(labels).context("reading the labels as a JSON list")?;
            let verdict = fragment::decide(&Diff::read(&root, base)?, &labels);
            println!("{verdict}");
            Ok(ExitCode::from(u8::from(matches!(
                verdict,
                Verdict::Missing(_)
            ))))
        }
    }
}
