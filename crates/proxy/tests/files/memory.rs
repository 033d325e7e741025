//! Descriptors without FUSE.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::ffi::OsStringExt as _;

use interceptor::Errno;
use proxy::FileBackend;

use crate::environment::{Environment, wait_until};

fn test_env() -> Environment {
    Environment::new(FileBackend::Memory)
}

fn read_all(file: &mut File) -> Vec<u8> {
    let mut content = Vec::new();
    file.read_to_end(&mut content).unwrap();
    content
}

const CREATE: i32 = libc::O_WRONLY | libc::O_CREAT;

#[test]
fn files_are_copied_whole_and_read_only() {
    let env = test_env();
    env.write("small", "only at the target\n");
    let large: Vec<u8> = (0..3_000_001_u32).map(|number| number as u8).collect();
    env.write("large", &large);
    let mut small = env.open("small", libc::O_RDONLY).unwrap();
    assert_eq!(read_all(&mut small), b"only at the target\n");
    assert!(small.write_all(b"x").is_err());
    let mut file = env.open("large", libc::O_RDONLY).unwrap();
    assert!(read_all(&mut file) == large);
}

#[test]
fn files_that_are_too_large_are_refused_without_a_transfer() {
    let env = test_env();
    let large = File::create(env.path("large")).unwrap();
    large.set_len(2 << 30).unwrap();
    let before = env.received();
    let refused = env.open("large", libc::O_RDONLY).unwrap_err();
    assert_eq!(refused, Errno::EFBIG);
    assert!(env.received() - before < 1 << 20);
}

#[test]
fn a_new_file_is_at_the_target_after_close() {
    let env = test_env();
    let mut file = env.open_with_mode("new", CREATE, 0o600).unwrap();
    let content = vec![b'x'; 3_000_000];
    file.write_all(&content).unwrap();
    let mut copy = file.try_clone().unwrap();
    drop(file);
    copy.write_all(b"end").unwrap();
    drop(copy);
    // The next call waits until the file is written back.
    let metadata = env.files().metadata(&env.path("new"), true).unwrap();
    assert_eq!(metadata.size, 3_000_003);
    let at_target = std::fs::read(env.path("new")).unwrap();
    assert!(at_target.starts_with(&content) && at_target.ends_with(b"xend"));
}

#[test]
fn files_are_written_back_in_the_background() {
    let env = test_env();
    let mut file = env.open_with_mode("new", CREATE, 0o600).unwrap();
    file.write_all(b"content").unwrap();
    drop(file);
    wait_until("it is written back", || env.read("new") == "content");
}

#[test]
fn files_are_written_back_after_each_of_several_writers() {
    use std::os::fd::AsRawFd as _;
    let env = test_env();
    let mut first = env.open_with_mode("new", CREATE, 0o600).unwrap();
    let path = format!("/proc/self/fd/{}", first.as_raw_fd());
    let mut second = File::options().append(true).open(path).unwrap();
    first.write_all(b"first ").unwrap();
    drop(first);
    let size = || {
        let metadata = env.files().metadata(&env.path("new"), true);
        metadata.unwrap().size
    };
    assert_eq!(size(), 6);
    second.write_all(b"second").unwrap();
    drop(second);
    wait_until("the second write is at the target", || {
        env.read("new") == "first second"
    });
}

#[test]
fn only_empty_files_can_be_written() {
    let env = test_env();
    env.write("f", "long content");
    for flags in [
        libc::O_WRONLY,
        libc::O_RDWR,
        libc::O_WRONLY | libc::O_APPEND,
    ] {
        assert_eq!(env.open("f", flags).unwrap_err(), Errno::EOPNOTSUPP);
    }
    assert_eq!(env.read("f"), "long content");
    let mut file = env.open("f", libc::O_RDWR | libc::O_TRUNC).unwrap();
    file.write_all(b"new").unwrap();
    file.rewind().unwrap();
    assert_eq!(read_all(&mut file), b"new");
    drop(file);
    let mut again = env.open("f", libc::O_RDONLY).unwrap();
    assert_eq!(read_all(&mut again), b"new");
}

#[test]
fn appends_go_to_the_current_end_at_the_target() {
    let env = test_env();
    let flags = CREATE | libc::O_APPEND;
    let mut file = env.open_with_mode("log", flags, 0o600).unwrap();
    file.write_all(b"ours\n").unwrap();
    std::fs::write(env.path("log"), "theirs\n").unwrap();
    drop(file);
    wait_until("it is appended", || env.read("log") == "theirs\nours\n");
}

#[test]
fn a_failed_open_does_not_block_later_calls() {
    let env = test_env();
    let mut file = env.open_with_mode("d/new", CREATE, 0o600).unwrap_err();
    assert_eq!(file, Errno::ENOENT);
    std::fs::create_dir(env.path("d")).unwrap();
    let mut opened = env.open_with_mode("d/new", CREATE, 0o600).unwrap();
    opened.write_all(b"x").unwrap();
    drop(opened);
    file = env.open("d/missing", libc::O_RDONLY).unwrap_err();
    assert_eq!(file, Errno::ENOENT);
    assert_eq!(env.read("d/new"), "x");
}

#[test]
fn directories_are_listed() {
    let env = test_env();
    std::fs::create_dir(env.path("many")).unwrap();
    let mut expected: BTreeSet<OsString> = (0..1000)
        .map(|number| OsString::from(format!("file {number}")))
        .collect();
    expected.insert(OsString::from_vec(b"not \xff utf-8".to_vec()));
    for name in &expected {
        File::create(env.path("many").join(name)).unwrap();
    }
    let flags = libc::O_RDONLY | libc::O_DIRECTORY;
    let directory = env.open("many", flags).unwrap();
    let names: BTreeSet<OsString> = rustix::fs::Dir::read_from(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_bytes().to_vec())
        .filter(|name| name != b"." && name != b"..")
        .map(OsString::from_vec)
        .collect();
    assert!(names == expected);
}
