//! Start, exit codes, signals and the end of all processes.

use std::io::BufRead;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Stdio;
use std::sync::Arc;

use interceptor::{Errno, Error, Launch, Notice};

use crate::environments::supervisor_command;
use crate::programs;
use crate::target::{Target, is_alive, run, shell, wait_until};

#[test]
fn exit_status_is_reported() {
    let target = Target::new();
    for code in [0, 1, 42, 255] {
        let ended = run(&target, &format!("exit {code}"));
        assert_eq!(ended.status.code(), Some(code));
    }
    for signal in [1, 2, 6, 9, 15] {
        let ended = run(
            &target,
            &format!("ulimit -c 0; kill -{signal} $$; sleep 100"),
        );
        assert_eq!(ended.status.signal(), Some(signal));
    }
}

#[test]
fn signal_is_forwarded() {
    let target = Target::new();
    let folder = tempfile::tempdir().unwrap();
    let ready = folder.path().join("ready");
    let script = format!(
        "trap 'echo got it; exit 7' TERM; touch {}; while :; do sleep 0.01; done",
        ready.display()
    );
    let output = folder.path().join("output");
    let mut supervised = shell(&script, &output).start(target).unwrap();
    wait_until("the script is ready", || ready.exists());
    supervised.signal(15).unwrap();
    assert_eq!(supervised.wait().unwrap().code(), Some(7));
    assert_eq!(std::fs::read_to_string(output).unwrap(), "got it\n");
    assert_eq!(supervised.signal(15), Err(Errno::ESRCH));
}

#[test]
fn environment_is_exact() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("output");
    let large = "x".repeat(100_000);
    let mut supervised = Launch::new("/bin/sh")
        .arguments(["-c", "exec env >$OUT"])
        .environment([
            ("OUT", output.to_str().unwrap()),
            ("LARGE", &large),
            ("EMPTY", ""),
        ])
        .start(Target::new())
        .unwrap();
    assert!(supervised.wait().unwrap().success());
    let text = std::fs::read_to_string(output.clone()).unwrap();
    let mut names: Vec<_> = text
        .lines()
        .map(|line| line.split('=').next().unwrap())
        .collect();
    names.sort_unstable();
    // The shell adds the last one.
    assert_eq!(names, ["EMPTY", "LARGE", "OUT", "PWD"]);
    assert!(text.contains(&large));
}

#[test]
fn prepared_program_waits_for_environment() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("output");
    let script = format!(
        "echo $GREETING; cat /remote-files/file; exec >&-; exit 5 # {}",
        "x".repeat(1000)
    );
    let launch = || {
        let script = format!("exec >'{}' 2>&1\n{script}", output.display());
        Launch::new("bash").arguments(["-c", &script])
    };
    let prepared = launch().prepare().unwrap();
    let target = Target::new();
    target.write("file", "remote\n");
    let large = "x".repeat(100_000);
    let environment = [
        ("GREETING", "hello"),
        ("PATH", "/usr/bin:/bin"),
        ("LARGE", &large),
    ];
    let mut supervised = prepared.start(environment, target).unwrap();
    assert_eq!(supervised.wait().unwrap().code(), Some(5));
    assert_eq!(std::fs::read_to_string(&output).unwrap(), "hello\nremote\n");
    // A prepared program that is never started leaves nothing behind.
    std::fs::remove_file(&output).unwrap();
    drop(launch().prepare().unwrap());
    assert!(!output.exists());
    // An execution error is reported by `start`; everything that can be checked earlier is reported by `prepare`.
    let prepared = Launch::new("/no/such/program").prepare().unwrap();
    let error = prepared.start([("A", "B")], Target::new()).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Execute {
                source: Errno::ENOENT,
                ..
            }
        ),
        "{error:?}"
    );
    let error = Launch::new("true")
        .directory("/no/such/directory")
        .prepare()
        .unwrap_err();
    assert!(
        matches!(
            error,
            Error::Directory {
                source: Errno::ENOENT,
                ..
            }
        ),
        "{error:?}"
    );
}

#[test]
fn start_errors_are_specific() {
    let start = |launch: Launch| launch.start(Target::new()).unwrap_err();
    let error = start(Launch::new("no-such-program-anywhere"));
    assert!(matches!(error, Error::ProgramNotFound(_)), "{error:?}");
    let error = start(Launch::new("/no/such/program"));
    assert!(
        matches!(
            error,
            Error::Execute {
                source: Errno::ENOENT,
                ..
            }
        ),
        "{error:?}"
    );
    let error = start(Launch::new("/etc/passwd"));
    assert!(
        matches!(
            error,
            Error::Execute {
                source: Errno::EACCES,
                ..
            }
        ),
        "{error:?}"
    );
    let error = start(Launch::new("true").directory("/no/such/directory"));
    assert!(
        matches!(
            error,
            Error::Directory {
                source: Errno::ENOENT,
                ..
            }
        ),
        "{error:?}"
    );
    let error = start(Launch::new("true").arguments(["a\0b"]));
    assert!(matches!(error, Error::ZeroByte("an argument")), "{error:?}");
    assert!(!error.hint().is_empty());
}

#[test]
fn script_without_shebang_is_run_by_shell() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script");
    std::fs::write(&script, "exit $1\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut supervised = Launch::new(script)
        .arguments(["9"])
        .start(Target::new())
        .unwrap();
    assert_eq!(supervised.wait().unwrap().code(), Some(9));
}

#[test]
fn descendants_end_with_the_session() {
    let target = Target::new();
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("output");
    // A child, an orphaned grandchild, and one in its own session that ignores signals.
    let script = "sleep 1000 & echo $!
        (sleep 1000 & echo $!)
        setsid bash -c 'trap \"\" TERM HUP INT; echo $BASHPID; sleep 1000 & echo $!; wait' &
        while [ $(wc -l <$OUT) -lt 4 ]; do sleep 0.01; done";
    let script = script.replace("$OUT", &format!("'{}'", output.display()));
    let mut supervised = shell(&script, &output).start(target).unwrap();
    assert!(supervised.wait().unwrap().success());
    let processes = std::fs::read_to_string(&output).unwrap();
    assert_eq!(processes.lines().count(), 4);
    assert!(processes.lines().all(is_alive), "they outlive the program");
    drop(supervised);
    assert!(
        !processes.lines().any(is_alive),
        "they do not outlive the session"
    );
}

#[test]
fn all_processes_end_when_supervisor_is_killed() {
    let binary = std::env::current_exe().unwrap();
    let script = "setsid sleep 1000 & echo pid $!; (sleep 1000 & echo pid $!); echo pid $$; echo pid $PPID; cat /etc/hostname >/dev/null; echo ready; wait";
    let mut supervisor = supervisor_command(&binary, script)
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let lines = std::io::BufReader::new(supervisor.stdout.take().unwrap()).lines();
    let lines: Vec<String> = lines
        .map(Result::unwrap)
        .take_while(|line| line != "ready")
        .collect();
    let processes: Vec<&str> = lines
        .iter()
        .filter_map(|line| line.strip_prefix("pid "))
        .collect();
    assert_eq!(processes.len(), 4, "{lines:?}");
    assert!(processes.iter().all(|process| is_alive(process)));
    supervisor.kill().unwrap();
    supervisor.wait().unwrap();
    wait_until("all processes ended", || {
        !processes.iter().any(|process| is_alive(process))
    });
}

#[test]
fn io_uring_is_refused_unless_allowed() {
    let program = programs::c("ring");
    let result = |allow| {
        let mut supervised = Launch::new(&program)
            .allow_io_uring(allow)
            .start(Target::new())
            .unwrap();
        supervised.wait().unwrap().code().unwrap()
    };
    let enosys = 38;
    assert_eq!(result(false), enosys);
    assert_ne!(result(true), enosys);
}

#[test]
fn foreign_architecture_is_local_and_reported() {
    let program = programs::c("foreign");
    let target = Target::new();
    let mut supervised = Launch::new(&program)
        .start(Arc::clone(&target) as _)
        .unwrap();
    let code = supervised.wait().unwrap().code();
    if code == Some(77) {
        println!("skipped: this kernel does not support 32-bit calls");
        return;
    }
    assert_eq!(code, Some(0));
    let process = supervised.process();
    assert_eq!(
        *target.notices.lock().unwrap(),
        [Notice::ForeignArchitecture { process }]
    );
}
