//! Starts `target.sh` in new namespaces, which needs root. Tests of other crates use this file, too.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

const SCRIPT: &str = include_str!("target.sh");

/// Returns the process that owns the namespaces, and the target's PID. Killing the process ends both.
pub(crate) fn start() -> (Child, u32) {
    let mut namespaces = Command::new("unshare")
        .args(["--net", "--mount", "--uts", "--pid"])
        .args(["--fork", "--kill-child", "sh", "-c", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("unshare can be started");
    let mut line = String::new();
    let stdout = namespaces.stdout.as_mut().expect("it is piped");
    BufReader::new(stdout)
        .read_line(&mut line)
        .expect("the target writes a line");
    assert_eq!(line, "ready\n");
    let children = format!("/proc/{0}/task/{0}/children", namespaces.id());
    let children = fs::read_to_string(children).expect("it has a child");
    let target = children.split_whitespace().next().expect("a child");
    (namespaces, target.parse().expect("a number"))
}
