//! The end of a session: exit codes, signals, job control.

use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;

use nix::sys::signal::Signal;

use crate::support::{
    ProcessOutput, RunningSession, Standin, Target, children_of, is_alive, wait_until,
};
use crate::terminal::Terminal;

#[test]
fn the_exit_code_is_that_of_the_program() {
    let (standin, target) = (Standin::new(), Target::new());
    let check = |command: &[&str], expected: i32| {
        let target = target.name();
        let arguments = ["exec", "-t", &target, "--"];
        standin
            .run(arguments.iter().chain(command))
            .expect(expected)
            .status
    };
    check(&["true"], 0);
    check(&["bash", "-c", "exit 7"], 7);
    check(&["bash", "-c", "exit 255"], 255);
    check(&["no-such-program"], 127);
    check(&["/no/such/program"], 127);
    check(&["/etc/passwd"], 126);
    // `standin` ends by the same signal, so that the calling shell sees the same status as without it.
    for signal in [
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGKILL,
        Signal::SIGSEGV,
        Signal::SIGABRT,
    ] {
        let number = signal as i32;
        let status = check(&["bash", "-c", &format!("kill -{number} $$")], 128 + number);
        assert_eq!(status.signal(), Some(number));
        assert!(!status.core_dumped());
    }
}

#[test]
fn signals_are_forwarded_to_the_program() {
    let (standin, target) = (Standin::new(), Target::new());
    for signal in [
        Signal::SIGHUP,
        Signal::SIGINT,
        Signal::SIGQUIT,
        Signal::SIGTERM,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
    ] {
        let script = format!(
            "trap 'echo got; exit 5' {}; echo ready >&2; while :; do sleep 0.02; done",
            signal as i32
        );
        let mut command = standin.session(&target.name(), &[], &script);
        command.stdout(Stdio::piped());
        let mut session = RunningSession::start(command);
        session.wait_for_output("ready");
        session.signal(signal);
        let ended = session.wait();
        ended.expect(5);
        assert_eq!(ended.stdout, "got\n", "{signal}");
    }
}

#[test]
fn a_signal_that_the_program_does_not_handle_ends_both() {
    let (standin, target) = (Standin::new(), Target::new());
    let mut session =
        RunningSession::start(standin.session(&target.name(), &[], "echo ready >&2; sleep 3600"));
    session.wait_for_output("ready");
    let agent = session.agent();
    session.signal(Signal::SIGTERM);
    let ended = session.wait();
    assert_eq!(ended.status.signal(), Some(15));
    assert!(!is_alive(agent), "the agent still runs");
}

#[test]
fn the_program_starts_with_no_signal_blocked() {
    let (standin, target) = (Standin::new(), Target::new());
    let ended = ProcessOutput::from(
        standin
            .session(&target.name(), &[], "grep SigBlk /proc/self/status")
            .output()
            .unwrap(),
    );
    assert_eq!(ended.stdout, "SigBlk:\t0000000000000000\n");
}

#[test]
fn no_process_remains_after_standin_is_killed() {
    let (standin, target) = (Standin::new(), Target::new());
    let script = "sleep 3600 & setsid sleep 3600 & echo ready >&2; wait";
    let mut session = RunningSession::start(standin.session(&target.name(), &[], script));
    session.wait_for_output("ready");
    let mut tree = vec![session.id()];
    let mut next = 0;
    while next < tree.len() {
        tree.extend(children_of(tree[next]));
        next += 1;
    }
    // Supervisor, agent, watcher, shell and two children.
    assert!(tree.len() >= 6, "{tree:?}");
    session.signal(Signal::SIGKILL);
    session.wait();
    wait_until("all processes end", || {
        !tree.iter().any(|process| is_alive(*process))
    });
}

#[test]
fn ctrl_c_reaches_the_program_and_the_session_continues() {
    let (standin, target) = (Standin::new(), Target::new());
    let script = format!(
        "$STANDIN exec -t {} -- bash -c 'trap \"caught=1\" INT; echo ready; until test \"$caught\"; do sleep 0.02; done; \
         echo interrupted; cat /etc/hostname >/dev/null && echo still there; exit 6'",
        target.name()
    );
    let mut terminal = Terminal::start(&standin, &script, &[]);
    terminal.wait_for_output("ready\r\n");
    terminal.press("\x03");
    let (shown, code) = terminal.wait();
    assert_eq!(code, Some(6), "{shown}");
    assert!(shown.contains("interrupted\r\nstill there\r\n"), "{shown}");
    assert!(!shown.contains("the agent is lost"), "{shown}");
}

#[test]
fn ctrl_z_stops_the_program_and_standin_and_fg_continues_both() {
    let (standin, target) = (Standin::new(), Target::new());
    let script = format!(
        "set -m; $STANDIN exec -t {} -- bash -c 'echo ready; while ! test -e go; do sleep 0.02; done; exit 4'; \
         echo stopped=$?; touch go; fg >/dev/null; echo ended=$?",
        target.name()
    );
    let mut terminal = Terminal::start(&standin, &script, &[]);
    terminal.wait_for_output("ready\r\n");
    terminal.press("\x1a");
    terminal.wait_for_output("stopped=148");
    let (shown, _) = terminal.wait();
    assert!(shown.contains("ended=4"), "{shown}");
}
