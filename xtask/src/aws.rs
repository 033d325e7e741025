//! The AWS CLI and a stand-in for AWS itself (moto), with which a session's identity is tested, and botocore, with whose
//! tokens for EKS ours are compared. All come from the Python package index: distributions have none of them, or an old
//! version.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::{packages, process, workspace};

/// Moto has more dependencies, but its server needs only these.
const PACKAGES: [&str; 5] = [
    "awscli==1.46.2",
    "moto==5.2.5",
    // Pinned, because moto accepts any version.
    "botocore==1.44.0",
    "flask==3.1.3",
    "flask-cors==6.0.5",
];

/// The folder of the packages, for `PYTHONPATH`.
pub(crate) fn folder() -> Result<PathBuf> {
    let versions = PACKAGES.map(|package| package.replace("==", "-"));
    Ok(workspace::cache()?
        .join("aws")
        .join(versions[..2].join("-")))
}

pub(crate) fn install_if_missing() -> Result<()> {
    let folder = folder()?;
    if folder.is_dir() {
        return Ok(());
    }
    eprintln!(
        "About to install {} into {}",
        PACKAGES.join(", "),
        folder.display()
    );
    packages::install_missing(&packages::PYTHON_PACKAGE_INSTALLER)?;
    // Renamed when it is complete, so that an interrupted download is never taken for the whole.
    let partial = folder.with_file_name(format!("partial-{}", std::process::id()));
    let result = process::run(
        Command::new("python3")
            .args(["-m", "pip", "install", "--quiet", "--no-compile"])
            .args(["--only-binary=:all:", "--target"])
            .arg(&partial)
            .args(PACKAGES),
    )
    .and_then(|()| fs::rename(&partial, &folder).context("moving the packages into the cache"));
    if result.is_err() {
        let _ = fs::remove_dir_all(&partial);
    }
    result.context(
        "the AWS CLI could not be fetched. Check the network, and that python3 is 3.10 or newer",
    )
}
