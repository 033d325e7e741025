//! What a descriptor is, beside its content: its properties, its name, and what cannot be one.

use std::fs::{File, Permissions};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use interceptor::Errno;
use rustix::fs::{FallocateFlags, fallocate};

use super::{read_all, world};

#[test]
#[ignore = "needs root"]
fn metadata_of_a_descriptor_is_the_targets_and_agrees_with_its_name() {
    let world = world();
    world.write("f", "12345");
    let there = std::fs::metadata(world.path("f")).unwrap();
    let file = world.open("f", libc::O_RDONLY).unwrap();
    let here = file.metadata().unwrap();
    let facts = |metadata: &std::fs::Metadata| {
        (
            (metadata.mode(), metadata.size(), metadata.ino()),
            (metadata.uid(), metadata.gid(), metadata.nlink()),
            (metadata.mtime(), metadata.mtime_nsec()),
            (metadata.ctime(), metadata.ctime_nsec()),
            (metadata.blocks(), metadata.blksize()),
        )
    };
    assert_eq!(facts(&here), facts(&there));
    let named = world.files().metadata(&world.path("f"), true).unwrap();
    assert_eq!((named.device, named.inode), (here.dev(), here.ino()));
}

#[test]
#[ignore = "needs root"]
fn properties_are_changed_through_a_descriptor() {
    let world = world();
    world.write("f", "0123456789");
    let file = world.open("f", libc::O_RDWR).unwrap();
    let there = || std::fs::metadata(world.path("f")).unwrap();
    file.set_permissions(Permissions::from_mode(0o600)).unwrap();
    assert_eq!(there().mode() & 0o7777, 0o600);
    file.set_len(4).unwrap();
    assert_eq!((there().len(), file.metadata().unwrap().len()), (4, 4));
    std::os::unix::fs::fchown(&file, Some(12), Some(34)).unwrap();
    assert_eq!((there().uid(), there().gid()), (12, 34));
    let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000, 7);
    file.set_modified(time).unwrap();
    assert_eq!((there().mtime(), there().mtime_nsec()), (1_000_000, 7));
    assert_eq!(file.metadata().unwrap().mtime(), 1_000_000);
    fallocate(&file, FallocateFlags::empty(), 0, 8192).unwrap();
    assert_eq!(there().len(), 8192);
    file.sync_all().unwrap();
    file.sync_data().unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::fsetxattr(&file, "user.color", b"red", flags).unwrap();
    let mut value = [0; 16];
    let length = rustix::fs::getxattr(world.path("f"), "user.color", &mut value).unwrap();
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
fn what_is_changed_by_name_shows_in_open_descriptors() {
    let world = world();
    world.write("f", "0123456789");
    let file = world.open("f", libc::O_RDWR).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 10);
    world.files().set_length(&world.path("f"), 3).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 3);
    world
        .files()
        .set_mode(&world.path("f"), 0o400, true)
        .unwrap();
    assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o400);
}

#[test]
#[ignore = "needs root"]
fn a_file_without_a_name_stays_open() {
    let world = world();
    world.write("f", "old");
    let mut removed = world.open("f", libc::O_RDWR).unwrap();
    world.files().remove_file(&world.path("f")).unwrap();
    assert_eq!(read_all(&mut removed), "old");
    removed.write_all(b"er").unwrap();
    removed.rewind().unwrap();
    assert_eq!(read_all(&mut removed), "older");
    assert_eq!(removed.metadata().unwrap().nlink(), 0);

    world.write("f", "first");
    world.write("g", "second");
    let mut open = world.open("f", libc::O_RDONLY).unwrap();
    world
        .files()
        .rename(&world.path("g"), &world.path("f"), 0)
        .unwrap();
    assert_eq!(read_all(&mut open), "first");
    let mut now = world.open("f", libc::O_RDONLY).unwrap();
    assert_eq!(read_all(&mut now), "second");

    let flags = libc::O_RDWR | libc::O_TMPFILE;
    let unnamed = world.open_with_mode("", flags, 0o600);
    let mut unnamed = unnamed.unwrap();
    unnamed.write_all(b"nowhere").unwrap();
    unnamed.seek(SeekFrom::Start(2)).unwrap();
    assert_eq!(read_all(&mut unnamed), "where");
}

#[test]
#[ignore = "needs root"]
fn what_is_no_file_is_refused() {
    let world = world();
    let check = |name: &str, flags: i32, expected: Errno| {
        assert_eq!(world.open(name, flags).unwrap_err(), expected, "{name}");
    };
    let path = world.path("pipe");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
    std::os::unix::fs::symlink("pipe", world.path("link")).unwrap();
    check("pipe", libc::O_RDONLY, Errno::EOPNOTSUPP);
    check("link", libc::O_RDONLY | libc::O_NOFOLLOW, Errno::ELOOP);
    check("missing", libc::O_RDONLY, Errno::ENOENT);
    check("", libc::O_WRONLY, Errno::EISDIR);
}

#[test]
#[ignore = "needs root"]
fn a_descriptor_is_opened_again_through_proc() {
    use std::os::fd::AsRawFd as _;
    let world = world();
    world.write("f", "again");
    let mut file = world.open("f", libc::O_RDONLY).unwrap();
    assert_eq!(read_all(&mut file), "again");
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let mut again = File::open(&path).unwrap();
    drop(file);
    assert_eq!(read_all(&mut again), "again");
    assert!(File::options().write(true).open(&path).is_err());
}

#[test]
#[ignore = "needs root"]
fn nothing_is_mounted_that_others_see() {
    let world = world();
    world.write("f", "");
    let _file = world.open("f", libc::O_RDONLY).unwrap();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains("standin"), "{mounts}");
}
