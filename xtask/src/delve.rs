//! Delve, the debugger of Go, for the tests of debugging in sessions. The distribution's version is too old for current Go.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::{process, workspace};

const MODULE: &str = "github.com/go-delve/delve/cmd/dlv";
const VERSION: &str = "v1.27.2";

/// The path of the program.
pub(crate) fn program() -> Result<PathBuf> {
    Ok(directory()?.join("dlv"))
}

pub(crate) fn install_if_missing() -> Result<()> {
    if program()?.is_file() {
        return Ok(());
    }
    eprintln!("About to build {MODULE} {VERSION}");
    process::run(
        Command::new("go")
            .args(["install", &format!("{MODULE}@{VERSION}")])
            .env("GOBIN", directory()?)
            .env("CGO_ENABLED", "0"),
    )
    .context("delve could not be built. Check the network")
}

fn directory() -> Result<PathBuf> {
    Ok(workspace::cache()?.join("delve").join(VERSION))
}
