//! What is written: at the target, at once, with its rights.

use std::collections::BTreeSet;
use std::fs::{File, Permissions};
use std::io::{Seek as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;

use interceptor::Errno;
use proxy::FilesThrough;

use super::{read_all, world};
use crate::world::World;

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
