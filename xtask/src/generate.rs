//! Generated files that are committed, so that a clone builds without the generators.
//!
//! A generator is a function that returns what its files should contain now; it writes nothing. So writing and
//! checking share all but the last step, and adding a generator is one line in [`GENERATORS`].

mod config_schema;
mod custom_resources;
mod protobuf;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

use crate::workspace;

/// Returns each file's path, relative to the top of the repository, and its whole content.
type Generator = fn(root: &Path) -> Result<Vec<(PathBuf, Vec<u8>)>>;

const GENERATORS: &[Generator] = &[
    config_schema::generated_files,
    custom_resources::generated_files,
    protobuf::generated_files,
];

#[derive(Debug, Args)]
pub(crate) struct GenerateArguments {
    /// Write nothing; fail when a file is not up to date
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(arguments: &GenerateArguments) -> Result<ExitCode> {
    let root = workspace::root()?;
    let stale = stale_files(&root)?;
    for (path, content) in &stale {
        if arguments.check {
            println!(
                "{}: not up to date; run `cargo xtask generate`",
                path.display()
            );
        } else {
            write(&root.join(path), content)?;
            println!("{}: written", path.display());
        }
    }
    if stale.is_empty() {
        eprintln!("All generated files are up to date");
    }
    Ok(if arguments.check && !stale.is_empty() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// The generated files whose content in the repository is not what it should be, with the right content.
pub(crate) fn stale_files(root: &Path) -> Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut stale = Vec::new();
    for generator in GENERATORS {
        stale.extend(different(root, generator(root)?));
    }
    Ok(stale)
}

fn different(root: &Path, files: Vec<(PathBuf, Vec<u8>)>) -> Vec<(PathBuf, Vec<u8>)> {
    files
        .into_iter()
        .filter(|(path, content)| fs::read(root.join(path)).ok().as_ref() != Some(content))
        .collect()
}

fn write(path: &Path, content: &[u8]) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)
            .with_context(|| format!("making the folder {}", folder.display()))?;
    }
    fs::write(path, content).with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_stale_when_it_is_missing_or_differs() {
        let root = tempfile::tempdir().unwrap();
        write(&root.path().join("folder/same"), b"same").unwrap();
        write(&root.path().join("folder/other"), b"old").unwrap();
        let files = ["folder/same", "folder/other", "folder/missing"]
            .map(|path| (PathBuf::from(path), b"same".to_vec()))
            .to_vec();
        let stale: Vec<_> = different(root.path(), files)
            .into_iter()
            .map(|(path, _)| path)
            .collect();
        assert_eq!(
            stale,
            [Path::new("folder/other"), Path::new("folder/missing")]
        );
    }
}
