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
    programs::require("gdb");
    let script = "gdb -batch -ex run -ex 'info inferiors' --args cat /remote-files/file </dev/null 2>/dev/null | grep -c '^remote$'";
    assert_eq!(run(&target(), script).output(), "1\n");
}

/// Breakpoints and a backtrace between intercepted calls; the program then continues.
#[test]
fn gdb_breaks_and_continues() {
    let program = programs::c_with("debugged", "gcc", &["-g", "-O0"]);
    programs::require("gdb");
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

/// Attaches from outside to a program that is already supervised.
#[test]
#[ignore = "needs root"]
fn gdb_attaches_and_detaches() {
    let program = programs::c_with("debugged", "gcc", &["-g", "-O0"]);
    programs::require("gdb");
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
    let trace = String::from_utf8_lossy(&gdb.stdout).into_owned();
    assert!(trace.contains("#0  leaf (number=1)"), "{trace}");
    target.write("stop", "");
    assert!(supervised.wait().unwrap().success());
    assert_eq!(std::fs::read_to_string(output).unwrap(), "wrong 0\n");
}

#[test]
fn strace_follows_a_tree() {
    programs::require("strace");
    let script =
        "strace -f -qq -e trace=openat -o /remote-files/trace sh -c 'cat /remote-files/file; true'
        grep -c 'openat(.*\"/remote-files/file\".* = 3' /remote-files/trace";
    assert_eq!(run(&target(), script).output(), "remote\n1\n");
}

#[test]
fn node_can_be_inspected() {
    programs::require("node");
    let program = programs::source("inspected.js");
    let script = format!(
        "node --inspect=127.0.0.1:0 {} 2>/dev/null",
        program.display()
    );
    assert_eq!(run(&target(), &script).output(), "true\n");
}

/// The distribution's delve is too old for current Go; `cargo xtask test` builds one, and names it here.
#[test]
#[ignore = "needs delve"]
fn delve_runs_a_program() {
    let delve = std::env::var("STANDIN_DELVE").unwrap_or_else(|_| "dlv".to_owned());
    programs::require(&delve);
    let program = programs::go("tour");
    let script = format!(
        "export GREETING=hello; printf 'break main.main\\ncontinue\\nstack\\ncontinue\\nquit\\n' |
            {delve} exec --check-go-version=false --allow-non-terminal-interactive=true {} 2>&1",
        program.display()
    );
    let target = target();
    target.write("list/a", "");
    let output = run(&target, &script).output;
    assert!(output.contains("> [Breakpoint 1] main.main()"), "{output}");
    assert!(output.contains("packet PACKET 198.51.100.7:7"), "{output}");
}
