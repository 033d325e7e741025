//! Runs git.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::process;

/// The output of git, without the final line break. What git prints about a failure is in the error.
pub(crate) fn output(folder: &Path, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new("git");
    command
        .current_dir(folder)
        .stderr(Stdio::piped())
        .args(arguments);
    let finished = command.output().context("starting git")?;
    ensure!(
        finished.status.success(),
        "`{}` failed: {}",
        process::shown(&command),
        String::from_utf8_lossy(&finished.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&finished.stdout)
        .trim_end()
        .to_owned())
}
