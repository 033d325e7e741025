//! `standin verify-config`.

use std::fs;
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use config::{Format, Location, Problem, Style};

use crate::exec::{colors, settings};

const EXAMPLES: &str = "\
Examples:
  standin verify-config
  standin verify-config .mirrord/mirrord.json

Exit code: 0 if the file can be used, even with warnings; 1 if it cannot; 125 if there is none.
`standin exec --print-config` shows the settings of the file combined with variables and flags.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct VerifyArguments {
    /// The file: JSON, YAML or TOML, by its extension. The default is the one that `standin exec` would use here
    file: Option<PathBuf>,
}

pub(crate) fn run(arguments: &VerifyArguments) -> Result<ExitCode> {
    let file = match &arguments.file {
        Some(file) => file.clone(),
        None => settings::discover(Path::new(""), |text| eprintln!("standin: {text}"))?
            .context("there is no configuration file here: name one. docs/configuration.md describes its settings")?,
    };
    let (text, format) = read(&file)?;
    let report = config::verify(&file.display().to_string(), &text, format);
    let style = if colors() && io::stdout().is_terminal() {
        Style::Colored
    } else {
        Style::Plain
    };
    // With problems, the last line is the summary.
    if report.problems().is_empty() {
        println!("{}", report.summary());
    } else {
        print!("{}", report.render(style));
    }
    Ok(if report.has_errors() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// The text of a configuration file, and its format.
pub(crate) fn read(file: &Path) -> Result<(String, Format)> {
    let format = Format::of_path(file).with_context(|| {
        format!(
            "{} ends in none of .json, .yaml, .yml and .toml",
            file.display()
        )
    })?;
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok((text, format))
}

/// A problem as a warning of one line.
pub(crate) fn in_one_line(problem: &Problem) -> String {
    let Location {
        source,
        line,
        column,
    } = &problem.location;
    let hint = problem
        .kind
        .hint()
        .map_or_else(String::new, |hint| format!("; {hint}"));
    format!("{source}:{line}:{column}: {}{hint}", problem.kind)
}
