//! What is asked and done by name. The way of serving descriptors does not matter here.

use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;
use std::sync::atomic::Ordering;

use interceptor::{
    Answer, Errno, Host as _, Intent, Moment, OpenOptions, PathChoice, SetTime, Times,
};
use proxy::FilesThrough;

use crate::world::{World, errno, wait_until};

fn world() -> World {
    World::new(FilesThrough::Memory)
}

fn fails<T: std::fmt::Debug>(answer: Answer<T>, expected: Errno) {
    assert_eq!(errno(answer.unwrap_err()), expected);
}

#[test]
fn names_are_made_moved_and_removed() {
    let world = world();
    let (files, path) = (world.files(), |name: &str| world.path(name));
    files.create_directory(&path("d"), 0o710).unwrap();
    assert_eq!(path("d").metadata().unwrap().mode() & 0o7777, 0o710);
    fails(files.create_directory(&path("d"), 0o700), Errno::EEXIST);
    files
        .create_node(&path("d/pipe"), libc::S_IFIFO | 0o600, 0)
        .unwrap();
    fails(files.remove_directory(&path("d")), Errno::ENOTEMPTY);
    files.remove_file(&path("d/pipe")).unwrap();
    files.remove_directory(&path("d")).unwrap();
    world.write("a", "a");
    world.write("b", "b");
    let no_replace = libc::RENAME_NOREPLACE;
    fails(
        files.rename(&path("a"), &path("b"), no_replace),
        Errno::EEXIST,
    );
    files
        .rename(&path("a"), &path("b"), libc::RENAME_EXCHANGE)
        .unwrap();
    assert_eq!((world.read("a"), world.read("b")), ("b".into(), "a".into()));
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
fn the_path_without_links_is_one_question() {
    let world = world();
    let deep: String = (0..30).map(|number| format!("folder{number}/")).collect();
    world.write(&format!("{deep}file"), "");
    symlink("folder0/folder1", world.path("link")).unwrap();
    let parts = || world.traffic.writes.load(Ordering::SeqCst);
    let before = parts();
    let through_link = world
        .path("link")
        .join(deep.trim_start_matches("folder0/folder1/"));
    let found = world.files().canonical(&through_link).unwrap();
    assert_eq!(found, world.path(&deep).canonicalize().unwrap());
    assert!(parts() - before < 10, "{} parts", parts() - before);
    fails(
        world.files().canonical(&world.path("missing/x")),
        Errno::ENOENT,
    );
}

#[test]
fn properties_are_changed() {
    let world = world();
    world.write("f", "0123456789");
    let (files, path) = (world.files(), world.path("f"));
    let there = || path.metadata().unwrap();
    files.set_mode(&path, 0o604, true).unwrap();
    assert_eq!(there().mode() & 0o7777, 0o604);
    files.set_length(&path, 4).unwrap();
    assert_eq!(there().len(), 4);
    let times = Times {
        accessed: SetTime::Keep,
        modified: SetTime::To(Moment {
            seconds: 77,
            nanoseconds: 5,
        }),
    };
    let accessed = there().atime();
    files.set_times(&path, &times, true).unwrap();
    assert_eq!((there().mtime(), there().mtime_nsec()), (77, 5));
    assert_eq!(there().atime(), accessed);
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
fn what_was_asked_a_moment_ago_is_not_asked_again() {
    let world = world();
    world.write("f", "12345");
    let questions = || {
        let size = world.files().metadata(&world.path("f"), true).unwrap().size;
        assert_eq!(size, 5);
        fails(
            world.files().metadata(&world.path("missing"), true),
            Errno::ENOENT,
        );
        let missing = world.open("missing", libc::O_RDONLY);
        assert_eq!(missing.unwrap_err(), Errno::ENOENT);
        fails(world.files().read_link(&world.path("f")), Errno::EINVAL);
        world
            .files()
            .access(&world.path("f"), libc::R_OK, true)
            .unwrap();
    };
    let sent = || world.traffic.writes.load(Ordering::SeqCst);
    let before = sent();
    questions();
    assert!(sent() > before);
    // The first round may have been slow; of several, one is within a second.
    wait_until("nothing is asked", || {
        let before = sent();
        questions();
        sent() == before
    });
}

#[test]
fn what_the_session_changes_shows_at_once_and_what_others_change_soon() {
    let world = world();
    let exists = |name: &str| world.files().metadata(&world.path(name), true).is_ok();
    assert!(!exists("d/f"));
    world
        .files()
        .create_directory(&world.path("d"), 0o700)
        .unwrap();
    assert!(exists("d") && !exists("d/f"));
    let flags = libc::O_WRONLY | libc::O_CREAT;
    drop(world.open_with_mode("d/f", flags, 0o600).unwrap());
    assert!(exists("d/f"));
    world
        .files()
        .rename(&world.path("d"), &world.path("e"), 0)
        .unwrap();
    assert!(!exists("d/f") && exists("e/f"));
    std::fs::remove_file(world.path("e/f")).unwrap();
    wait_until("it is gone", || !exists("e/f"));
}

#[test]
fn links_at_the_end_are_followed_or_not() {
    let world = world();
    world.write("f", "12345");
    symlink("f", world.path("link")).unwrap();
    let kind = |follow| {
        let metadata = world.files().metadata(&world.path("link"), follow);
        metadata.unwrap().mode & libc::S_IFMT
    };
    assert_eq!(kind(true), libc::S_IFREG);
    assert_eq!(kind(false), libc::S_IFLNK);
}

#[test]
fn modes_and_lists_decide_where_a_path_leads() {
    let check = |settings: &str, path: &str, intent: Intent, expected: PathChoice| {
        let world = World::with_settings(FilesThrough::Memory, settings);
        let choice = world.session.choose_path(Path::new(path), intent);
        assert_eq!(choice, expected, "{settings} {path} {intent:?}");
    };
    let remote = |path: &str| PathChoice::Remote(path.into());
    let hosts = "/etc/hosts";
    check("", hosts, Intent::Read, remote(hosts));
    check("", hosts, Intent::Write, remote(hosts));
    check("mode: read", hosts, Intent::Read, remote(hosts));
    check("mode: read", hosts, Intent::Write, PathChoice::Local);
    check("mode: local", "/etc/x", Intent::Read, PathChoice::Local);
    // Names are the target's in every mode.
    check("mode: local", hosts, Intent::Read, remote(hosts));
    let overrides = "mode: localwithoverrides";
    check(overrides, hosts, Intent::Look, remote(hosts));
    check(overrides, "/srv/x", Intent::Look, PathChoice::Local);
    let lists = "not_found: ['^/srv/no'], local: ['^/srv/here'], read_only: ['^/srv/read']";
    let missing = PathChoice::Refused(Errno::ENOENT);
    check(lists, "/srv/no", Intent::Look, missing);
    check(lists, "/srv/here", Intent::Read, PathChoice::Local);
    check(lists, "/srv/read", Intent::Read, remote("/srv/read"));
    check(lists, "/srv/read", Intent::Write, PathChoice::Local);
    // What we serve ourselves is ours in every mode.
    let served = "/etc/nsswitch.conf";
    check("mode: local", served, Intent::Read, remote(served));
}

#[test]
fn promises_about_the_way_are_not_made() {
    let world = world();
    world.write("f", "");
    let options = OpenOptions {
        flags: libc::O_RDONLY,
        mode: 0,
        resolve: libc::RESOLVE_NO_SYMLINKS,
    };
    fails(
        world.files().open(&world.path("f"), &options),
        Errno::ENOSYS,
    );
}
