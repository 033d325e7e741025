//! The page of `standin ui`: its packages, its checks, its build, and its tests in a browser.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::{environment, node, packages, privilege, process, workspace};

/// The folder of the page.
pub(crate) const FOLDER: &str = "web/monitor";
/// The output folder of its build, from which the program embeds it.
pub(crate) const BUILT: &str = "crates/cli/page/dist";

/// `cargo xtask web`.
pub(crate) fn run() -> Result<ExitCode> {
    install_and_build(&workspace::root()?)?;
    Ok(ExitCode::SUCCESS)
}

/// Installs what the build needs, and builds the page.
pub(crate) fn install_and_build(root: &Path) -> Result<()> {
    packages::install_missing(&packages::PAGE)?;
    node::install_if_missing()?;
    build(root)
}

/// Checks the page and builds it.
pub(crate) fn build(root: &Path) -> Result<()> {
    let folder = root.join(FOLDER);
    install(&folder)?;
    process::run(npm(&folder)?.args(["run", "--silent", "check"]))?;
    process::run(npm(&folder)?.args(["run", "--silent", "build"]))
}

/// The tests in a browser, with programs that embed the page. They create networks, so they run as root.
pub(crate) fn tests(root: &Path, programs: &Path) -> Result<Command> {
    let folder = root.join(FOLDER);
    install(&folder)?;
    let assign = |name: &str, value: OsString| {
        let mut text = OsString::from(format!("{name}="));
        text.push(value);
        text
    };
    let mut command = privilege::command("env");
    command
        .arg(assign(environment::PATH, path()?))
        .arg(assign(environment::PROGRAMS, programs.into()))
        .arg(node::program()?)
        .args(["node_modules/@playwright/test/cli.js", "test"])
        .current_dir(folder);
    Ok(command)
}

/// Installs the packages of the lock file, unless they are installed already.
fn install(folder: &Path) -> Result<()> {
    let lock = folder.join("package-lock.json");
    let installed = folder.join("node_modules/.standin-lock");
    let expected = fs::read(&lock).with_context(|| lock.display().to_string())?;
    if fs::read(&installed).is_ok_and(|found| found == expected) {
        return Ok(());
    }
    process::run(npm(folder)?.args(["ci", "--no-audit", "--no-fund"]))
        .context("the packages of the page could not be fetched. Check the network")?;
    fs::write(&installed, expected).with_context(|| installed.display().to_string())
}

fn npm(folder: &Path) -> Result<Command> {
    let mut command = Command::new("npm");
    command.current_dir(folder).env(environment::PATH, path()?);
    Ok(command)
}

/// The folder of a Node that is new enough, before all others.
fn path() -> Result<OsString> {
    let node = node::program()?;
    let first = node.parent().map(PathBuf::from);
    let rest = env::var_os(environment::PATH).unwrap_or_default();
    let all = first.into_iter().chain(env::split_paths(&rest));
    env::join_paths(all).context("PATH cannot be used")
}
