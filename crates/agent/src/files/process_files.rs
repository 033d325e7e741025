//! Files of procfs that show the memory or the environment of a process.
//!
//! They are recognized by the file system of an open descriptor and by their own name, never by the path that led to them: the
//! target may have procfs at several places, and a link or a mount can give a file any path.

use std::os::fd::{AsFd, AsRawFd as _};

use rustix::fs::{
    AtFlags, CWD, FileType, OFlags, StatxAttributes, StatxFlags, fstatfs, readlinkat, statx,
};
use rustix::io::Errno;

/// The magic number of procfs in `statfs`.
const PROCFS: i64 = 0x9fa0;
/// Files that no session may open: with the memory of a process, one gets its secrets and changes what it does.
const MEMORY: [&[u8]; 2] = [b"mem", b"kcore"];
/// Files that show the environment of a process, or where it is in the memory.
const ENVIRONMENT: [&[u8]; 9] = [
    b"environ",
    b"auxv",
    b"maps",
    b"smaps",
    b"smaps_rollup",
    b"numa_maps",
    b"pagemap",
    b"stack",
    b"syscall",
];
/// What the kernel appends to the path of a file that does not exist any more.
const DELETED: &[u8] = b" (deleted)";

/// Fails if a session must not have this descriptor, which was opened with these flags.
pub(super) fn allow(file: impl AsFd, flags: OFlags, hides_environments: bool) -> Result<(), Errno> {
    let is_opened = !flags.contains(OFlags::PATH);
    if !is_opened && !hides_environments {
        return Ok(());
    }
    let attributes = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(&file, c"", attributes, StatxFlags::BASIC_STATS)?;
    let is_regular = FileType::from_raw_mode(found.stx_mode.into()) == FileType::RegularFile;
    // Files of procfs have no blocks and no real device. For others, the file system may be on a server that does not respond.
    if !is_regular || found.stx_blocks > 0 || found.stx_dev_major > 0 {
        return Ok(());
    }
    if fstatfs(&file)?.f_type != PROCFS {
        return Ok(());
    }
    // The path of a file that is mounted somewhere else does not have its name.
    let is_renamed = found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
    judge(&name_of(&file)?, is_renamed, is_opened, hides_environments)
}

fn judge(
    name: &[u8],
    is_renamed: bool,
    is_opened: bool,
    hides_environments: bool,
) -> Result<(), Errno> {
    if hides_environments && ENVIRONMENT.contains(&name) {
        return Err(Errno::NOENT);
    }
    if is_opened && (is_renamed || MEMORY.contains(&name)) {
        return Err(Errno::ACCESS);
    }
    Ok(())
}

/// The last component of the path of a descriptor.
fn name_of(file: &impl AsFd) -> Result<Vec<u8>, Errno> {
    let link = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let path = readlinkat(CWD, link, Vec::new())?.into_bytes();
    let name = without_deleted(&path).rsplit(|byte| *byte == b'/').next();
    Ok(name.unwrap_or_default().to_vec())
}

/// The path of a descriptor, as it was before the file was removed.
pub(super) fn without_deleted(path: &[u8]) -> &[u8] {
    path.strip_suffix(DELETED).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn files_are_judged_by_their_name_in_procfs() {
        let check = |name: &str, is_renamed, is_opened, hides_environments, expected| {
            let found = judge(name.as_bytes(), is_renamed, is_opened, hides_environments);
            assert_eq!(found, expected, "{name}");
        };
        check("mem", false, true, false, Err(Errno::ACCESS));
        check("mem", false, false, true, Ok(()));
        check("environ", false, true, false, Ok(()));
        check("environ", false, true, true, Err(Errno::NOENT));
        check("environ", false, false, true, Err(Errno::NOENT));
        check("status", false, true, true, Ok(()));
        check("status", true, true, false, Err(Errno::ACCESS));
    }

    #[test]
    fn only_files_of_procfs_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mem");
        std::fs::write(&path, "").unwrap();
        let allowed = |path: &str| allow(File::open(path).unwrap(), OFlags::RDONLY, true);
        assert_eq!(allowed(path.to_str().unwrap()), Ok(()));
        assert_eq!(allowed("/proc/self/status"), Ok(()));
        assert_eq!(allowed("/proc/self/mem"), Err(Errno::ACCESS));
        assert_eq!(allowed("/proc/thread-self/maps"), Err(Errno::NOENT));
        assert_eq!(allowed("/proc/self/task/../environ"), Err(Errno::NOENT));
    }
}
