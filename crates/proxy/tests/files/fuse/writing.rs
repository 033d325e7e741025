//! Writing: write-through, with the rights of the target.

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
use proxy::FileBackend;

use super::{read_all, test_env};
use crate::environment::Environment;

#[test]
#[ignore = "needs root"]
fn writes_are_at_the_target_when_they_return() {
    let env = test_env();
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    let mut file = env.open_with_mode("new", flags, 0o640).unwrap();
    assert_eq!(
        std::fs::metadata(env.path("new")).unwrap().mode() & 0o7777,
        0o640
    );
    file.write_all(b"hello").unwrap();
    // Before any close.
    assert_eq!(env.read("new"), "hello");
    file.write_all_at(b"J", 0).unwrap();
    assert_eq!(env.read("new"), "Jello");
    assert_eq!(file.metadata().unwrap().len(), 5);
    let named = env.files().metadata(&env.path("new"), true).unwrap();
    assert_eq!(named.size, 5);
    file.rewind().unwrap();
    assert_eq!(read_all(&mut file), "Jello");
    let again = env.open_with_mode("new", flags, 0o640);
    assert_eq!(again.unwrap_err(), Errno::EEXIST);
    let emptied = env.open("new", libc::O_WRONLY | libc::O_TRUNC).unwrap();
    assert_eq!(emptied.metadata().unwrap().len(), 0);
    assert_eq!(
        file.metadata().unwrap().len(),
        0,
        "also visible in the open descriptor"
    );
    let large = vec![b'x'; 3_000_001];
    file.write_all_at(&large, 7).unwrap();
    let at_target = std::fs::read(env.path("new")).unwrap();
    assert!(at_target[..7] == [0; 7] && at_target[7..] == large);
}

#[test]
#[ignore = "needs root"]
fn concurrent_appends_are_atomic() {
    let env = Arc::new(test_env());
    env.write("log", "");
    let flags = libc::O_WRONLY | libc::O_APPEND;
    let inside = |name: char| {
        let env = Arc::clone(&env);
        thread::spawn(move || {
            let mut file = env.open("log", flags).unwrap();
            for number in 0..100 {
                let line = format!("{name}{number:03}\n");
                file.write_all(line.as_bytes()).unwrap();
            }
        })
    };
    let mut writers: Vec<_> = ('a'..='d').map(inside).collect();
    // And a writer outside of the session.
    let path = env.path("log");
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
    let log = env.read("log");
    let lines: BTreeSet<&str> = log.lines().collect();
    assert_eq!((lines.len(), log.len()), (500, 2500));
    let mut file = env.open("log", libc::O_RDONLY).unwrap();
    assert!(read_all(&mut file) == log);
}

/// Whether a write removes the set-user-ID bit depends on the rights of the target, not of the local process.
#[test]
#[ignore = "needs root"]
fn set_user_id_is_removed_as_at_the_target() {
    const OTHER_USER: u32 = 4242;
    for (target, writer, expected) in [
        (0, 0, 0o4755),
        (0, OTHER_USER, 0o4755),
        (OTHER_USER, 0, 0o755),
        (OTHER_USER, OTHER_USER, 0o755),
    ] {
        let env = Environment::with_target_user(FileBackend::Fuse, target);
        env.write("f", "0123456789");
        std::os::unix::fs::chown(env.path("f"), Some(target), None).unwrap();
        std::fs::set_permissions(env.path("f"), Permissions::from_mode(0o4755)).unwrap();
        let file = env.open("f", libc::O_RDWR).unwrap();
        assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o4755);
        let mut command = Command::new("sh");
        command.args(["-c", "echo more"]);
        let status = command
            .uid(writer)
            .stdout(file.try_clone().unwrap())
            .status();
        assert!(status.unwrap().success());
        let at_target = std::fs::metadata(env.path("f")).unwrap().mode() & 0o7777;
        let local = file.metadata().unwrap().mode() & 0o7777;
        assert_eq!(
            (at_target, local),
            (expected, expected),
            "{target}, {writer}"
        );
    }
}

#[test]
#[ignore = "needs root"]
fn read_only_files_are_not_changed_through_their_descriptors() {
    let env = Environment::with_settings(FileBackend::Fuse, "read_only: ['^/etc/hostname$']");
    let path = Path::new("/etc/hostname");
    let options = |flags| interceptor::OpenOptions {
        flags,
        mode: 0,
        resolve: 0,
    };
    let file = File::from(env.files().open(path, &options(libc::O_RDONLY)).unwrap());
    let mode = std::fs::metadata(path).unwrap().mode();
    let refused = file.set_permissions(Permissions::from_mode(0o777));
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EROFS));
    assert_eq!(std::fs::metadata(path).unwrap().mode(), mode);
    let opened = env.files().open(path, &options(libc::O_RDWR));
    assert_eq!(opened.unwrap_err(), Errno::EROFS.into());
    let refused = env.files().remove_file(path);
    assert_eq!(refused, Err(Errno::EROFS.into()));
    let refused = env.files().access(path, libc::W_OK, true);
    assert_eq!(refused, Err(Errno::EROFS.into()));
}
