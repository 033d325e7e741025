//! How long the repository's own checks take. They run before every commit, so they must be fast.

use std::process::Command;
use std::time::Instant;

use anyhow::Result;

use super::Row;
use crate::tidy::{self, Repository};
use crate::{process, workspace};

pub(crate) fn measure() -> Result<Vec<Row>> {
    let root = workspace::root()?;
    let baseline = seconds(|| {
        process::output(
            Command::new("git")
                .args(["grep", "--count", ""])
                .current_dir(&root),
        )
        .map(|_| ())
    })?;
    let checks = seconds(|| tidy::findings(&Repository::read(&root)?).map(|_| ()))?;
    Ok(vec![
        Row::new("tidy (baseline: git reads every line)", checks, "s")
            .baseline(baseline)
            .at_most(5.0),
    ])
}

fn seconds(action: impl FnOnce() -> Result<()>) -> Result<f64> {
    let started = Instant::now();
    action()?;
    Ok(started.elapsed().as_secs_f64())
}
