//! Signals, with and without `SA_RESTART`.

use std::sync::Arc;

use crate::programs;
use crate::target::{Target, shell, wait_until};

fn check(arguments: &str, expected: &str) {
    check_on(true, arguments, expected);
}

fn check_on(wait_killable: bool, arguments: &str, expected: &str) {
    assert_eq!(output_on(wait_killable, arguments), expected);
}

/// `wait_killable` is false to test the behaviour of kernels without this feature. On such a kernel it is always false.
fn output_on(wait_killable: bool, arguments: &str) -> String {
    let program = programs::c("signals");
    let target = Target::new();
    target.write("file", "remote");
    target.write("slow", "slowly");
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("output");
    let script = format!("{} {arguments}", program.display());
    let launch = shell(&script, &output).wait_killable(wait_killable);
    let mut supervised = launch.start(Arc::clone(&target) as _).unwrap();
    assert!(wait_killable || !supervised.wait_killable());
    let read = || std::fs::read_to_string(&output).unwrap_or_default();
    wait_until("the signals were sent", || read().contains("waiting"));
    target.open_gate();
    let status = supervised.wait().unwrap();
    assert!(status.success(), "{status} after: {}", read());
    read()
}

#[test]
fn connect_is_restarted() {
    check("connect restart", "waiting\nconnected, signals 1\nHELLO\n");
}

#[test]
fn interrupted_connect_continues() {
    check(
        "connect interrupt",
        "Interrupted system call, signals 1\nwaiting\nerror 0\nHELLO\n",
    );
}

#[test]
fn receiving_is_restarted() {
    check("receive restart", "ONE\nwaiting\nTWO, signals 1\n");
}

#[test]
fn receiving_is_interrupted() {
    check(
        "receive interrupt",
        "ONE\nInterrupted system call, signals 1\nwaiting\n",
    );
}

/// With `SA_RESTART`, as language runtimes install their handlers. Without it, there are some microseconds between the
/// call and its reception in which the kernel fails it with `EINTR`.
#[test]
fn uninterruptible_calls_are_not_interrupted() {
    check("files restart", "waiting\nfailed 0, signals 1\n");
}

#[test]
fn timer_does_not_interrupt_open() {
    check("timer restart", "waiting\nfailed 0\n");
}

#[test]
fn signals_do_not_interrupt_slow_open() {
    check("slow interrupt", "waiting\n6, signals 1\n");
}

#[test]
fn on_old_kernels_operations_are_not_repeated() {
    let output = output_on(false, "files restart");
    // Nearly all of the twenty signals hit a call. The kernel loses the response of one in a thousand of them.
    let possible = ["0", "1", "2"].map(|failed| format!("waiting\nfailed {failed}, signals 1\n"));
    assert!(possible.contains(&output), "{output}");
    check_on(false, "timer restart", "waiting\nfailed 0\n");
    check_on(false, "slow restart", "waiting\n6, signals 1\n");
    check_on(
        false,
        "slow interrupt",
        "open: Interrupted system call\n-1, signals 1\nwaiting\n",
    );
}

#[test]
fn on_old_kernels_connections_are_restarted() {
    check_on(
        false,
        "connect restart",
        "waiting\nconnected, signals 1\nHELLO\n",
    );
    check_on(
        false,
        "connect interrupt",
        "Interrupted system call, signals 1\nwaiting\nerror 0\nHELLO\n",
    );
    check_on(false, "receive restart", "ONE\nwaiting\nTWO, signals 1\n");
}

/// Kills and stops callers while a call waits for the target: a killed caller ends immediately, and a stopped one
/// continues in its call.
#[test]
fn kill_and_stop_do_not_wait_for_target() {
    let target = Target::new();
    target.write("slow", "slowly");
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("output");
    let script = "cat /remote-files/slow & one=$!
        cat /remote-files/slow & two=$!
        waits() { grep -q -E '^(openat|257|56) ' /proc/$1/syscall 2>/dev/null; }
        until waits $one && waits $two; do :; done
        kill -KILL $one; wait $one; echo $?
        kill -STOP $two
        echo stopped; read x </remote-files/file; kill -CONT $two
        echo waiting; wait $two; echo $?";
    target.write("file", "remote\n");
    let mut supervised = shell(script, &output)
        .start(Arc::clone(&target) as _)
        .unwrap();
    let read = || std::fs::read_to_string(&output).unwrap_or_default();
    wait_until("one is killed, the other stopped", || {
        read().contains("waiting")
    });
    target.open_gate();
    assert!(supervised.wait().unwrap().success());
    // The shell reports the killed process.
    let lines = read();
    let lines: Vec<_> = lines
        .lines()
        .filter(|line| !line.contains("Killed"))
        .collect();
    assert_eq!(lines, ["137", "stopped", "waiting", "slowly0"]);
}
