//! All kinds of processes and threads, each of which uses remote files.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use interceptor::{Errno, Notice};

use crate::programs;
use crate::target::{Target, run, shell};

#[test]
fn every_kind_of_child_is_supervised() {
    let program = programs::c("children");
    let target = Target::new();
    target.write("file", "remote\n");
    let expected = "fork ok\nvfork ok\nposix_spawn ok\nclone ok\nclone3 ok\nsetsid ok\ndaemon ok\nclosed stdio ok\n\
        execve of a thread ok\nexecveat ok\neverything closed ok\nthreads ok\n";
    assert_eq!(
        run(&target, &program.display().to_string()).output(),
        expected
    );
}

/// A program that is skipped, and a directory that exists on both sides with different files.
struct SkippedProgram {
    target: Arc<Target>,
    /// Has the program, as `skipped-program`.
    programs: tempfile::TempDir,
    both: tempfile::TempDir,
}

impl SkippedProgram {
    fn new(program: &Path) -> Self {
        let this = Self {
            target: Target::new(),
            programs: tempfile::tempdir().unwrap(),
            both: tempfile::tempdir().unwrap(),
        };
        for folder in [&this.programs, &this.both] {
            // All users can enter it.
            let mode = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(folder.path(), mode).unwrap();
            std::fs::copy(program, folder.path().join("skipped-program")).unwrap();
        }
        std::fs::write(this.directory().join("file"), "here").unwrap();
        this.target.has_also(&this.directory());
        this.target.write("file", "there");
        this
    }

    fn directory(&self) -> PathBuf {
        self.both.path().canonicalize().unwrap()
    }

    fn path(&self) -> PathBuf {
        self.programs.path().join("skipped-program")
    }

    fn run(&self, script: &str) -> String {
        let script = format!(
            "skipped='{}'; both='{}'\n{script}",
            self.path().display(),
            self.directory().display()
        );
        run(&self.target, &script).output()
    }

    /// The output of `execute` in a directory.
    fn execute(&self, directory: &str) -> Vec<String> {
        let execute = programs::c("execute");
        let script = format!("{} {directory} $skipped", execute.display());
        self.run(&script).lines().map(str::to_owned).collect()
    }

    fn notices(&self) -> Vec<Notice> {
        self.target.notices.lock().unwrap().clone()
    }

    fn refused(&self, directory: impl Into<PathBuf>, errno: Errno) -> Notice {
        Notice::NoLocalDirectory {
            program: self.path(),
            directory: directory.into(),
            errno,
        }
    }
}

/// The names that `execute` gives to what it does, in its order.
const EXEC_CALLS: [&str; 7] = [
    "execve",
    "vfork",
    "posix_spawn",
    "thread",
    "execveat",
    "execvp",
    "relative",
];

#[test]
fn skipped_program_runs_in_the_same_local_directory() {
    let skipped = SkippedProgram::new(&programs::c("where"));
    let directory = skipped.directory();
    let expected = |what: &str| {
        // Nothing traces it, and its signal mask is that of its parent.
        format!("{what}: {} here 0 0000000000000800", directory.display())
    };
    let mut lines: Vec<String> = EXEC_CALLS.map(expected).to_vec();
    lines.insert(3, "the parent is still there: 1".to_owned());
    for _ in 0..10 {
        lines.extend(["signals", "job control"].map(expected));
    }
    lines.push("missing program: No such file or directory, still there".to_owned());
    lines.push("traced: Object is remote, still there".to_owned());
    assert_eq!(skipped.execute(&directory.display().to_string()), lines);
    let traced = skipped.refused(&directory, Errno::EPERM);
    assert_eq!(skipped.notices(), [traced]);
}

#[test]
fn skipped_program_is_not_executed_without_a_local_directory() {
    let skipped = SkippedProgram::new(&programs::c("where"));
    std::fs::create_dir(skipped.target.path("only")).unwrap();
    skipped.target.write("only/file", "there");
    let lines = skipped.execute("/remote-files/only");
    let refused = |what: &str| format!("{what}: Object is remote, still there");
    let mut expected: Vec<String> = EXEC_CALLS.map(refused).to_vec();
    expected[1] = "vfork: failed".to_owned();
    expected[2] = "posix_spawn: Object is remote".to_owned();
    // There is no such program on this machine.
    expected[6] = "relative: No such file or directory, still there".to_owned();
    expected.insert(3, "the parent is still there: 1".to_owned());
    for _ in 0..10 {
        expected.extend(["signals", "job control"].map(refused));
    }
    expected.push("missing program: No such file or directory, still there".to_owned());
    expected.push("traced: Object is remote, still there".to_owned());
    assert_eq!(lines, expected);
    let mut notices = vec![skipped.refused("/remote-files/only", Errno::ENOENT); 26];
    notices.push(skipped.refused("/remote-files/only", Errno::EPERM));
    assert_eq!(skipped.notices(), notices);
}

#[test]
fn programs_below_a_skipped_one_are_in_the_session_again() {
    let skipped = SkippedProgram::new(Path::new("/bin/bash"));
    let directory = skipped.directory();
    std::fs::create_dir(directory.join("inner")).unwrap();
    std::fs::write(directory.join("inner/file"), "inner here").unwrap();
    skipped.target.write("inner/file", "inner there");
    let output = skipped.run(
        "cd $both/inner
        $skipped -c 'pwd -P; read x <file; echo $x; cat file; echo
            cd ..; read x <file; echo $x; cat file; echo; bash -c \"pwd -P; cat file\"; echo'
        pwd -P; cat file; echo
        cd /; $skipped -c 'pwd -P'",
    );
    let (outer, inner) = (directory.display(), directory.join("inner"));
    let inner = inner.display();
    assert_eq!(
        output,
        format!(
            "{inner}\ninner here\ninner there\nhere\nthere\n{outer}\nthere\n{inner}\ninner there\n/\n"
        )
    );
    assert_eq!(skipped.notices(), []);
}

/// The local directory is found by the kernel, so links and paths that are mapped work as without a session.
#[test]
fn skipped_program_enters_links_and_mapped_directories() {
    let skipped = SkippedProgram::new(&programs::c("where"));
    let elsewhere = tempfile::tempdir().unwrap();
    let elsewhere = elsewhere.path().canonicalize().unwrap();
    std::fs::write(elsewhere.join("file"), "elsewhere").unwrap();
    std::os::unix::fs::symlink(&elsewhere, skipped.directory().join("link")).unwrap();
    std::fs::create_dir(skipped.target.path("link")).unwrap();
    let renamed = skipped.target.root.path().join("renamed-files");
    std::fs::write(renamed.join("file"), "renamed").unwrap();
    std::fs::write(skipped.directory().join("plain"), "").unwrap();
    std::fs::create_dir(skipped.target.path("plain")).unwrap();
    let output = skipped.run(
        "cd $both/link; $skipped link
        cd /renamed-files; $skipped renamed
        cd $both/plain; $skipped plain || true",
    );
    let renamed = renamed.canonicalize().unwrap();
    let expected = format!(
        "link: {} elsewhere 0 0000000000000000\nrenamed: {} renamed 0 0000000000000000\n",
        elsewhere.display(),
        renamed.display()
    );
    assert!(output.starts_with(&expected), "{output}");
    let plain = skipped.directory().join("plain");
    assert_eq!(skipped.notices(), [skipped.refused(plain, Errno::ENOTDIR)]);
}

/// On kernels before Linux 5.19, tracing a thread interrupts its call.
#[test]
fn skipped_program_changes_its_directory_on_old_kernels() {
    let skipped = SkippedProgram::new(&programs::c("where"));
    let output = skipped.programs.path().join("output");
    let script = format!(
        "for i in 1 2 3 4 5; do (cd '{}'; '{}' $i); done",
        skipped.directory().display(),
        skipped.path().display()
    );
    let mut supervised = shell(&script, &output)
        .wait_killable(false)
        .start(Arc::clone(&skipped.target) as _)
        .unwrap();
    assert!(supervised.wait().unwrap().success());
    let directory = skipped.directory();
    let line = |number| {
        format!(
            "{number}: {} here 0 0000000000000000\n",
            directory.display()
        )
    };
    let expected: String = (1..=5).map(line).collect();
    assert_eq!(std::fs::read_to_string(&output).unwrap(), expected);
}

/// The caller itself enters the directory, with its own permissions.
#[test]
#[ignore = "needs root"]
fn skipped_program_enters_only_what_its_user_may_enter() {
    let skipped = SkippedProgram::new(&programs::c("where"));
    std::fs::create_dir_all(skipped.directory().join("closed/open")).unwrap();
    let closed = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(skipped.directory().join("closed"), closed).unwrap();
    std::fs::create_dir_all(skipped.target.path("closed/open")).unwrap();
    let output = skipped.run(
        "cd $both/closed/open; $skipped root
        setpriv --reuid 65534 --clear-groups bash -c \"$skipped other; true\"",
    );
    let inner = skipped.directory().join("closed/open");
    let expected = format!(
        "root: {} No such file or directory 0 0000000000000000\n",
        inner.display()
    );
    assert!(output.starts_with(&expected), "{output}");
    assert!(!output.contains("other:"), "{output}");
    assert_eq!(skipped.notices(), [skipped.refused(inner, Errno::EACCES)]);
}

/// A caller that is killed while we trace it blocks nothing.
#[test]
fn callers_that_are_killed_do_not_block_others() {
    let skipped = SkippedProgram::new(&programs::c("where"));
    let output = skipped.run(
        "cd $both
        for i in {1..100}; do ($skipped >/dev/null) & for ((j = 0; j < i; j++)); do :; done; kill -9 $!; done
        wait; $skipped end",
    );
    let expected = format!("end: {} here 0 ", skipped.directory().display());
    assert!(output.contains(&expected), "{output}");
    assert_eq!(skipped.notices(), []);
}
