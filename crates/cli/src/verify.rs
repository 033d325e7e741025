//! `standin verify-config`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

use anyhow::{Context, Result};
use clap::Args;
use config::{Format, Style};

#[derive(Debug, Args)]
pub(crate) struct VerifyArguments {
    /// The file: JSON, YAML or TOML, by its ending
    file: PathBuf,
}

pub(crate) fn run(arguments: &VerifyArguments) -> Result<ExitCode> {
    let (text, format) = read(&arguments.file)?;
    let report = config::verify(&arguments.file.display().to_string(), &text, format);
    let style = if env::var_os("NO_COLOR").is_some() {
        Style::Plain
    } else {
        Style::Colored
    };
    print!("{}", report.render(style));
    println!("{}", report.summary());
    Ok(if report.has_errors() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// The text of a configuration file, and what it is written in.
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
