//! Directories without FUSE: folders with the same names and kinds, to be listed and no more.
//!
//! Such a folder is needed as long as its descriptor is open: the descriptor holds a lock, which the kernel takes away
//! with the last of its copies, and where nobody holds it the folder goes. All of them are in one folder of the session.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use interceptor::Errno;
use protocol::rpc::Entry;
use rustix::fs::{FlockOperation, flock};

use crate::files::errno_of;
use crate::temporary::TemporaryFolder;

/// Nothing is made before the first directory is opened.
#[derive(Debug, Default)]
pub(super) struct Folders(Mutex<Option<Session>>);

#[derive(Debug)]
struct Session {
    folder: TemporaryFolder,
    open: Vec<PathBuf>,
    count: u64,
}

impl Folders {
    pub(super) fn open(&self, entries: &[Entry]) -> Result<OwnedFd, Errno> {
        let mut session = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if session.is_none() {
            *session = Some(Session::new().map_err(|error| errno_of(&error))?);
        }
        let session = session.as_mut().ok_or(Errno::EIO)?;
        session.open(entries).map_err(|error| errno_of(&error))
    }

    /// Removes what nobody lists any more.
    pub(super) fn settle(&self) {
        let mut session = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(session) = session.as_mut() {
            session.remove_closed();
        }
    }
}

impl Session {
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
        tracing::debug!(%error, "a folder that nobody lists any more stays until the end");
    }
}

fn fill(folder: &Path, entries: &[Entry]) -> io::Result<()> {
    fs::create_dir(folder)?;
    for entry in entries {
        // A name that leads elsewhere would be made elsewhere on this machine.
        if matches!(&*entry.name, b"" | b"." | b"..") || entry.name.contains(&b'/') {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let place = folder.join(OsStr::from_bytes(&entry.name));
        let made = match entry.kind & libc::S_IFMT {
            libc::S_IFDIR => fs::create_dir(&place),
            libc::S_IFLNK => symlink("target", &place),
            _ => File::create_new(&place).map(drop),
        };
        match made {
            // A directory that changes while it is listed may say a name twice.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made?,
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

    fn place(folders: &Folders) -> PathBuf {
        let session = folders.0.lock().unwrap();
        session.as_ref().unwrap().folder.path().to_path_buf()
    }

    #[test]
    fn names_are_listed_and_the_folder_goes_with_its_descriptor() {
        let folders = Folders::default();
        let entries = [
            entry(b"file", libc::S_IFREG),
            entry(b"folder", libc::S_IFDIR),
            entry(b"link", libc::S_IFLNK),
            entry(b"not \xff utf-8", libc::S_IFREG),
        ];
        let opened = folders.open(&entries).unwrap();
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
        folders.settle();
        let place = place(&folders);
        assert_eq!(fs::read_dir(&place).unwrap().count(), 1);
        drop(opened);
        folders.settle();
        assert_eq!(fs::read_dir(&place).unwrap().count(), 0);
        drop(folders);
        assert!(!place.exists());
    }

    #[test]
    fn no_name_leads_out_of_the_folder() {
        let outside = tempfile::tempdir().unwrap();
        let absolute = outside.path().join("made").into_os_string();
        let names = [absolute.as_bytes(), b"../made", b"..", b".", b"", b"a/b"];
        for name in names {
            let folders = Folders::default();
            let opened = folders.open(&[entry(name, libc::S_IFREG)]);
            assert!(opened.is_err(), "{}", name.escape_ascii());
            assert!(fs::read_dir(place(&folders)).unwrap().next().is_none());
        }
        assert!(fs::read_dir(outside.path()).unwrap().next().is_none());
        // The same name twice is no harm.
        let twice = [entry(b"a", libc::S_IFREG), entry(b"a", libc::S_IFREG)];
        assert!(Folders::default().open(&twice).is_ok());
    }
}
