//! What is read: as it is at the target, with few questions, and as it changes.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::thread;

use interceptor::{Errno, OpenOptions};
use proxy::FilesThrough;

use super::{read_all, world};
use crate::world::{World, wait_until};

#[test]
#[ignore = "needs root"]
fn a_small_file_is_read_with_one_question() {
    let world = world();
    world.write("greeting", "only at the target\n");
    let mut file = world.open("greeting", libc::O_RDONLY).unwrap();
    let received = world.received();
    assert_eq!(read_all(&mut file), "only at the target\n");
    assert_eq!(file.metadata().unwrap().len(), 19);
    assert_eq!(world.received(), received, "nothing more was asked");
}

#[test]
#[ignore = "needs root"]
fn the_hosts_file_is_opened_for_many_names_with_one_question() {
    let world = world();
    let path = Path::new("/etc/hosts");
    let expected = std::fs::read_to_string(path).unwrap();
    let options = OpenOptions {
        flags: libc::O_RDONLY | libc::O_CLOEXEC,
        mode: 0,
        resolve: 0,
    };
    let open = || File::from(world.files().open(path, &options).unwrap());
    // What was opened is good for a second, which may be over.
    wait_until("an open that asks nothing", || {
        let first = open();
        let received = world.received();
        let mut second = open();
        assert_eq!(read_all(&mut second), expected);
        let inode = |file: &File| file.metadata().unwrap().ino();
        assert_eq!(inode(&first), inode(&second));
        world.received() == received
    });
}

#[test]
#[ignore = "needs root"]
fn files_of_every_size_are_read_as_they_are() {
    let world = world();
    let steps = [4096, 32 * 1024, 128 * 1024].into_iter();
    let sizes = steps.flat_map(|step: usize| [step - 1, step, step + 1]);
    for size in [0, 1].into_iter().chain(sizes) {
        let name = format!("of-{size}");
        let text: String = (0..size)
            .map(|at| char::from(b'a' + (at % 23) as u8))
            .collect();
        world.write(&name, &text);
        for round in 0..2 {
            let mut file = world.open(&name, libc::O_RDONLY).unwrap();
            assert!(read_all(&mut file) == text, "{name}, round {round}");
            assert_eq!(file.metadata().unwrap().len(), size as u64);
        }
    }
}

#[test]
#[ignore = "needs root"]
fn what_is_written_is_not_hidden_by_what_came_with_an_open() {
    let world = world();
    for round in 0..50 {
        let name = format!("written-{round}");
        world.write(&name, "before");
        let write = || {
            let file = world.open(&name, libc::O_RDWR).unwrap();
            file.write_all_at(b"after.", 0).unwrap();
        };
        let mut reader = thread::scope(|scope| {
            let writing = scope.spawn(write);
            let reader = world.open(&name, libc::O_RDONLY).unwrap();
            writing.join().unwrap();
            reader
        });
        assert_eq!(read_all(&mut reader), "after.", "round {round}");
    }
}

#[test]
#[ignore = "needs root"]
fn files_that_were_read_are_closed_together() {
    let world = world();
    let open = |number: usize| {
        let name = format!("read-{number}");
        world.write(&name, "content");
        world.open(&name, libc::O_RDONLY).unwrap()
    };
    let files: Vec<File> = (0..100).map(open).collect();
    let open_at_target = || world.open_at_target("read-");
    assert_eq!(open_at_target(), 100);
    let received = world.received();
    drop(files);
    wait_until("all are closed", || open_at_target() == 0);
    let received = world.received() - received;
    assert!(received < 100 * 20, "{received} bytes to close them");
}

#[test]
#[ignore = "needs root"]
fn a_large_file_moves_only_what_is_read() {
    let world = world();
    let large = File::create(world.path("large")).unwrap();
    large.set_len(2 << 30).unwrap();
    large.write_all_at(b"in the middle", 1 << 30).unwrap();
    let before = world.received();
    let file = world.open("large", libc::O_RDONLY).unwrap();
    let mut bytes = [0; 4096];
    file.read_exact_at(&mut bytes, 1 << 30).unwrap();
    assert!(bytes.starts_with(b"in the middle"));
    let moved = world.received() - before;
    assert!(moved < 4 << 20, "{moved} bytes");
}

#[test]
#[ignore = "needs root"]
fn a_file_is_read_from_front_to_back() {
    let world = world();
    let content: Vec<u8> = (0..5_000_003_u32)
        .map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    world.write("data", &content);
    let mut file = world.open("data", libc::O_RDONLY).unwrap();
    let mut read = Vec::new();
    file.read_to_end(&mut read).unwrap();
    assert!(read == content);
    // And in parts that fit to nothing, from the back.
    let mut part = vec![0; 70_001];
    for start in (0..content.len() - part.len()).step_by(999_983).rev() {
        file.read_exact_at(&mut part, start as u64).unwrap();
        assert!(part == content[start..start + part.len()]);
    }
}

#[test]
#[ignore = "needs root"]
fn what_was_read_is_cached_until_the_file_changes() {
    let world = world();
    let content = vec![b'a'; 3 << 20];
    world.write("data", &content);
    let read = || {
        let mut file = world.open("data", libc::O_RDONLY).unwrap();
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        bytes
    };
    read();
    let before = world.received();
    assert!(read() == content);
    let moved = world.received() - before;
    assert!(
        moved < 512 * 1024,
        "opened anew, and read from memory: {moved}"
    );
    world.write("data", vec![b'b'; 3 << 20]);
    assert!(read() == vec![b'b'; 3 << 20]);
}

#[test]
#[ignore = "needs root"]
fn a_file_that_changes_while_it_is_open_is_seen() {
    let world = world();
    world.write("log", "one\n");
    let mut file = world.open("log", libc::O_RDONLY).unwrap();
    assert_eq!(read_all(&mut file), "one\n");
    let mut other = File::options()
        .append(true)
        .open(world.path("log"))
        .unwrap();
    other.write_all(b"two\n").unwrap();
    let mut seen = String::new();
    wait_until("the end of the file is seen", || {
        seen.push_str(&read_all(&mut file));
        seen == "two\n"
    });
    // The same length, other content.
    std::fs::write(world.path("log"), "ONE\nTWO\n").unwrap();
    wait_until("new content is seen", || {
        file.rewind().unwrap();
        read_all(&mut file) == "ONE\nTWO\n"
    });
}

#[test]
#[ignore = "needs root"]
fn directories_are_listed() {
    let world = world();
    std::fs::create_dir(world.path("many")).unwrap();
    let mut expected: BTreeSet<OsString> = (0..12_345)
        .map(|number| OsString::from(format!("a file with number {number}")))
        .collect();
    expected.insert(OsString::from_vec(b"not \xff\xfe utf-8".to_vec()));
    for name in &expected {
        File::create(world.path("many").join(name)).unwrap();
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
    let directory = world.open("many", flags).unwrap();
    assert!(list(&directory) == expected);
    // From the beginning again, and what is new is there.
    File::create(world.path("many/new")).unwrap();
    expected.insert(OsString::from("new"));
    rustix::fs::seek(&directory, rustix::fs::SeekFrom::Start(0)).unwrap();
    assert!(list(&directory) == expected);
    world.write("file", "");
    assert_eq!(world.open("file", flags).unwrap_err(), Errno::ENOTDIR);
}

#[test]
#[ignore = "needs root"]
fn files_that_the_kernel_makes_up_are_read() {
    let world = World::with_settings(FilesThrough::Fuse, "read_only: ['^/proc/version$']");
    let options = interceptor::OpenOptions {
        flags: libc::O_RDONLY,
        mode: 0,
        resolve: 0,
    };
    let file = world.files().open(Path::new("/proc/version"), &options);
    let mut file = File::from(file.unwrap());
    assert_eq!(file.metadata().unwrap().len(), 0);
    let expected = std::fs::read_to_string("/proc/version").unwrap();
    assert_eq!(read_all(&mut file), expected);
}
