//! Calls by path. They do not depend on the backend for descriptors.

use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;
use std::sync::atomic::Ordering;

use interceptor::{
    CallResult, Errno, Host as _, Intent, OpenOptions, PathChoice, SetTime, Times, Timestamp,
};
use proxy::FileBackend;

use crate::environment::{Environment, errno, wait_until};

fn test_env() -> Environment {
    Environment::new(FileBackend::Memory)
}

fn fails<T: std::fmt::Debug>(result: CallResult<T>, expected: Errno) {
    assert_eq!(errno(result.unwrap_err()), expected);
}

#[test]
fn paths_are_created_renamed_and_removed() {
    let env = test_env();
    let (files, path) = (env.files(), |name: &str| env.path(name));
    files.create_directory(&path("d"), 0o710).unwrap();
    assert_eq!(path("d").metadata().unwrap().mode() & 0o7777, 0o710);
    fails(files.create_directory(&path("d"), 0o700), Errno::EEXIST);
    files
        .create_node(&path("d/pipe"), libc::S_IFIFO | 0o600, 0)
        .unwrap();
    fails(files.remove_directory(&path("d")), Errno::ENOTEMPTY);
    files.remove_file(&path("d/pipe")).unwrap();
    files.remove_directory(&path("d")).unwrap();
    env.write("a", "a");
    env.write("b", "b");
    let no_replace = libc::RENAME_NOREPLACE;
    fails(
        files.rename(&path("a"), &path("b"), no_replace),
        Errno::EEXIST,
    );
    files
        .rename(&path("a"), &path("b"), libc::RENAME_EXCHANGE)
        .unwrap();
    assert_eq!((env.read("a"), env.read("b")), ("b".into(), "a".into()));
    fails(files.rename(&path("a"), &path("b"), 1 << 20), Errno::EINVAL);
    files
        .create_symbolic_link(Path::new("a"), &path("link"))
        .unwrap();
    assert_eq!(files.read_link(&path("link")).unwrap(), Path::new("a"));
    fails(files.read_link(&path("a")), Errno::EINVAL);
    files
        .create_hard_link(&path("link"), &path("hard"), true)
        .unwrap();
    assert_eq!(path("a").metadata().unwrap().nlink(), 2);
    assert_eq!(files.metadata(&path("hard"), false).unwrap().links, 2);
}

#[test]
fn a_path_is_canonicalized_with_one_request() {
    let env = test_env();
    let deep: String = (0..30).map(|number| format!("folder{number}/")).collect();
    env.write(&format!("{deep}file"), "");
    symlink("folder0/folder1", env.path("link")).unwrap();
    let writes = || env.traffic.writes.load(Ordering::SeqCst);
    let before = writes();
    let through_link = env
        .path("link")
        .join(deep.trim_start_matches("folder0/folder1/"));
    let canonical = env.files().canonical(&through_link).unwrap();
    assert_eq!(canonical, env.path(&deep).canonicalize().unwrap());
    assert!(writes() - before < 10, "{} writes", writes() - before);
    fails(env.files().canonical(&env.path("missing/x")), Errno::ENOENT);
}

#[test]
fn attributes_are_changed() {
    let env = test_env();
    env.write("f", "0123456789");
    let (files, path) = (env.files(), env.path("f"));
    let metadata = || path.metadata().unwrap();
    files.set_mode(&path, 0o604, true).unwrap();
    assert_eq!(metadata().mode() & 0o7777, 0o604);
    files.set_length(&path, 4).unwrap();
    assert_eq!(metadata().len(), 4);
    let times = Times {
        accessed: SetTime::Keep,
        modified: SetTime::To(Timestamp {
            seconds: 77,
            nanoseconds: 5,
        }),
    };
    let accessed = metadata().atime();
    files.set_times(&path, &times, true).unwrap();
    assert_eq!((metadata().mtime(), metadata().mtime_nsec()), (77, 5));
    assert_eq!(metadata().atime(), accessed);
    let name = std::ffi::OsStr::new("user.color");
    files.set_attribute(&path, name, b"red", 0, true).unwrap();
    assert_eq!(files.attribute(&path, name, true).unwrap(), b"red");
    assert_eq!(files.attributes(&path, true).unwrap(), b"user.color\0");
    let again = files.set_attribute(&path, name, b"x", libc::XATTR_CREATE, true);
    fails(again, Errno::EEXIST);
    files.remove_attribute(&path, name, true).unwrap();
    fails(files.attribute(&path, name, true), Errno::ENODATA);
    assert!(files.file_system(&path).unwrap().blocks > 0);
    files.access(&path, libc::R_OK, true).unwrap();
    fails(files.access(&path, libc::X_OK, true), Errno::EACCES);
}

#[test]
fn results_are_cached() {
    let env = test_env();
    env.write("f", "12345");
    let make_calls = || {
        let size = env.files().metadata(&env.path("f"), true).unwrap().size;
        assert_eq!(size, 5);
        fails(
            env.files().metadata(&env.path("missing"), true),
            Errno::ENOENT,
        );
        let missing = env.open("missing", libc::O_RDONLY);
        assert_eq!(missing.unwrap_err(), Errno::ENOENT);
        fails(env.files().read_link(&env.path("f")), Errno::EINVAL);
        env.files()
            .access(&env.path("f"), libc::R_OK, true)
            .unwrap();
    };
    let sent = || env.traffic.writes.load(Ordering::SeqCst);
    let before = sent();
    make_calls();
    assert!(sent() > before);
    // A slow first round may have expired; of several rounds, one is within the TTL.
    wait_until("no request is sent", || {
        let before = sent();
        make_calls();
        sent() == before
    });
}

#[test]
fn own_changes_are_visible_at_once_and_other_changes_soon() {
    let env = test_env();
    let exists = |name: &str| env.files().metadata(&env.path(name), true).is_ok();
    assert!(!exists("d/f"));
    env.files().create_directory(&env.path("d"), 0o700).unwrap();
    assert!(exists("d") && !exists("d/f"));
    let flags = libc::O_WRONLY | libc::O_CREAT;
    drop(env.open_with_mode("d/f", flags, 0o600).unwrap());
    assert!(exists("d/f"));
    env.files()
        .rename(&env.path("d"), &env.path("e"), 0)
        .unwrap();
    assert!(!exists("d/f") && exists("e/f"));
    std::fs::remove_file(env.path("e/f")).unwrap();
    wait_until("it is gone", || !exists("e/f"));
}

#[test]
fn final_symlinks_are_followed_on_request() {
    let env = test_env();
    env.write("f", "12345");
    symlink("f", env.path("link")).unwrap();
    let kind = |follow| {
        let metadata = env.files().metadata(&env.path("link"), follow);
        metadata.unwrap().mode & libc::S_IFMT
    };
    assert_eq!(kind(true), libc::S_IFREG);
    assert_eq!(kind(false), libc::S_IFLNK);
}

#[test]
fn modes_and_lists_choose_the_side_of_a_path() {
    let check = |settings: &str, path: &str, intent: Intent, expected: PathChoice| {
        let env = Environment::with_settings(FileBackend::Memory, settings);
        let choice = env.session.choose_path(Path::new(path), intent);
        assert_eq!(choice, expected, "{settings} {path} {intent:?}");
    };
    let remote = |path: &str| PathChoice::Remote(path.into());
    let hosts = "/etc/hosts";
    check("", hosts, Intent::Read, remote(hosts));
    check("", hosts, Intent::Write, remote(hosts));
    check("mode: read", hosts, Intent::Read, remote(hosts));
    check("mode: read", hosts, Intent::Write, PathChoice::Local);
    check("mode: local", "/etc/x", Intent::Read, PathChoice::Local);
    // The DNS configuration is remote in every mode.
    check("mode: local", hosts, Intent::Read, remote(hosts));
    let overrides = "mode: localwithoverrides";
    check(overrides, hosts, Intent::Stat, remote(hosts));
    check(overrides, "/srv/x", Intent::Stat, PathChoice::Local);
    let lists = "not_found: ['^/srv/no'], local: ['^/srv/here'], read_only: ['^/srv/read']";
    let missing = PathChoice::Refused(Errno::ENOENT);
    check(lists, "/srv/no", Intent::Stat, missing);
    check(lists, "/srv/here", Intent::Read, PathChoice::Local);
    check(lists, "/srv/read", Intent::Read, remote("/srv/read"));
    check(lists, "/srv/read", Intent::Write, PathChoice::Local);
    // Files with content of our own are served in every mode.
    let served = "/etc/nsswitch.conf";
    check("mode: local", served, Intent::Read, remote(served));
}

#[test]
fn restrictions_of_path_resolution_are_not_supported() {
    let env = test_env();
    env.write("f", "");
    let options = OpenOptions {
        flags: libc::O_RDONLY,
        mode: 0,
        resolve: libc::RESOLVE_NO_SYMLINKS,
    };
    fails(env.files().open(&env.path("f"), &options), Errno::ENOSYS);
}
