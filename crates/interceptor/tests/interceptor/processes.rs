//! All kinds of processes and threads, each of which uses remote files.

use crate::programs;
use crate::target::{Target, run};

#[test]
fn every_kind_of_child_is_supervised() {
    let program = programs::c("children");
    let target = Target::new();
    target.write("file", "remote\n");
    let expected = "fork ok\nvfork ok\nposix_spawn ok\nclone ok\nclone3 ok\nsetsid ok\ndaemon ok\nclosed stdio ok\n\
        execve of a thread ok\nexecveat ok\neverything closed ok\nthreads ok\n";
    assert_eq!(
        run(&target, &program.display().to_string()).output(),
        expected
    );
}
