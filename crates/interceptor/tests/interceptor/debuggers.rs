//! Debuggers on programs under supervision, and under supervision themselves.

use std::process::{Command, Stdio};
use std::sync::Arc;

use crate::programs;
use crate::target::{Target, run, shell, wait_until};

fn target() -> Arc<Target> {
    let target = Target::new();
    target.write("file", "remote\n");
    target
}

#[test]
fn gdb_runs_a_program() {
    if !programs::is_there("gdb") {
        return;
    }
    let script = "gdb -batch -ex run -ex 'info inferiors' --args cat /remote-files/file </dev/null 2>/dev/null | grep -c '^remote$'";
    assert_eq!(run(&target(), script).output(), "1\n");
}

/// Breakpoints and a backtrace in the middle of calls that are caught; the program then goes on.
#[test]
fn gdb_stops_a_program_and_lets_it_go_on() {
    let program = programs::c_with("debugged", "gcc", &["-g", "-O0"]);
    let (true, Some(program)) = (programs::is_there("gdb"), program) else {
        return;
    };
    let script = format!(
        "gdb -batch -ex 'break leaf' -ex run -ex backtrace -ex finish -ex 'ignore 1 100' -ex continue \
            -ex 'info breakpoints' {} </dev/null 2>/dev/null",
        program.display()
    );
    let target = target();
    let output = run(&target, &script).output();
    let expected = [
        "#0  leaf (number=1)",
        " in main ()",
        "Value returned is $1 = 1",
        "breakpoint already hit 102 times",
    ];
    for part in expected {
        assert!(output.contains(part), "no {part:?} in {output}");
    }
}

/// From outside, onto a program that is already supervised.
#[test]
fn gdb_is_attached_and_detached() {
    let program = programs::c_with("debugged", "gcc", &["-g", "-O0"]);
    let (true, Some(program)) = (programs::is_there("gdb"), program) else {
        return;
    };
    let target = target();
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("output");
    let script = format!("exec {}", program.display());
    let mut supervised = shell(&script, &output)
        .start(Arc::clone(&target) as _)
        .unwrap();
    let process = supervised.process().to_string();
    let link = format!("/proc/{process}/exe");
    wait_until("the program runs", || {
        std::fs::read_link(&link).is_ok_and(|path| path == program)
    });
    let gdb = Command::new("gdb")
        .args([
            "-batch",
            "-p",
            &process,
            "-ex",
            "break leaf",
            "-ex",
            "continue",
        ])
        .args(["-ex", "backtrace", "-ex", "delete", "-ex", "detach"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&gdb.stdout).into_owned();
    if said.contains("ptrace: Operation not permitted") {
        println!("skipped: tracing is forbidden on this machine");
        return;
    }
    assert!(said.contains("#0  leaf (number=1)"), "{said}");
    target.write("stop", "");
    assert!(supervised.wait().unwrap().success());
    assert_eq!(std::fs::read_to_string(output).unwrap(), "wrong 0\n");
}

#[test]
fn strace_follows_a_tree() {
    if !programs::is_there("strace") {
        return;
    }
    let script =
        "strace -f -qq -e trace=openat -o /remote-files/trace sh -c 'cat /remote-files/file; true'
        grep -c 'openat(.*\"/remote-files/file\".* = 3' /remote-files/trace";
    assert_eq!(run(&target(), script).output(), "remote\n1\n");
}

#[test]
fn node_can_be_inspected() {
    if !programs::is_there("node") {
        return;
    }
    let program = programs::source("inspected.js");
    let script = format!(
        "node --inspect=127.0.0.1:0 {} 2>/dev/null",
        program.display()
    );
    assert_eq!(run(&target(), &script).output(), "true\n");
}

#[test]
fn delve_runs_a_program() {
    let (true, Some(program)) = (programs::is_there("dlv"), programs::go("tour")) else {
        return;
    };
    let script = format!(
        "export GREETING=hello; printf 'break main.main\\ncontinue\\nstack\\ncontinue\\nquit\\n' |
            dlv exec --check-go-version=false --allow-non-terminal-interactive=true {} 2>&1",
        program.display()
    );
    let target = target();
    target.write("list/a", "");
    let output = run(&target, &script).output;
    assert!(output.contains("> [Breakpoint 1] main.main()"), "{output}");
    assert!(output.contains("packet PACKET 198.51.100.7:7"), "{output}");
}
