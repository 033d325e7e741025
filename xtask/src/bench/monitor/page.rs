//! The page: its size, and its time to the first paint.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use super::super::session::median;
use super::super::session::programs::Programs;
use super::ui::Ui;
use super::{Extent, Row};
use crate::{node, process, web, workspace};

const PAGE: &str = "crates/cli/page/dist";
const ROUNDS: usize = 7;
const KIBIBYTE: f64 = 1024.0;

pub(super) fn rows(programs: &mut Programs, extent: &Extent) -> Result<Vec<Row>> {
    let root = workspace::root()?;
    let size = compressed_size(&root.join(PAGE))?;
    let folder = tempfile::tempdir()?;
    let ui = Ui::start(programs, folder.path())?;
    let rounds = extent.rounds(ROUNDS).to_string();
    let output = process::output(
        Command::new(node::program()?)
            .args(["bench/paint.mjs", &ui.address, &rounds])
            .current_dir(root.join(web::FOLDER)),
    )?;
    let paints: Vec<f64> =
        serde_json::from_str(&output).context("the browser script printed something else")?;
    Ok(vec![
        Row::new("first paint in a new browser", median(paints), "ms").at_most(1000.0),
        Row::new("the page, compressed", size / KIBIBYTE, "KiB").at_most(300.0),
    ])
}

/// Of all files, each compressed with gzip.
fn compressed_size(folder: &Path) -> Result<f64> {
    let mut total = 0.0;
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            total += compressed_size(&path)?;
            continue;
        }
        let script = "gzip --best --stdout -- \"$1\" | wc -c";
        let size = process::output(Command::new("sh").args(["-c", script, "sh"]).arg(&path))?;
        total += size.trim().parse::<f64>()?;
    }
    Ok(total)
}
