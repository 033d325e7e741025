//! Files with content of our own, which replace those of this machine and of the target.

use std::fs::{File, OpenOptions as FileOptions, Permissions};
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use interceptor::{CallResult, Errno, Metadata, Timestamp};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

/// Path and content.
///
/// - `nsswitch.conf` makes the C library query the target's nameservers itself, instead of a name service of this
///   machine.
const FILES: &[(&str, &str)] = &[("/etc/nsswitch.conf", include_str!("served/nsswitch.conf"))];

/// Whether a path is one of these files.
pub(crate) fn is_served(path: &Path) -> bool {
    FILES.iter().any(|(served, _)| Path::new(served) == path)
}

/// The files, in sealed memory.
#[derive(Debug)]
pub(crate) struct ServedFiles(Vec<(&'static Path, File)>);

impl ServedFiles {
    pub(crate) fn new() -> io::Result<Self> {
        let files = FILES.iter();
        let files = files.map(|(path, content)| Ok((Path::new(*path), in_memory(content)?)));
        files.collect::<io::Result<_>>().map(Self)
    }

    pub(crate) fn find(&self, path: &Path) -> Option<ServedFile<'_>> {
        let found = self.0.iter().find(|(served, _)| *served == path)?;
        Some(ServedFile(&found.1))
    }
}

#[derive(Debug)]
pub(crate) struct ServedFile<'f>(&'f File);

impl ServedFile<'_> {
    /// A descriptor with a position of its own.
    pub(crate) fn open(&self, flags: i32) -> CallResult<OwnedFd> {
        let creates = libc::O_CREAT | libc::O_EXCL;
        if flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0 {
            return Err(Errno::EROFS.into());
        }
        if flags & creates == creates {
            return Err(Errno::EEXIST.into());
        }
        if flags & libc::O_DIRECTORY != 0 {
            return Err(Errno::ENOTDIR.into());
        }
        let path = format!("/proc/self/fd/{}", self.0.as_raw_fd());
        let opened = FileOptions::new().read(true).open(path);
        opened
            .map(OwnedFd::from)
            .map_err(|error| super::errno_of(&error).into())
    }

    pub(crate) fn access(&self, mode: i32) -> CallResult<()> {
        if mode & libc::W_OK != 0 {
            return Err(Errno::EROFS.into());
        }
        if mode & libc::X_OK != 0 {
            return Err(Errno::EACCES.into());
        }
        Ok(())
    }

    pub(crate) fn metadata(&self) -> CallResult<Metadata> {
        let from = self.0.metadata();
        let from = from.map_err(|error| super::errno_of(&error))?;
        let timestamp = |seconds, nanoseconds: i64| Timestamp {
            seconds,
            nanoseconds: u32::try_from(nanoseconds).unwrap_or_default(),
        };
        Ok(Metadata {
            device: from.dev(),
            inode: from.ino(),
            mode: from.mode(),
            links: 1,
            user: from.uid(),
            group: from.gid(),
            special_device: 0,
            size: from.size(),
            block_size: u32::try_from(from.blksize()).unwrap_or(4096),
            blocks: from.blocks(),
            accessed: timestamp(from.atime(), from.atime_nsec()),
            modified: timestamp(from.mtime(), from.mtime_nsec()),
            changed: timestamp(from.ctime(), from.ctime_nsec()),
            born: None,
        })
    }
}

fn in_memory(content: &str) -> io::Result<File> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let mut file = File::from(memfd_create("standin", flags)?);
    file.write_all(content.as_bytes())?;
    file.set_permissions(Permissions::from_mode(0o444))?;
    let seals = SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SHRINK;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn each_open_has_its_own_position_and_writing_fails() {
        let served = ServedFiles::new().unwrap();
        let path = Path::new("/etc/nsswitch.conf");
        assert!(is_served(path));
        for _ in 0..2 {
            let file = served.find(path).unwrap().open(libc::O_RDONLY).unwrap();
            let mut content = String::new();
            File::from(file).read_to_string(&mut content).unwrap();
            assert!(content.contains("\nhosts: files dns\n"), "{content}");
        }
        let file = served.find(path).unwrap();
        assert_eq!(file.open(libc::O_RDWR).unwrap_err(), Errno::EROFS.into());
        assert_eq!(file.access(libc::W_OK), Err(Errno::EROFS.into()));
        let metadata = file.metadata().unwrap();
        assert_eq!(metadata.mode, libc::S_IFREG | 0o444);
        assert!(served.find(Path::new("/etc/hosts")).is_none());
    }
}
