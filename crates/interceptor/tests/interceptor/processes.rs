//! Every way to make a process or a thread, each with remote files below it.

use crate::programs;
use crate::target::{Target, run};

#[test]
fn every_kind_of_child_is_supervised() {
    let Some(program) = programs::c("children") else {
        return;
    };
    let target = Target::new();
    target.write("file", "remote\n");
    let expected = "fork ok\nvfork ok\nposix_spawn ok\nclone ok\nclone3 ok\nsetsid ok\ndaemon ok\nclosed stdio ok\nthreads ok\n";
    assert_eq!(
        run(&target, &program.display().to_string()).output(),
        expected
    );
}

#[test]
fn a_debugger_can_be_attached() {
    if !programs::is_there("gdb") {
        return;
    }
    let target = Target::new();
    target.write("file", "remote\n");
    let script = "gdb -batch -ex run -ex 'info inferiors' --args cat /remote-files/file </dev/null 2>/dev/null | grep -c '^remote$'";
    assert_eq!(run(&target, script).output(), "1\n");
}
