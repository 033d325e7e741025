//! Reading: correct content, few requests, and changes at the target.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::thread;

use interceptor::{Errno, OpenOptions};
use proxy::FileBackend;

use super::{read_all, test_env};
use crate::environment::{Environment, wait_until};

#[test]
#[ignore = "needs root"]
fn a_small_file_is_read_with_one_request() {
    let env = test_env();
    env.write("greeting", "only at the target\n");
    let mut file = env.open("greeting", libc::O_RDONLY).unwrap();
    let received = env.received();
    assert_eq!(read_all(&mut file), "only at the target\n");
    assert_eq!(file.metadata().unwrap().len(), 19);
    assert_eq!(env.received(), received, "no further request");
}

#[test]
#[ignore = "needs root"]
fn the_hosts_file_is_opened_repeatedly_with_one_request() {
    let env = test_env();
    let path = Path::new("/etc/hosts");
    let expected = std::fs::read_to_string(path).unwrap();
    let options = OpenOptions {
        flags: libc::O_RDONLY | libc::O_CLOEXEC,
        mode: 0,
        resolve: 0,
    };
    let open = || File::from(env.files().open(path, &options).unwrap());
    // The cached file expires after a second, which may be over.
    wait_until("an open without a request", || {
        let first = open();
        let received = env.received();
        let mut second = open();
        assert_eq!(read_all(&mut second), expected);
        let inode = |file: &File| file.metadata().unwrap().ino();
        assert_eq!(inode(&first), inode(&second));
        env.received() == received
    });
}

#[test]
#[ignore = "needs root"]
fn files_of_all_sizes_are_read_correctly() {
    let env = test_env();
    let steps = [4096, 32 * 1024, 128 * 1024].into_iter();
    let sizes = steps.flat_map(|step: usize| [step - 1, step, step + 1]);
    for size in [0, 1].into_iter().chain(sizes) {
        let name = format!("of-{size}");
        let text: String = (0..size)
            .map(|at| char::from(b'a' + (at % 23) as u8))
            .collect();
        env.write(&name, &text);
        for round in 0..2 {
            let mut file = env.open(&name, libc::O_RDONLY).unwrap();
            assert!(read_all(&mut file) == text, "{name}, round {round}");
            assert_eq!(file.metadata().unwrap().len(), size as u64);
        }
    }
}

#[test]
#[ignore = "needs root"]
fn prefetched_bytes_do_not_hide_writes() {
    let env = test_env();
    for round in 0..50 {
        let name = format!("written-{round}");
        env.write(&name, "before");
        let write = || {
            let file = env.open(&name, libc::O_RDWR).unwrap();
            file.write_all_at(b"after.", 0).unwrap();
        };
        let mut reader = thread::scope(|scope| {
            let writing = scope.spawn(write);
            let reader = env.open(&name, libc::O_RDONLY).unwrap();
            writing.join().unwrap();
            reader
        });
        assert_eq!(read_all(&mut reader), "after.", "round {round}");
    }
}

#[test]
#[ignore = "needs root"]
fn handles_for_reading_are_closed_in_batches() {
    let env = test_env();
    let open = |number: usize| {
        let name = format!("read-{number}");
        env.write(&name, "content");
        env.open(&name, libc::O_RDONLY).unwrap()
    };
    let files: Vec<File> = (0..100).map(open).collect();
    let open_at_target = || env.open_at_target("read-");
    assert_eq!(open_at_target(), 100);
    let received = env.received();
    drop(files);
    wait_until("all handles are closed", || open_at_target() == 0);
    let received = env.received() - received;
    assert!(received < 100 * 20, "{received} bytes to close them");
}

#[test]
#[ignore = "needs root"]
fn only_the_parts_of_a_large_file_that_are_read_are_transferred() {
    let env = test_env();
    let large = File::create(env.path("large")).unwrap();
    large.set_len(2 << 30).unwrap();
    large.write_all_at(b"in the middle", 1 << 30).unwrap();
    let before = env.received();
    let file = env.open("large", libc::O_RDONLY).unwrap();
    let mut bytes = [0; 4096];
    file.read_exact_at(&mut bytes, 1 << 30).unwrap();
    assert!(bytes.starts_with(b"in the middle"));
    let received = env.received() - before;
    assert!(received < 4 << 20, "{received} bytes");
}

#[test]
#[ignore = "needs root"]
fn sequential_and_backward_reads() {
    let env = test_env();
    let content: Vec<u8> = (0..5_000_003_u32)
        .map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    env.write("data", &content);
    let mut file = env.open("data", libc::O_RDONLY).unwrap();
    let mut read = Vec::new();
    file.read_to_end(&mut read).unwrap();
    assert!(read == content);
    // Backwards, in parts that are not aligned.
    let mut part = vec![0; 70_001];
    for start in (0..content.len() - part.len()).step_by(999_983).rev() {
        file.read_exact_at(&mut part, start as u64).unwrap();
        assert!(part == content[start..start + part.len()]);
    }
}

#[test]
#[ignore = "needs root"]
fn content_is_cached_until_the_file_changes() {
    let env = test_env();
    let content = vec![b'a'; 3 << 20];
    env.write("data", &content);
    let read = || {
        let mut file = env.open("data", libc::O_RDONLY).unwrap();
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        bytes
    };
    read();
    let before = env.received();
    assert!(read() == content);
    let received = env.received() - before;
    assert!(
        received < 512 * 1024,
        "opened again, and read from the page cache: {received}"
    );
    env.write("data", vec![b'b'; 3 << 20]);
    assert!(read() == vec![b'b'; 3 << 20]);
}

#[test]
#[ignore = "needs root"]
fn changes_of_an_open_file_are_visible() {
    let env = test_env();
    env.write("log", "one\n");
    let mut file = env.open("log", libc::O_RDONLY).unwrap();
    assert_eq!(read_all(&mut file), "one\n");
    let mut other = File::options().append(true).open(env.path("log")).unwrap();
    other.write_all(b"two\n").unwrap();
    let mut content = String::new();
    wait_until("the appended line is read", || {
        content.push_str(&read_all(&mut file));
        content == "two\n"
    });
    // The same length with different content.
    std::fs::write(env.path("log"), "ONE\nTWO\n").unwrap();
    wait_until("the new content is read", || {
        file.rewind().unwrap();
        read_all(&mut file) == "ONE\nTWO\n"
    });
}

#[test]
#[ignore = "needs root"]
fn directories_are_listed() {
    let env = test_env();
    std::fs::create_dir(env.path("many")).unwrap();
    let mut expected: BTreeSet<OsString> = (0..12_345)
        .map(|number| OsString::from(format!("a file with number {number}")))
        .collect();
    expected.insert(OsString::from_vec(b"not \xff\xfe utf-8".to_vec()));
    for name in &expected {
        File::create(env.path("many").join(name)).unwrap();
    }
    let list = |directory: &File| {
        let mut names = BTreeSet::new();
        let mut listing = rustix::fs::Dir::read_from(directory).unwrap();
        while let Some(entry) = listing.read() {
            let name = entry.unwrap().file_name().to_bytes().to_vec();
            assert!(names.insert(OsString::from_vec(name)));
        }
        assert!(names.remove(&OsString::from(".")) && names.remove(&OsString::from("..")));
        names
    };
    let flags = libc::O_RDONLY | libc::O_DIRECTORY;
    let directory = env.open("many", flags).unwrap();
    assert!(list(&directory) == expected);
    // After a seek to the start, new entries are listed.
    File::create(env.path("many/new")).unwrap();
    expected.insert(OsString::from("new"));
    rustix::fs::seek(&directory, rustix::fs::SeekFrom::Start(0)).unwrap();
    assert!(list(&directory) == expected);
    env.write("file", "");
    assert_eq!(env.open("file", flags).unwrap_err(), Errno::ENOTDIR);
}

#[test]
#[ignore = "needs root"]
fn files_without_a_size_are_read() {
    let env = Environment::with_settings(FileBackend::Fuse, "read_only: ['^/proc/version$']");
    let options = interceptor::OpenOptions {
        flags: libc::O_RDONLY,
        mode: 0,
        resolve: 0,
    };
    let file = env.files().open(Path::new("/proc/version"), &options);
    let mut file = File::from(file.unwrap());
    assert_eq!(file.metadata().unwrap().len(), 0);
    let expected = std::fs::read_to_string("/proc/version").unwrap();
    assert_eq!(read_all(&mut file), expected);
}
