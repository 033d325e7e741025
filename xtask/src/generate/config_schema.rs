//! The JSON schema of a config file and the reference of its keys, both from the types of the crate `config`.

use std::path::{Path, PathBuf};

use anyhow::Result;

/// What every generated file should contain now. The paths are relative to the top of the repository.
pub(crate) fn generated_files(_root: &Path) -> Result<Vec<(PathBuf, Vec<u8>)>> {
    Ok(vec![
        (
            PathBuf::from("schemas/standin.schema.json"),
            config::schema_text().into_bytes(),
        ),
        (
            PathBuf::from("docs/configuration.md"),
            config::reference_text().into_bytes(),
        ),
    ])
}
