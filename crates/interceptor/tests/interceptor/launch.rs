//! Starting, exit codes, signals, the end of everything.

use std::io::BufRead;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Stdio;
use std::sync::Arc;

use interceptor::{Errno, Error, Launch, Notice};

use crate::programs;
use crate::surroundings::supervisor_command;
use crate::target::{Target, is_alive, run, shell, wait_until};

#[test]
fn exit_codes_and_signals_are_the_programs_own() {
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
fn a_signal_that_only_we_got_is_passed_on() {
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
fn the_environment_is_exactly_what_is_given() {
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
fn a_prepared_program_waits_for_its_environment() {
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
    // One that is never started leaves nothing.
    std::fs::remove_file(&output).unwrap();
    drop(launch().prepare().unwrap());
    assert!(!output.exists());
    // What cannot be executed is known when it is tried, and what can be known before, before.
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
fn what_cannot_be_started_says_why() {
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
fn a_script_without_interpreter_line_is_run_by_the_shell() {
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
    // A child, a grandchild whose parent is gone, and one in a session of its own that ignores what it can.
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
fn everything_ends_when_the_supervisor_is_killed() {
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
    wait_until("everything is gone", || {
        !processes.iter().any(|process| is_alive(process))
    });
}

#[test]
fn rings_are_refused_unless_allowed() {
    let Some(program) = programs::c("ring") else {
        return;
    };
    let answer = |allow| {
        let mut supervised = Launch::new(&program)
            .allow_io_uring(allow)
            .start(Target::new())
            .unwrap();
        supervised.wait().unwrap().code().unwrap()
    };
    let enosys = 38;
    assert_eq!(answer(false), enosys);
    assert_ne!(answer(true), enosys);
}

#[test]
fn programs_of_another_architecture_run_locally_and_are_named() {
    let Some(program) = programs::c("foreign") else {
        return;
    };
    let target = Target::new();
    let mut supervised = Launch::new(&program)
        .start(Arc::clone(&target) as _)
        .unwrap();
    let code = supervised.wait().unwrap().code();
    if code == Some(77) {
        println!("skipped: this kernel runs no 32-bit calls");
        return;
    }
    assert_eq!(code, Some(0));
    let process = supervised.process();
    assert_eq!(
        *target.notices.lock().unwrap(),
        [Notice::ForeignArchitecture { process }]
    );
}

#[test]
fn the_hostname_is_the_targets() {
    assert_eq!(
        run(&Target::new(), "hostname; uname -n").output(),
        "checkout-7d9f\ncheckout-7d9f\n"
    );
}
