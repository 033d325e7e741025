//! Reads recordings.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use monitor::Recording;

pub(super) fn read(file: &Path) -> Result<Recording> {
    let text = fs::read_to_string(file)
        .with_context(|| format!("the recording {} cannot be read", file.display()))?;
    Recording::parse(&text)
        .map_err(|error| anyhow!("{} cannot be replayed: {error}", file.display()))
}
