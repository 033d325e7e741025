//! Descriptors without FUSE.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::ffi::OsStringExt as _;

use interceptor::Errno;
use proxy::FilesThrough;

use crate::world::{World, wait_until};

fn world() -> World {
    World::new(FilesThrough::Memory)
}

fn read_all(file: &mut File) -> Vec<u8> {
    let mut content = Vec::new();
    file.read_to_end(&mut content).unwrap();
    content
}

const CREATE: i32 = libc::O_WRONLY | libc::O_CREAT;

#[test]
fn files_are_read_whole_and_read_only() {
    let world = world();
    world.write("small", "only at the target\n");
    let large: Vec<u8> = (0..3_000_001_u32).map(|number| number as u8).collect();
    world.write("large", &large);
    let mut small = world.open("small", libc::O_RDONLY).unwrap();
    assert_eq!(read_all(&mut small), b"only at the target\n");
    assert!(small.write_all(b"x").is_err());
    let mut file = world.open("large", libc::O_RDONLY).unwrap();
    assert!(read_all(&mut file) == large);
}

#[test]
fn what_is_too_large_is_refused_and_not_moved() {
    let world = world();
    let large = File::create(world.path("large")).unwrap();
    large.set_len(2 << 30).unwrap();
    let before = world.received();
    let refused = world.open("large", libc::O_RDONLY).unwrap_err();
    assert_eq!(refused, Errno::EFBIG);
    assert!(world.received() - before < 1 << 20);
}

#[test]
fn a_new_file_is_at_the_target_when_it_is_closed() {
    let world = world();
    let mut file = world.open_with_mode("new", CREATE, 0o600).unwrap();
    let content = vec![b'x'; 3_000_000];
    file.write_all(&content).unwrap();
    let mut copy = file.try_clone().unwrap();
    drop(file);
    copy.write_all(b"end").unwrap();
    drop(copy);
    // Whoever asks after the close finds it done.
    let metadata = world.files().metadata(&world.path("new"), true).unwrap();
    assert_eq!(metadata.size, 3_000_003);
    let there = std::fs::read(world.path("new")).unwrap();
    assert!(there.starts_with(&content) && there.ends_with(b"xend"));
}

#[test]
fn it_also_arrives_when_nobody_asks() {
    let world = world();
    let mut file = world.open_with_mode("new", CREATE, 0o600).unwrap();
    file.write_all(b"content").unwrap();
    drop(file);
    wait_until("it is written back", || world.read("new") == "content");
}

#[test]
fn the_last_of_several_writers_counts() {
    use std::os::fd::AsRawFd as _;
    let world = world();
    let mut first = world.open_with_mode("new", CREATE, 0o600).unwrap();
    let path = format!("/proc/self/fd/{}", first.as_raw_fd());
    let mut second = File::options().append(true).open(path).unwrap();
    first.write_all(b"first ").unwrap();
    drop(first);
    let size = || {
        let metadata = world.files().metadata(&world.path("new"), true);
        metadata.unwrap().size
    };
    assert_eq!(size(), 6);
    second.write_all(b"second").unwrap();
    drop(second);
    wait_until("the second is there", || {
        world.read("new") == "first second"
    });
}

#[test]
fn an_emptied_file_is_written_and_a_full_one_refused() {
    let world = world();
    world.write("f", "long content");
    for flags in [
        libc::O_WRONLY,
        libc::O_RDWR,
        libc::O_WRONLY | libc::O_APPEND,
    ] {
        assert_eq!(world.open("f", flags).unwrap_err(), Errno::EOPNOTSUPP);
    }
    assert_eq!(world.read("f"), "long content");
    let mut file = world.open("f", libc::O_RDWR | libc::O_TRUNC).unwrap();
    file.write_all(b"new").unwrap();
    file.rewind().unwrap();
    assert_eq!(read_all(&mut file), b"new");
    drop(file);
    let mut again = world.open("f", libc::O_RDONLY).unwrap();
    assert_eq!(read_all(&mut again), b"new");
}

#[test]
fn what_is_appended_goes_behind_what_others_appended() {
    let world = world();
    let flags = CREATE | libc::O_APPEND;
    let mut file = world.open_with_mode("log", flags, 0o600).unwrap();
    file.write_all(b"ours\n").unwrap();
    std::fs::write(world.path("log"), "theirs\n").unwrap();
    drop(file);
    wait_until("it is appended", || world.read("log") == "theirs\nours\n");
}

#[test]
fn a_failure_to_write_back_is_no_hang() {
    let world = world();
    let mut file = world.open_with_mode("d/new", CREATE, 0o600).unwrap_err();
    assert_eq!(file, Errno::ENOENT);
    std::fs::create_dir(world.path("d")).unwrap();
    let mut opened = world.open_with_mode("d/new", CREATE, 0o600).unwrap();
    opened.write_all(b"x").unwrap();
    drop(opened);
    file = world.open("d/missing", libc::O_RDONLY).unwrap_err();
    assert_eq!(file, Errno::ENOENT);
    assert_eq!(world.read("d/new"), "x");
}

#[test]
fn directories_are_listed() {
    let world = world();
    std::fs::create_dir(world.path("many")).unwrap();
    let mut expected: BTreeSet<OsString> = (0..1000)
        .map(|number| OsString::from(format!("file {number}")))
        .collect();
    expected.insert(OsString::from_vec(b"not \xff utf-8".to_vec()));
    for name in &expected {
        File::create(world.path("many").join(name)).unwrap();
    }
    let flags = libc::O_RDONLY | libc::O_DIRECTORY;
    let directory = world.open("many", flags).unwrap();
    let names: BTreeSet<OsString> = rustix::fs::Dir::read_from(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_bytes().to_vec())
        .filter(|name| name != b"." && name != b"..")
        .map(OsString::from_vec)
        .collect();
    assert!(names == expected);
}
