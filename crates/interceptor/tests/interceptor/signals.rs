//! Signals, with and without `SA_RESTART`.

use std::sync::Arc;

use crate::programs;
use crate::target::{Target, shell, wait_until};

fn check(arguments: &str, expected: &str) {
    check_on(true, arguments, expected);
}

fn check_on(signals_wait: bool, arguments: &str, expected: &str) {
    if let Some(output) = output_on(signals_wait, arguments) {
        assert_eq!(output, expected);
    }
}

/// `signals_wait` is false for what happens on kernels that cannot do that.
fn output_on(signals_wait: bool, arguments: &str) -> Option<String> {
    let program = programs::c("signals")?;
    let target = Target::new();
    target.write("file", "remote");
    target.write("slow", "slowly");
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("output");
    let script = format!("{} {arguments}", program.display());
    let launch = shell(&script, &output).let_signals_wait(signals_wait);
    let mut supervised = launch.start(Arc::clone(&target) as _).unwrap();
    if supervised.signals_wait() != signals_wait {
        println!("skipped: signals do not wait for answers on this kernel");
        return None;
    }
    let read = || std::fs::read_to_string(&output).unwrap_or_default();
    wait_until("the signals were sent", || read().contains("waiting"));
    target.open_gate();
    let status = supervised.wait().unwrap();
    assert!(status.success(), "{status} after: {}", read());
    Some(read())
}

#[test]
fn connect_is_restarted() {
    check("connect restart", "waiting\nconnected, signals 1\nHELLO\n");
}

#[test]
fn connect_is_interrupted_and_goes_on() {
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

/// With `SA_RESTART`, as runtimes install their handlers. Without it there is a moment of some microseconds, between the
/// call and our receiving it, in which the kernel fails it with `EINTR`.
#[test]
fn what_is_never_interrupted_stays_so() {
    check("files restart", "waiting\nfailed 0, signals 1\n");
}

#[test]
fn a_timer_interrupts_no_open() {
    check("timer restart", "waiting\nfailed 0\n");
}

#[test]
fn signals_wait_for_a_slow_open() {
    check("slow interrupt", "waiting\n6, signals 1\n");
}

#[test]
fn on_old_kernels_what_was_done_is_not_done_again() {
    if let Some(output) = output_on(false, "files restart") {
        // Nearly all of the twenty signals hit a call. One in a thousand of them loses its answer inside of the kernel.
        let possible =
            ["0", "1", "2"].map(|failed| format!("waiting\nfailed {failed}, signals 1\n"));
        assert!(possible.contains(&output), "{output}");
    }
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

/// Killed and stopped while a call waits for the target: the caller is gone at once, and goes on where it was.
#[test]
fn killing_and_stopping_do_not_wait_for_the_target() {
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
    // The shell says that one was killed.
    let lines = read();
    let lines: Vec<_> = lines
        .lines()
        .filter(|line| !line.contains("Killed"))
        .collect();
    assert_eq!(lines, ["137", "stopped", "waiting", "slowly0"]);
}
