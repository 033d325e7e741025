//! A folder of build results, each under a name that identifies everything it was built from.
//!
//! An entry that exists is complete: it is built under a temporary name and renamed. The builder holds a lock, which the
//! kernel releases when the process exits. So two processes never build the same entry twice, and a partial entry without
//! a lock was left by a process that was killed.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::ImageError;

#[derive(Debug, Clone)]
pub struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// The folder is created when it is first needed.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
        }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The file or folder `name` below `section`. If it does not exist, `make` creates it at the path that it is given,
    /// which does not exist yet.
    pub fn entry(
        &self,
        section: &str,
        name: &str,
        make: impl FnOnce(&Path) -> Result<(), ImageError>,
    ) -> Result<PathBuf, ImageError> {
        let section = self.section(section)?;
        let entry = section.join(name);
        if entry.exists() {
            return Ok(entry);
        }
        let _lock = lock(&section.join(format!("{name}.lock")))?;
        if entry.exists() {
            return Ok(entry);
        }
        let unfinished = section.join(format!("{name}.unfinished"));
        remove(&unfinished)?;
        make(&unfinished).inspect_err(|_| {
            // If this fails, the next attempt removes the partial entry.
            let _ = remove(&unfinished);
        })?;
        fs::rename(&unfinished, &entry).map_err(ImageError::file("rename", &unfinished))?;
        Ok(entry)
    }

    /// The folder of one kind of entries, which is created if necessary.
    pub(crate) fn section(&self, section: &str) -> Result<PathBuf, ImageError> {
        let folder = self.folder.join(section);
        fs::create_dir_all(&folder).map_err(ImageError::file("create", &folder))?;
        Ok(folder)
    }
}

/// Waits for the lock, which is released when the returned file is dropped. The lock file is not removed: otherwise one
/// process could lock the removed file while another locks its successor.
fn lock(path: &Path) -> Result<File, ImageError> {
    let file = File::create(path).map_err(ImageError::file("create", path))?;
    file.lock().map_err(ImageError::file("lock", path))?;
    Ok(file)
}

/// Removes a file or a folder with its contents. It is no error if the path does not exist.
fn remove(path: &Path) -> Result<(), ImageError> {
    let removed = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.map_err(ImageError::file("remove", path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_built_once_and_a_partial_entry_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path());
        let partial = cache.section("roots").unwrap().join("one.unfinished");
        fs::create_dir(&partial).unwrap();
        fs::write(partial.join("half"), "half").unwrap();

        let made = cache
            .entry("roots", "one", |path| {
                assert!(!path.exists());
                fs::create_dir(path).map_err(ImageError::file("create", path))
            })
            .unwrap();
        assert!(made.is_dir() && !made.join("half").exists());

        let again = cache.entry("roots", "one", |_| panic!("the entry exists already"));
        assert_eq!(again.unwrap(), made);
    }

    #[test]
    fn a_failed_build_leaves_no_entry() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path());
        let failed = cache.entry("archives", "two", |path| {
            fs::write(path, "half").unwrap();
            Err(ImageError::Reference {
                reference: String::new(),
            })
        });
        assert!(failed.is_err());
        let made = cache.entry("archives", "two", |path| {
            assert!(!path.exists());
            fs::write(path, "whole").map_err(ImageError::file("write", path))
        });
        assert_eq!(fs::read(made.unwrap()).unwrap(), b"whole");
    }
}
