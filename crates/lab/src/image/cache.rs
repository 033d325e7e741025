//! A folder of things that are expensive to make, each under a name that says everything it was made from.
//!
//! A name that exists is complete: things are made beside their place and renamed into it. Whoever makes one holds a
//! lock, which the kernel releases when the process dies, so two processes never make the same thing twice and the
//! remains of a killed one are known to be nobody's.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::ImageError;

#[derive(Debug, Clone)]
pub struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// The folder is made when it is first needed.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
        }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The file or folder called `name` below `section`. If it is not there yet, `make` is asked to create it at the
    /// path it is given, where nothing is yet.
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
            // The next attempt removes what remains if this cannot.
            let _ = remove(&unfinished);
        })?;
        fs::rename(&unfinished, &entry).map_err(ImageError::file("rename", &unfinished))?;
        Ok(entry)
    }

    /// A folder for one kind of thing, which exists.
    pub(crate) fn section(&self, section: &str) -> Result<PathBuf, ImageError> {
        let folder = self.folder.join(section);
        fs::create_dir_all(&folder).map_err(ImageError::file("create", &folder))?;
        Ok(folder)
    }
}

/// Waits for the lock, which lasts until the returned file is dropped. The lock file itself stays: removing it would
/// let one process lock the removed file while another locks its successor.
fn lock(path: &Path) -> Result<File, ImageError> {
    let file = File::create(path).map_err(ImageError::file("create", path))?;
    file.lock().map_err(ImageError::file("lock", path))?;
    Ok(file)
}

/// Removes a file or a folder with all that is in it; nothing being there is fine.
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
    fn makes_an_entry_once_and_ignores_the_remains_of_a_killed_build() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path());
        let remains = cache.section("roots").unwrap().join("one.unfinished");
        fs::create_dir(&remains).unwrap();
        fs::write(remains.join("half"), "half").unwrap();

        let made = cache
            .entry("roots", "one", |path| {
                assert!(!path.exists());
                fs::create_dir(path).map_err(ImageError::file("create", path))
            })
            .unwrap();
        assert!(made.is_dir() && !made.join("half").exists());

        let again = cache.entry("roots", "one", |_| panic!("it is there already"));
        assert_eq!(again.unwrap(), made);
    }

    #[test]
    fn a_failed_build_leaves_nothing_that_is_used() {
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
