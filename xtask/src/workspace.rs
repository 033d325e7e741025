//! Where the repository is, where its caches are, and which files belong to it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result};

use crate::{environment, process};

/// The top folder of the repository.
///
/// Read from cargo's environment at run time rather than at compile time: two clones may share one build cache, and each must
/// find itself.
pub(crate) fn root() -> Result<PathBuf> {
    let manifest_folder = env::var_os(environment::CARGO_MANIFEST_DIR)
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    manifest_folder
        .parent()
        .map(Path::to_path_buf)
        .with_context(|| format!("{} has no parent folder", manifest_folder.display()))
}

/// The folder for everything that is expensive to make and safe to delete.
pub(crate) fn cache() -> Result<PathBuf> {
    if let Some(cache_home) =
        env::var_os(environment::XDG_CACHE_HOME).filter(|value| !value.is_empty())
    {
        return Ok(PathBuf::from(cache_home).join("standin"));
    }
    let home = env::var_os(environment::HOME)
        .context("HOME is not set, so there is no cache directory. Set HOME or XDG_CACHE_HOME")?;
    Ok(PathBuf::from(home).join(".cache/standin"))
}

/// Cargo's target directory.
pub(crate) fn target() -> Result<PathBuf> {
    match env::var_os(environment::CARGO_TARGET_DIR) {
        Some(folder) => Ok(PathBuf::from(folder)),
        None => Ok(root()?.join("target")),
    }
}

/// The target directory of the sample shop. It is separate because the shop is built for images with other flags.
pub(crate) fn shop_target() -> Result<PathBuf> {
    Ok(target()?.join("shop"))
}

/// The target directory of programs for images. It is separate because they are linked statically.
pub(crate) fn image_target() -> Result<PathBuf> {
    Ok(target()?.join("image"))
}

/// A text file of the repository.
#[derive(Debug)]
pub(crate) struct Source {
    /// Relative to the top of the repository.
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

impl Source {
    pub(crate) fn has_extension(&self, extension: &str) -> bool {
        self.path
            .extension()
            .is_some_and(|found| found == extension)
    }
}

/// The paths of all files that are in version control or would be added to it, relative to the top.
pub(crate) fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let listing = process::output(
        Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"])
            .current_dir(root),
    )
    .context("listing the files of the repository; this command needs a git clone, not an unpacked archive")?;
    let mut paths: Vec<PathBuf> = listing.split_terminator('\0').map(PathBuf::from).collect();
    // A file that is deleted but not yet committed is still in the index.
    paths.retain(|path| root.join(path).is_file());
    paths.sort();
    Ok(paths)
}

/// All text files among `paths`. What is not UTF-8 is not text.
pub(crate) fn sources(root: &Path, paths: &[PathBuf]) -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    for path in paths {
        let bytes =
            fs::read(root.join(path)).with_context(|| format!("reading {}", path.display()))?;
        if let Ok(text) = String::from_utf8(bytes) {
            sources.push(Source {
                path: path.clone(),
                text,
            });
        }
    }
    Ok(sources)
}
