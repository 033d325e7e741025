//! Directories without FUSE: local copies with the same names and file types, which can only be listed.
//!
//! A copy is needed as long as its descriptor is open. The descriptor holds a file lock, which the kernel releases with
//! the last duplicate of the descriptor; a copy that is no longer locked is removed. All copies are in one temporary
//! folder of the session.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};

use interceptor::Errno;
use parking_lot::Mutex;
use protocol::rpc::Entry;
use rustix::fs::{FlockOperation, flock};

use crate::files::errno_of;
use crate::temporary::TemporaryFolder;

/// The temporary folder is created when the first directory is opened.
#[derive(Debug, Default)]
pub(super) struct DirectoryCopies(Mutex<Option<CopyFolder>>);

#[derive(Debug)]
struct CopyFolder {
    folder: TemporaryFolder,
    open: Vec<PathBuf>,
    count: u64,
}

impl DirectoryCopies {
    pub(super) fn open(&self, entries: &[Entry]) -> Result<OwnedFd, Errno> {
        let mut copies = self.0.lock();
        if copies.is_none() {
            *copies = Some(CopyFolder::new().map_err(|error| errno_of(&error))?);
        }
        let copies = copies.as_mut().ok_or(Errno::EIO)?;
        copies.open(entries).map_err(|error| errno_of(&error))
    }

    /// Removes the copies whose descriptors are closed.
    pub(super) fn remove_closed(&self) {
        let mut copies = self.0.lock();
        if let Some(copies) = copies.as_mut() {
            copies.remove_closed();
        }
    }
}

impl CopyFolder {
    fn new() -> io::Result<Self> {
        Ok(Self {
            folder: TemporaryFolder::new()?,
            open: Vec::new(),
            count: 0,
        })
    }

    fn open(&mut self, entries: &[Entry]) -> io::Result<OwnedFd> {
        self.remove_closed();
        self.count += 1;
        let folder = self.folder.path().join(self.count.to_string());
        let opened = fill(&folder, entries).and_then(|()| {
            let opened = open_folder(&folder)?;
            flock(&opened, FlockOperation::NonBlockingLockShared)?;
            Ok(opened)
        });
        match &opened {
            Ok(_) => self.open.push(folder),
            Err(_) => remove(&folder),
        }
        opened
    }

    fn remove_closed(&mut self) {
        self.open.retain(|folder| {
            let is_open = open_folder(folder).is_ok_and(|own| {
                flock(&own, FlockOperation::NonBlockingLockExclusive)
                    == Err(rustix::io::Errno::WOULDBLOCK)
            });
            if !is_open {
                remove(folder);
            }
            is_open
        });
    }
}

fn open_folder(folder: &Path) -> io::Result<OwnedFd> {
    let mut options = File::options();
    options.read(true).custom_flags(libc::O_DIRECTORY);
    options.open(folder).map(OwnedFd::from)
}

fn remove(folder: &Path) {
    if let Err(error) = fs::remove_dir_all(folder) {
        tracing::debug!(%error, "directory copy not removed before the end of the session");
    }
}

fn fill(folder: &Path, entries: &[Entry]) -> io::Result<()> {
    fs::create_dir(folder)?;
    for entry in entries {
        // Such a name would be created outside of the copy.
        if matches!(&*entry.name, b"" | b"." | b"..") || entry.name.contains(&b'/') {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let path = folder.join(OsStr::from_bytes(&entry.name));
        let created = match entry.kind & libc::S_IFMT {
            libc::S_IFDIR => fs::create_dir(&path),
            libc::S_IFLNK => symlink("target", &path),
            _ => File::create_new(&path).map(drop),
        };
        match created {
            // The listing of a directory that changes meanwhile may contain a name twice.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            created => created?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &[u8], kind: u32) -> Entry {
        Entry {
            name: bytes::Bytes::copy_from_slice(name),
            kind,
            ..Entry::default()
        }
    }

    fn parent_path(copies: &DirectoryCopies) -> PathBuf {
        let copies = copies.0.lock();
        copies.as_ref().unwrap().folder.path().to_path_buf()
    }

    #[test]
    fn entries_are_listed_and_the_copy_is_removed_after_close() {
        let copies = DirectoryCopies::default();
        let entries = [
            entry(b"file", libc::S_IFREG),
            entry(b"folder", libc::S_IFDIR),
            entry(b"link", libc::S_IFLNK),
            entry(b"not \xff utf-8", libc::S_IFREG),
        ];
        let opened = copies.open(&entries).unwrap();
        let mut listed: Vec<_> = rustix::fs::Dir::read_from(&opened)
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| (entry.file_name().to_bytes().to_vec(), entry.file_type()))
            .filter(|(name, _)| !name.starts_with(b"."))
            .collect();
        listed.sort_by(|left, right| left.0.cmp(&right.0));
        let expected = [
            (b"file".to_vec(), rustix::fs::FileType::RegularFile),
            (b"folder".to_vec(), rustix::fs::FileType::Directory),
            (b"link".to_vec(), rustix::fs::FileType::Symlink),
            (
                b"not \xff utf-8".to_vec(),
                rustix::fs::FileType::RegularFile,
            ),
        ];
        assert_eq!(listed, expected);
        copies.remove_closed();
        let path = parent_path(&copies);
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
        drop(opened);
        copies.remove_closed();
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
        drop(copies);
        assert!(!path.exists());
    }

    #[test]
    fn names_that_leave_the_copy_are_rejected() {
        let outside = tempfile::tempdir().unwrap();
        let absolute = outside.path().join("made").into_os_string();
        let names = [absolute.as_bytes(), b"../made", b"..", b".", b"", b"a/b"];
        for name in names {
            let copies = DirectoryCopies::default();
            let opened = copies.open(&[entry(name, libc::S_IFREG)]);
            assert!(opened.is_err(), "{}", name.escape_ascii());
            assert!(fs::read_dir(parent_path(&copies)).unwrap().next().is_none());
        }
        assert!(fs::read_dir(outside.path()).unwrap().next().is_none());
        // The same name twice is accepted.
        let twice = [entry(b"a", libc::S_IFREG), entry(b"a", libc::S_IFREG)];
        assert!(DirectoryCopies::default().open(&twice).is_ok());
    }
}
