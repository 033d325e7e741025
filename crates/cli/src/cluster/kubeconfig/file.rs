//! Changes a kubeconfig like kubectl, but atomically: a program that reads it meanwhile sees the old text or the new one.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown,
};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

/// Of a new file: it may have tokens later.
const MODE: u32 = 0o600;

/// The lock file that kubectl uses. It is removed at the end.
#[derive(Debug)]
struct Lock(PathBuf);

/// Replaces the text of a file, which need not exist. Its mode and its owner stay.
pub(super) fn update(path: &Path, change: impl FnOnce(&str) -> Result<String>) -> Result<()> {
    let path = &target(path)?;
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder {
        let mut builder = DirBuilder::new();
        let created = builder.recursive(true).mode(0o750).create(folder);
        created.with_context(|| folder.display().to_string())?;
    }
    let _lock = Lock::acquire(path)?;
    let before = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        before => before.with_context(|| format!("cannot read {}", path.display()))?,
    };
    let after = change(&before).with_context(|| path.display().to_string())?;
    if after == before {
        return Ok(());
    }
    replace(path, &after).with_context(|| format!("cannot write {}", path.display()))
}

/// The file itself: a link to it stays a link.
fn target(path: &Path) -> Result<PathBuf> {
    match fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(path.to_owned()),
        target => target.with_context(|| path.display().to_string()),
    }
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    let temporary = beside(path, &format!(".{}.tmp", std::process::id()));
    let written = write(&temporary, text, path).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

fn write(temporary: &Path, text: &str, original: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(MODE)
        .open(temporary)?;
    if let Ok(metadata) = fs::metadata(original) {
        keep_access(&file, &metadata)?;
    }
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn keep_access(file: &File, original: &fs::Metadata) -> io::Result<()> {
    let own = file.metadata()?;
    if (own.uid(), own.gid()) != (original.uid(), original.gid()) {
        fchown(file, Some(original.uid()), Some(original.gid()))?;
    }
    file.set_permissions(Permissions::from_mode(original.mode() & 0o7777))
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

impl Lock {
    fn acquire(path: &Path) -> Result<Self> {
        let lock = beside(path, ".lock");
        match OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&lock)
        {
            Ok(_) => Ok(Self(lock)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => bail!(
                "another program changes {}; try again. If none does, delete {}",
                path.display(),
                lock.display()
            ),
            Err(error) => Err(error).with_context(|| lock.display().to_string()),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn append(path: &Path) -> Result<()> {
        update(path, |text| Ok(format!("{text}x")))
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = entries.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn files_are_replaced_with_their_mode_and_through_links() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("new/config");
        append(&file).unwrap();
        assert_eq!(mode(&file), 0o600);
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        let link = folder.path().join("link");
        symlink("new/config", &link).unwrap();
        append(&link).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "xx");
        assert_eq!(mode(&file), 0o640);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(names(&folder.path().join("new")), ["config"]);
    }

    #[test]
    fn a_failed_change_and_a_lock_leave_the_file_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config");
        append(&file).unwrap();
        update(&file, |_| bail!("no")).unwrap_err();
        let lock = folder.path().join("config.lock");
        fs::write(&lock, "").unwrap();
        let error = append(&file).unwrap_err().to_string();
        assert!(error.contains("config.lock"), "{error}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "x");
        assert_eq!(names(folder.path()), ["config", "config.lock"]);
    }
}
