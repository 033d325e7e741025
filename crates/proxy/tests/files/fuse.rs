//! Descriptors through FUSE.
//!
//! Nothing is mapped here: a process that serves a file must not wait for it in a page fault. See `programs`.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use interceptor::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use proxy::FilesThrough;
use rustix::fs::{FallocateFlags, fallocate};

use crate::world::{World, wait_until};

fn world() -> World {
    World::new(FilesThrough::Fuse)
}

fn read_all(file: &mut File) -> String {
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    text
}

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
fn what_write_accepts_is_at_the_target() {
    let world = world();
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    let mut file = world.open_with_mode("new", flags, 0o640).unwrap();
    assert_eq!(
        std::fs::metadata(world.path("new")).unwrap().mode() & 0o7777,
        0o640
    );
    file.write_all(b"hello").unwrap();
    // Before any close.
    assert_eq!(world.read("new"), "hello");
    file.write_all_at(b"J", 0).unwrap();
    assert_eq!(world.read("new"), "Jello");
    assert_eq!(file.metadata().unwrap().len(), 5);
    let named = world.files().metadata(&world.path("new"), true).unwrap();
    assert_eq!(named.size, 5);
    file.rewind().unwrap();
    assert_eq!(read_all(&mut file), "Jello");
    let again = world.open_with_mode("new", flags, 0o640);
    assert_eq!(again.unwrap_err(), Errno::EEXIST);
    let emptied = world.open("new", libc::O_WRONLY | libc::O_TRUNC).unwrap();
    assert_eq!(emptied.metadata().unwrap().len(), 0);
    assert_eq!(file.metadata().unwrap().len(), 0, "also where it was open");
    let large = vec![b'x'; 3_000_001];
    file.write_all_at(&large, 7).unwrap();
    let there = std::fs::read(world.path("new")).unwrap();
    assert!(there[..7] == [0; 7] && there[7..] == large);
}

#[test]
#[ignore = "needs root"]
fn appends_of_many_writers_are_all_there() {
    let world = Arc::new(world());
    world.write("log", "");
    let flags = libc::O_WRONLY | libc::O_APPEND;
    let inside = |name: char| {
        let world = Arc::clone(&world);
        thread::spawn(move || {
            let mut file = world.open("log", flags).unwrap();
            for number in 0..100 {
                let line = format!("{name}{number:03}\n");
                file.write_all(line.as_bytes()).unwrap();
            }
        })
    };
    let mut writers: Vec<_> = ('a'..='d').map(inside).collect();
    // And one who is no part of the session.
    let path = world.path("log");
    writers.push(thread::spawn(move || {
        let mut file = File::options().append(true).open(path).unwrap();
        for number in 0..100 {
            let line = format!("z{number:03}\n");
            file.write_all(line.as_bytes()).unwrap();
        }
    }));
    for writer in writers {
        writer.join().unwrap();
    }
    let log = world.read("log");
    let lines: BTreeSet<&str> = log.lines().collect();
    assert_eq!((lines.len(), log.len()), (500, 2500));
    let mut file = world.open("log", libc::O_RDONLY).unwrap();
    assert!(read_all(&mut file) == log);
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

/// Whether writing takes the set-user-id bit away is decided by the rights of the target, not of the process here.
#[test]
#[ignore = "needs root"]
fn set_user_id_goes_as_the_target_would_lose_it() {
    const SOMEBODY: u32 = 4242;
    for (target, writer, expected) in [
        (0, 0, 0o4755),
        (0, SOMEBODY, 0o4755),
        (SOMEBODY, 0, 0o755),
        (SOMEBODY, SOMEBODY, 0o755),
    ] {
        let world = World::of_user(FilesThrough::Fuse, target);
        world.write("f", "0123456789");
        std::os::unix::fs::chown(world.path("f"), Some(target), None).unwrap();
        std::fs::set_permissions(world.path("f"), Permissions::from_mode(0o4755)).unwrap();
        let file = world.open("f", libc::O_RDWR).unwrap();
        assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o4755);
        let mut command = Command::new("sh");
        command.args(["-c", "echo more"]);
        let status = command
            .uid(writer)
            .stdout(file.try_clone().unwrap())
            .status();
        assert!(status.unwrap().success());
        let there = std::fs::metadata(world.path("f")).unwrap().mode() & 0o7777;
        let here = file.metadata().unwrap().mode() & 0o7777;
        assert_eq!((there, here), (expected, expected), "{target}, {writer}");
    }
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

#[test]
#[ignore = "needs root"]
fn what_is_read_only_is_not_changed_through_its_descriptor() {
    let world = World::with_settings(FilesThrough::Fuse, "read_only: ['^/etc/hostname$']");
    let path = Path::new("/etc/hostname");
    let options = |flags| interceptor::OpenOptions {
        flags,
        mode: 0,
        resolve: 0,
    };
    let file = File::from(world.files().open(path, &options(libc::O_RDONLY)).unwrap());
    let mode = std::fs::metadata(path).unwrap().mode();
    let refused = file.set_permissions(Permissions::from_mode(0o777));
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EROFS));
    assert_eq!(std::fs::metadata(path).unwrap().mode(), mode);
    let opened = world.files().open(path, &options(libc::O_RDWR));
    assert_eq!(opened.unwrap_err(), Errno::EROFS.into());
    let refused = world.files().remove_file(path);
    assert_eq!(refused, Err(Errno::EROFS.into()));
    let refused = world.files().access(path, libc::W_OK, true);
    assert_eq!(refused, Err(Errno::EROFS.into()));
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

#[test]
#[ignore = "needs root"]
fn who_waits_for_the_target_delays_nobody_and_can_be_killed() {
    let world = world();
    world.write("slow", vec![b's'; 1 << 20]);
    world.write("known", "known");
    let mut known = world.open("known", libc::O_RDONLY).unwrap();
    assert_eq!(read_all(&mut known), "known");
    let slow: Vec<File> = (0..8)
        .map(|_| world.open("slow", libc::O_RDONLY).unwrap())
        .collect();
    let flags = libc::O_WRONLY | libc::O_APPEND;
    let appended = world.open("known", flags).unwrap();
    let stalled = &world.traffic.stalled;
    stalled.store(true, Ordering::SeqCst);
    // Behind what came with the open.
    let mut readers: Vec<_> = slow
        .into_iter()
        .map(|slow| {
            Command::new("tail")
                .args(["-c", "1000"])
                .stdin(slow)
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    // The kernel lets nobody go who waits for a write.
    let writer = Command::new("sh")
        .args(["-c", "echo more"])
        .stdout(appended)
        .spawn();
    readers.push(writer.unwrap());
    wait_until("they wait", || {
        readers.iter().all(|reader| waits(reader.id()))
    });
    known.rewind().unwrap();
    let mut bytes = [0; 5];
    // In the kernel's memory: nobody is asked.
    known.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"known");
    for reader in &mut readers {
        reader.kill().unwrap();
        reader.wait().unwrap();
    }
    assert!(
        stalled.swap(false, Ordering::SeqCst),
        "it was stalled until here"
    );
}

#[test]
#[ignore = "needs root"]
fn a_signal_that_kills_nobody_interrupts_nothing() {
    let world = world();
    let script = "$SIG{USR1} = sub {}; defined syswrite(STDOUT, \"once\\n\") or exit 3";
    let open = |name: &str| {
        let flags = libc::O_WRONLY | libc::O_CREAT;
        world.open_with_mode(name, flags, 0o600).unwrap()
    };
    let start = |file: File| {
        let mut command = Command::new("perl");
        command.args(["-e", script]).stdout(file).spawn().unwrap()
    };
    let signal = |process: &Child, signal: Signal| {
        kill(Pid::from_raw(process.id().cast_signed()), signal).unwrap();
    };
    let stall = |stalled| world.traffic.stalled.store(stalled, Ordering::SeqCst);
    let waits = |process: &Child| {
        let wait = std::fs::read_to_string(format!("/proc/{}/wchan", process.id()));
        wait.is_ok_and(|wait| wait.contains("request_wait"))
    };
    let files = (open("survivor"), open("killed"));
    stall(true);
    let (mut survivor, mut killed) = (start(files.0), start(files.1));
    wait_until("both write", || waits(&survivor) && waits(&killed));
    signal(&survivor, Signal::SIGUSR1);
    // Whoever is killed later, and after such a signal too, ends before.
    signal(&killed, Signal::SIGUSR1);
    signal(&killed, Signal::SIGTERM);
    let end = killed.wait().unwrap().signal();
    let still_writes = survivor.try_wait().unwrap().is_none();
    stall(false);
    assert_eq!(end, Some(libc::SIGTERM));
    assert!(still_writes, "{:?}", survivor.wait());
    assert!(survivor.wait().unwrap().success());
    assert_eq!(world.read("survivor"), "once\n");
}

/// Whether a process waits for a file.
fn waits(process: u32) -> bool {
    let wait = std::fs::read_to_string(format!("/proc/{process}/wchan"));
    wait.is_ok_and(|wait| wait.contains("request_wait") || wait.contains("folio"))
}
