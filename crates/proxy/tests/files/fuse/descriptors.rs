//! Descriptors apart from their content: attributes, names, and files that cannot be opened.

use std::fs::{File, Permissions};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use interceptor::Errno;
use rustix::fs::{FallocateFlags, fallocate};

use super::{read_all, test_env};

#[test]
#[ignore = "needs root"]
fn metadata_of_a_descriptor_matches_the_target_and_the_path() {
    let env = test_env();
    env.write("f", "12345");
    let at_target = std::fs::metadata(env.path("f")).unwrap();
    let file = env.open("f", libc::O_RDONLY).unwrap();
    let local = file.metadata().unwrap();
    let facts = |metadata: &std::fs::Metadata| {
        (
            (metadata.mode(), metadata.size(), metadata.ino()),
            (metadata.uid(), metadata.gid(), metadata.nlink()),
            (metadata.mtime(), metadata.mtime_nsec()),
            (metadata.ctime(), metadata.ctime_nsec()),
            (metadata.blocks(), metadata.blksize()),
        )
    };
    assert_eq!(facts(&local), facts(&at_target));
    let named = env.files().metadata(&env.path("f"), true).unwrap();
    assert_eq!((named.device, named.inode), (local.dev(), local.ino()));
}

#[test]
#[ignore = "needs root"]
fn attributes_are_changed_through_a_descriptor() {
    let env = test_env();
    env.write("f", "0123456789");
    let file = env.open("f", libc::O_RDWR).unwrap();
    let at_target = || std::fs::metadata(env.path("f")).unwrap();
    file.set_permissions(Permissions::from_mode(0o600)).unwrap();
    assert_eq!(at_target().mode() & 0o7777, 0o600);
    file.set_len(4).unwrap();
    assert_eq!((at_target().len(), file.metadata().unwrap().len()), (4, 4));
    std::os::unix::fs::fchown(&file, Some(12), Some(34)).unwrap();
    assert_eq!((at_target().uid(), at_target().gid()), (12, 34));
    let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000, 7);
    file.set_modified(time).unwrap();
    assert_eq!(
        (at_target().mtime(), at_target().mtime_nsec()),
        (1_000_000, 7)
    );
    assert_eq!(file.metadata().unwrap().mtime(), 1_000_000);
    fallocate(&file, FallocateFlags::empty(), 0, 8192).unwrap();
    assert_eq!(at_target().len(), 8192);
    file.sync_all().unwrap();
    file.sync_data().unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::fsetxattr(&file, "user.color", b"red", flags).unwrap();
    let mut value = [0; 16];
    let length = rustix::fs::getxattr(env.path("f"), "user.color", &mut value).unwrap();
    assert_eq!(&value[..length], b"red");
    let length = rustix::fs::fgetxattr(&file, "user.color", &mut value).unwrap();
    assert_eq!(&value[..length], b"red");
    rustix::fs::fremovexattr(&file, "user.color").unwrap();
    let gone = rustix::fs::fgetxattr(&file, "user.color", &mut value);
    assert_eq!(gone, Err(rustix::io::Errno::NODATA));
    assert!(rustix::fs::fstatvfs(&file).unwrap().f_blocks > 0);
}

#[test]
#[ignore = "needs root"]
fn changes_by_path_are_visible_in_open_descriptors() {
    let env = test_env();
    env.write("f", "0123456789");
    let file = env.open("f", libc::O_RDWR).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 10);
    env.files().set_length(&env.path("f"), 3).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 3);
    env.files().set_mode(&env.path("f"), 0o400, true).unwrap();
    assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o400);
}

#[test]
#[ignore = "needs root"]
fn unlinked_files_stay_open() {
    let env = test_env();
    env.write("f", "old");
    let mut removed = env.open("f", libc::O_RDWR).unwrap();
    env.files().remove_file(&env.path("f")).unwrap();
    assert_eq!(read_all(&mut removed), "old");
    removed.write_all(b"er").unwrap();
    removed.rewind().unwrap();
    assert_eq!(read_all(&mut removed), "older");
    assert_eq!(removed.metadata().unwrap().nlink(), 0);

    env.write("f", "first");
    env.write("g", "second");
    let mut open = env.open("f", libc::O_RDONLY).unwrap();
    env.files()
        .rename(&env.path("g"), &env.path("f"), 0)
        .unwrap();
    assert_eq!(read_all(&mut open), "first");
    let mut now = env.open("f", libc::O_RDONLY).unwrap();
    assert_eq!(read_all(&mut now), "second");

    let flags = libc::O_RDWR | libc::O_TMPFILE;
    let unnamed = env.open_with_mode("", flags, 0o600);
    let mut unnamed = unnamed.unwrap();
    unnamed.write_all(b"nowhere").unwrap();
    unnamed.seek(SeekFrom::Start(2)).unwrap();
    assert_eq!(read_all(&mut unnamed), "where");
}

#[test]
#[ignore = "needs root"]
fn special_and_missing_files_are_refused() {
    let env = test_env();
    let check = |name: &str, flags: i32, expected: Errno| {
        assert_eq!(env.open(name, flags).unwrap_err(), expected, "{name}");
    };
    let path = env.path("pipe");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
    std::os::unix::fs::symlink("pipe", env.path("link")).unwrap();
    check("pipe", libc::O_RDONLY, Errno::EOPNOTSUPP);
    check("link", libc::O_RDONLY | libc::O_NOFOLLOW, Errno::ELOOP);
    check("missing", libc::O_RDONLY, Errno::ENOENT);
    check("", libc::O_WRONLY, Errno::EISDIR);
}

#[test]
#[ignore = "needs root"]
fn a_descriptor_is_reopened_through_proc() {
    use std::os::fd::AsRawFd as _;
    let env = test_env();
    env.write("f", "again");
    let mut file = env.open("f", libc::O_RDONLY).unwrap();
    assert_eq!(read_all(&mut file), "again");
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let mut again = File::open(&path).unwrap();
    drop(file);
    assert_eq!(read_all(&mut again), "again");
    assert!(File::options().write(true).open(&path).is_err());
}

#[test]
#[ignore = "needs root"]
fn the_mount_is_not_visible() {
    let env = test_env();
    env.write("f", "");
    let _file = env.open("f", libc::O_RDONLY).unwrap();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains("standin"), "{mounts}");
}
