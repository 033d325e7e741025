//! Remote files: single calls, and real programs.

use std::path::Path;

use interceptor::{Notice, PathChoice};

use crate::programs;
use crate::target::{REMOTE, RENAMED, Target, run, run_bare};

/// Every call must have the same result on this directory as without supervision.
fn check_matches_native(program: &Path, directory: &str) {
    let program = program.display();
    let folder = tempfile::tempdir().unwrap();
    let local = folder.path().canonicalize().unwrap();
    let bare = run_bare(&format!("{program} {}", local.display())).output();
    let target = Target::new();
    let supervised = run(&target, &format!("{program} {directory}")).output();
    assert!(bare.lines().count() > 50, "{bare}");
    for (bare, supervised) in bare.lines().zip(supervised.lines()) {
        assert_eq!(supervised, bare);
    }
    assert_eq!(supervised, bare);
}

#[test]
fn remote_calls_match_local_directory() {
    check_matches_native(&programs::c("files"), REMOTE);
}

#[test]
fn unusual_paths_match_local_directory() {
    check_matches_native(&programs::c("paths"), REMOTE);
}

#[test]
fn static_program_matches_local_directory() {
    check_matches_native(&programs::c_with("files", "gcc", &["-static"]), REMOTE);
}

/// Working directories deeper than `PATH_MAX`. The directory exists here as well, because the C library finds such a path
/// by listing the parents of the directory.
#[test]
fn deep_directories_match_local_directory() {
    let program = programs::c("deep");
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    let command = format!("{} {}", program.display(), folder.display());
    let bare = run_bare(&command).output();
    for expected in [
        "\n4095 bytes: 4096 right\n",
        "\n4095 bytes, small buffer: Numerical result out of range\n",
        "\n4096 bytes: File name too long\n",
        "\ndeep, small buffer: File name too long\n",
    ] {
        assert!(bare.contains(expected), "{bare}");
    }
    let local = run(&Target::new(), &command).output();
    assert_eq!(local, bare);
    let target = Target::new();
    target.has_also(&folder);
    let remote = run(&target, &command).output();
    assert_eq!(remote, bare);
}

#[test]
fn mapped_local_files_match_local_directory() {
    check_matches_native(&programs::c("files"), RENAMED);
}

#[test]
fn mapped_local_files_keep_their_visible_path() {
    let target = Target::new();
    let here = target.root.path().join("renamed-files");
    std::fs::write(here.join("file"), "here\n").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("link");
    std::os::unix::fs::symlink("/renamed-files/file", &link).unwrap();
    let script = format!(
        "set -e
        cat /renamed-files/file {link}; ls /renamed-files
        cd /renamed-files; pwd; cat file; echo new >new; mv new newer; cat ../renamed-files/newer
        mkdir -p a/b; (cd a/b; pwd; cat ../../file); mv newer {folder}/out; cat {folder}/out; ls",
        link = link.display(),
        folder = folder.path().display()
    );
    let expected =
        "here\nhere\nfile\n/renamed-files\nhere\nnew\n/renamed-files/a/b\nhere\nnew\na\nfile\n";
    assert_eq!(run(&target, &script).output(), expected);
    assert!(here.join("a/b").is_dir());
}

/// The host decides about each path once, and each decision is reported once.
#[test]
fn one_open_is_one_decision() {
    let target = Target::new();
    target.write("remote", "text\n");
    let folder = tempfile::tempdir().unwrap();
    let local = folder.path().canonicalize().unwrap().join("local");
    std::fs::write(&local, "text\n").unwrap();
    let remote = Path::new("/remote-files/remote");
    let script = format!("exec 7<{} 8<{}", local.display(), remote.display());
    assert_eq!(run(&target, &script).output(), "");
    let choices = target.choices.lock().unwrap();
    let decisions = target.decisions.lock().unwrap();
    for (path, choice) in [
        (local.as_path(), PathChoice::Local),
        (remote, PathChoice::Remote(remote.to_path_buf())),
    ] {
        let of_path: Vec<_> = decisions.iter().filter(|(seen, _)| seen == path).collect();
        assert_eq!(of_path, [&(path.to_path_buf(), choice)]);
        let count = choices.iter().filter(|seen| *seen == path).count();
        assert_eq!(count, 1, "{}", path.display());
    }
}

#[test]
fn local_calls_are_unchanged() {
    let program = programs::c("files");
    let run_in = |run: &dyn Fn(&str) -> String| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap();
        run(&format!("{} {}", program.display(), path.display()))
    };
    let target = Target::new();
    let bare = run_in(&|script| run_bare(script).output());
    let supervised = run_in(&|script| run(&target, script).output());
    assert_eq!(supervised, bare);
}

#[test]
fn host_may_complete_from_another_thread() {
    let target = Target::new();
    target.write("content-of-later", "17 bytes of text\n");
    let script = "cd /remote-files
        cat later
        stat -c '%s %F' later
        test -r later && echo readable
        test -x later || echo not executable
        stat -c %F later/ || true
        cat abandoned later || true
        readlink -f /proc/self/fd/7 7<later";
    let expected = "17 bytes of text\n17 regular file\nreadable\nnot executable\n\
        stat: cannot statx 'later/': Not a directory\n\
        cat: abandoned: Input/output error\n17 bytes of text\n/remote-files/later\n";
    assert_eq!(run(&target, script).output(), expected);
}

#[test]
fn shell_works_with_remote_files() {
    let target = Target::new();
    target.write("a/one", "1\n");
    target.write("a/two", "2\n");
    let script = "set -e
        cat /remote-files/a/one
        ls /remote-files/a
        cd /remote-files/a; pwd; cat two; ls
        (cd ..; pwd; ls)
        echo three >three; cp three four; mv four five; rm one
        bash -c 'cat five; pwd'
        [ -e two ] && [ ! -e one ] && [ -d ../a ]
        cd /tmp; pwd
        cat </remote-files/a/two
        echo appended >>/remote-files/a/two
        find /remote-files -type f | sort
        mkdir -p /remote-files/x/y/z; rmdir /remote-files/x/y/z
        grep -r app /remote-files
        tar -C /remote-files -cf - a | tar -tf - | sort";
    let expected = "1\none\ntwo\n/remote-files/a\n2\none\ntwo\n/remote-files\na\nthree\n/remote-files/a\n/tmp\n2\n\
        /remote-files/a/five\n/remote-files/a/three\n/remote-files/a/two\n/remote-files/a/two:appended\n\
        a/\na/five\na/three\na/two\n";
    assert_eq!(run(&target, script).output(), expected);
    assert_eq!(target.read("a/two"), "2\nappended\n");
    assert_eq!(target.read("a/five"), "three\n");
    assert!(!target.path("a/one").exists());
}

#[test]
fn host_choices_are_applied() {
    let target = Target::new();
    target.write("read-only/file", "content\n");
    target.write("file", "mapped\n");
    let script = "cat /etc/passwd; cat /remote-files/read-only/file; echo x >/remote-files/read-only/file
        cat /mapped/file; cd /mapped; pwd; cat ./file
        mv /remote-files/file /tmp/elsewhere-$$; ls /tmp/elsewhere-$$ 2>/dev/null; rm -f /tmp/elsewhere-$$; ls /remote-files";
    let output = run(&target, script).output;
    let expected = "cat: /etc/passwd: No such file or directory\ncontent\n";
    assert!(output.starts_with(expected), "{output}");
    assert!(
        output.contains("/remote-files/read-only/file: Read-only file system"),
        "{output}"
    );
    // `mv` copies the file, because `rename` fails with `EXDEV`.
    assert!(
        output.contains("mapped\n/mapped\nmapped\n/tmp/elsewhere"),
        "{output}"
    );
    assert!(output.ends_with("\nread-only\n"), "{output}");
}

#[test]
fn local_links_to_remote_files_are_followed() {
    let target = Target::new();
    target.write("file", "remote\n");
    target.write("directory/inner", "inner\n");
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/remote-files/file", folder.path().join("to-file")).unwrap();
    std::os::unix::fs::symlink(
        "/remote-files/directory",
        folder.path().join("to-directory"),
    )
    .unwrap();
    std::os::unix::fs::symlink("to-file", folder.path().join("twice")).unwrap();
    std::os::unix::fs::symlink("loop", folder.path().join("loop")).unwrap();
    let script = format!(
        "cd {}; cat to-file twice to-directory/inner to-directory/../file; ls to-directory; readlink to-file
        cat $PWD/to-file; cd to-directory && cat inner; cat ../../tmp/nothing 2>/dev/null; cat {0}/loop",
        folder.path().display()
    );
    let output = run(&target, &script).output;
    let expected = "remote\nremote\ninner\nremote\ninner\n/remote-files/file\nremote\ninner\ncat: ";
    assert!(output.starts_with(expected), "{output}");
    assert!(
        output.ends_with("Too many levels of symbolic links\n"),
        "{output}"
    );
}

#[test]
fn working_directory_is_inherited_from_ended_parent() {
    let target = Target::new();
    target.write("a/file", "here\n");
    // The parent ends before its child makes a call about a file: `kill` is not one.
    let script = "(cd /remote-files/a; parent=$BASHPID
            (while kill -0 $parent 2>/dev/null; do :; done; cat file; pwd -P; >/remote-files/done) &)
        while [ ! -e /remote-files/done ]; do sleep 0.01; done";
    assert_eq!(run(&target, script).output(), "here\n/remote-files/a\n");
}

#[test]
fn skipped_program_is_local() {
    let target = Target::new();
    target.write("file", "remote\n");
    let folder = tempfile::tempdir().unwrap();
    let skipped = folder.path().join("skipped-program");
    std::os::unix::fs::symlink("/bin/bash", &skipped).unwrap();
    // The program and its forks are skipped; the host decides again for the programs that it executes.
    let script = format!(
        "read x </remote-files/file; echo $x
        {} -c '[ -e /remote-files/file ]; echo $?; ([ -e /remote-files/file ]; echo $?) & wait; cat /remote-files/file'
        /no/such/skipped-program 2>/dev/null; read x </remote-files/file; echo $x",
        skipped.display()
    );
    assert_eq!(
        run(&target, &script).output(),
        "remote\n1\n1\nremote\nremote\n"
    );
}

#[test]
fn watches_are_refused_and_reported() {
    let program = programs::c("watch");
    let target = Target::new();
    target.write("file", "");
    let script = format!("{} /remote-files/file", program.display());
    let output = run(&target, &script).output();
    assert!(
        output.starts_with("inotify: No space left on device\n"),
        "{output}"
    );
    assert!(
        output.ends_with("handle: Operation not supported\n"),
        "{output}"
    );
    let refused = Notice::WatchRefused {
        path: "/remote-files/file".into(),
    };
    // Fanotify may not be permitted; if it is, it is refused with the same error.
    let refusals = output.matches("No space left on device").count();
    assert_eq!(*target.notices.lock().unwrap(), vec![refused; refusals]);
    let output = run(&target, &format!("{} /tmp", program.display())).output();
    assert!(output.starts_with("inotify: ok\n"), "{output}");
}

#[test]
fn programs_are_executed_locally() {
    let target = Target::new();
    target.write("tool", "#!/bin/sh\necho remote\n");
    let script = "chmod 755 /remote-files/tool; /remote-files/tool; echo $?
        cd /remote-files; ./tool; echo $?; true; cat ./tool | tail -1
        ./neither; /remote-files/nor; env PATH=/remote-files/bin:$PATH true";
    let output = run(&target, script).output();
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(
        (lines[1], lines[3], lines[4]),
        ("127", "127", "echo remote"),
        "{output}"
    );
    let missing = Notice::RemoteProgram {
        path: "/remote-files/tool".into(),
    };
    let notices = target.notices.lock().unwrap();
    assert!(!notices.is_empty());
    assert!(
        notices.iter().all(|notice| *notice == missing),
        "{notices:?}"
    );
}

#[test]
fn chroot_has_no_remote_files() {
    let program = programs::c("other_root");
    let target = Target::new();
    target.write("file", "");
    let folder = tempfile::tempdir().unwrap();
    let ended = run(
        &target,
        &format!("{} {}", program.display(), folder.path().display()),
    );
    if ended.status.code() == Some(77) {
        println!("skipped: chroot is not permitted on this machine");
        return;
    }
    let expected = "before: there\na remote root: refused\ninside: not there\na child of it: not there\noutside: there\n";
    assert_eq!(ended.output(), expected);
}

#[test]
fn descriptors_are_lowest_free_and_respect_limit() {
    let program = programs::c("descriptors");
    let target = Target::new();
    target.write("file", "x");
    let script = format!("{} /remote-files/file", program.display());
    assert_eq!(
        run(&target, &script).output(),
        "0 3 4 5 6 7 Too many open files\n"
    );
}
