//! Connections and datagrams to addresses that only the target reaches.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use interceptor::Notice;

use crate::programs;
use crate::target::{Target, run, shell, wait_until};

/// Runs one function of the Python program. The gate is opened when it prints `waiting`.
fn check(name: &str, expected: &str) {
    check_program("outgoing.py", name, expected);
}

pub(crate) fn check_program(program: &str, name: &str, expected: &str) {
    check_with(&Target::new(), program, name, expected);
}

fn check_with(target: &Arc<Target>, program: &str, name: &str, expected: &str) {
    programs::require("python3");
    target.write("file", "remote");
    let program = programs::source(program);
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("output");
    let script = format!("python3 -u {} {name}", program.display());
    let mut supervised = shell(&script, &output)
        .start(Arc::clone(target) as _)
        .unwrap();
    let read = || std::fs::read_to_string(&output).unwrap_or_default();
    if expected.contains("waiting") {
        wait_until("the program waits", || {
            read().contains("waiting") || read().contains("Error")
        });
        target.open_gate();
    }
    let status = supervised.wait().unwrap();
    assert_eq!(read(), expected);
    assert!(status.success());
}

#[test]
fn stream_has_remote_addresses_and_data() {
    check(
        "tcp",
        "('198.51.100.7', 7) ('10.1.2.3', 54321)\nHELLO\nend b''\n",
    );
}

#[test]
fn streams_work_over_ipv6() {
    check(
        "tcp6",
        "('2001:db8::7', 7, 0, 0)\nHELLO\n('::ffff:198.51.100.7', 7) ('::ffff:10.1.2.3', 54321)\nHELLO\n",
    );
}

#[test]
fn remote_errors_are_reported() {
    check("refused", "ECONNREFUSED\nEHOSTUNREACH\nHELLO\nEISCONN\n");
}

#[test]
fn nonblocking_socket_becomes_writable_when_connected() {
    check(
        "nonblocking",
        "EINPROGRESS\nnot writable True\nEALREADY\nENOTCONN\nerror 0\nwaiting\nwritable True\nerror 0\n\
         ('198.51.100.9', 7) ('10.1.2.3', 54321)\nbuffer True\nHELLO\nbig True\n",
    );
}

#[test]
fn nonblocking_socket_reports_failure() {
    check(
        "nonblocking_refused",
        "EINPROGRESS\nnot writable True\nwaiting\nerror True\nECONNREFUSED\n0\nECONNABORTED\nHELLO\n",
    );
}

#[test]
fn send_timeout_does_not_abort_connection() {
    check(
        "send_timeout",
        "EINPROGRESS\nwaiting\nwritable True\nHELLO\n",
    );
}

#[test]
fn unix_sockets_by_path() {
    check("unix", "/remote-files/echo.sock\nHELLO\n");
}

#[test]
fn unix_packets_keep_boundaries() {
    check("unix_packets", "b'ONE' b'TWO'\n");
}

#[test]
fn relative_unix_path_uses_working_directory() {
    let target = Target::new();
    std::fs::create_dir(target.path("folder")).unwrap();
    check_with(
        &target,
        "outgoing.py",
        "unix_relative",
        &("/remote-files/echo.sock\nHELLO\n".repeat(2) + "True\n"),
    );
}

#[test]
fn bind_to_remote_path_is_local_and_reported() {
    let target = Target::new();
    check_with(&target, "outgoing.py", "unix_bound", "ENOENT\n");
    let path = "/remote-files/made.sock".into();
    assert_eq!(
        *target.notices.lock().unwrap(),
        [Notice::LocalUnixSocket { path }]
    );
}

#[test]
fn refused_unix_socket() {
    check("unix_refused", "ENOENT\n");
}

#[test]
fn local_connections_are_unchanged() {
    check("local", "True True\nb'x' True\n2 b'ab'\n");
}

#[test]
fn connected_and_unconnected_datagrams() {
    check(
        "udp",
        "('198.51.100.7', 7) ('10.1.2.3', 54321)\nb'ONE'\n(b'TWO', ('198.51.100.7', 7))\n\
         (b'THREE', [], 0, ('198.51.100.7', 7))\n4 (b'FOUR', ('198.51.100.7', 7))\n\
         3 (b'SIX', [], 0, ('198.51.100.7', 7))\n60000 True\n5 (b'SEVEN', ('2001:db8::7', 7, 0, 0))\n\
         (b'', ('198.51.100.7', 7))\nEAGAIN\n",
    );
}

#[test]
fn many_concurrent_connections() {
    check("many", "done\n");
}

#[test]
fn slow_connection_does_not_delay_others() {
    check(
        "slow_does_not_delay",
        &format!("{}True\nwaiting\n", "HELLO\n".repeat(50)),
    );
}

#[test]
fn shell_connects() {
    let target = Target::new();
    let script = "exec 3<>/dev/tcp/198.51.100.7/7; echo hi >&3; read x <&3; echo $x
        exec 4<>/dev/udp/198.51.100.7/7; echo there >&4; dd bs=100 count=1 status=none <&4; echo bye >&4";
    let output = run(&target, script).output();
    assert!(output.starts_with("HI\nTHERE\n"), "{output}");
    assert!(target.established.load(Ordering::SeqCst) >= 2);
}
