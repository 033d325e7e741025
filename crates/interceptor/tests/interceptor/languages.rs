//! The same tour in many languages: environment, files, host name, connections.

use std::path::Path;
use std::sync::Arc;

use crate::programs;
use crate::target::{ProgramExit, Target, run};

const TOUR: &str = "env hello\nread content\nlist [a b]\nmissing true\nwrite ok\nhostname checkout-7d9f\n\
    tcp HELLO\npacket PACKET 198.51.100.7:7\n";

fn tour(command: &str) -> (Arc<Target>, ProgramExit) {
    let target = Target::new();
    target.write("file", "content");
    target.write("list/a", "");
    target.write("list/b", "");
    let ended = run(&target, &format!("export GREETING=hello; {command}"));
    (target, ended)
}

fn check(command: &str) {
    let (target, ended) = tour(command);
    assert_eq!(ended.output(), TOUR);
    assert_eq!(target.read("written"), "written");
}

fn check_program(program: &Path) {
    check(&program.display().to_string());
}

fn check_script(interpreter: &str, script: &str) {
    programs::require(interpreter);
    let script = programs::source(script);
    check(&format!("{interpreter} {}", script.display()));
}

#[test]
fn c_dynamic() {
    check_program(&programs::c("tour"));
}

#[test]
fn c_static() {
    check_program(&programs::c_with("tour", "gcc", &["-static"]));
}

#[test]
fn c_musl_static() {
    check_program(&programs::c_with("tour", "musl-gcc", &["-static"]));
}

#[test]
fn python() {
    check_script("python3", "tour.py");
}

#[test]
fn node() {
    check_script("node", "tour.js");
}

#[test]
fn perl() {
    check_script("perl", "tour.pl");
}

#[test]
fn java() {
    // Executed from source, which requires a JDK.
    programs::require("javac");
    let (_, ended) = tour(&format!("java {}", programs::source("Tour.java").display()));
    assert_eq!(ended.output(), TOUR);
}

#[test]
fn go_static() {
    check_go(&programs::go("tour"));
}

fn check_go(program: &Path) {
    let (target, ended) = tour(&program.display().to_string());
    let expected = "env hello\nread content\nlist [a b]\nmissing true\nwrite ok\nhostname checkout-7d9f\n\
        connect ok\ntcp HELLO\npeer 198.51.100.7:7\nend true\n\
        refused dial tcp 198.51.100.7:9: connect: connection refused\n\
        udp connect ok\nudp HELLO\nudp listen ok\npacket PACKET 198.51.100.7:7\n";
    assert_eq!(ended.output(), expected);
    assert_eq!(target.read("written"), "written");
}

#[test]
fn process_tree() {
    let go = programs::go("tour");
    programs::require("python3");
    let start = "import subprocess, sys; sys.exit(subprocess.run([sys.argv[1]]).returncode)";
    let (_, ended) = tour(&format!("python3 -c '{start}' {} | cat", go.display()));
    assert!(ended.output().contains("packet PACKET 198.51.100.7:7\n"));
}
