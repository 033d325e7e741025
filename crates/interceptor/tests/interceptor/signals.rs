//! Signals, with and without `SA_RESTART`.

use std::sync::Arc;

use crate::programs;
use crate::target::{Target, shell, wait_until};

fn check(arguments: &str, expected: &str) {
    let Some(program) = programs::c("signals") else {
        return;
    };
    let target = Target::new();
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("output");
    let script = format!("{} {arguments}", program.display());
    let launch = shell(&script, &output);
    let mut supervised = launch.start(Arc::clone(&target) as _).unwrap();
    if !supervised.signals_wait() {
        println!("skipped: signals do not wait for answers on this kernel");
        return;
    }
    let read = || std::fs::read_to_string(&output).unwrap_or_default();
    wait_until("the signals were sent", || read().contains("waiting"));
    target.open_gate();
    assert!(supervised.wait().unwrap().success());
    assert_eq!(read(), expected);
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
