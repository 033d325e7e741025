//! Programs under supervision, with the session as their host.

use std::ffi::OsString;
use std::io::{Read as _, Seek as _};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use interceptor::Launch;
use proxy::FilesThrough;

use crate::world::{REMOTE, World};

/// Runs the program with its output in a file, and gives back what it said.
fn run(world: &World, way: &str) -> Option<String> {
    run_program(world, "files.py", way)
}

fn run_program(world: &World, program: &str, way: &str) -> Option<String> {
    if Command::new("python3").arg("--version").output().is_err() {
        println!("skipped: python3 is not on this machine");
        return None;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mut output = tempfile::tempfile().unwrap();
    let program = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/programs")
        .join(program);
    let shell = format!(
        "exec python3 -B {} {REMOTE} {way} >/proc/{}/fd/{} 2>&1",
        program.display(),
        std::process::id(),
        output.as_raw_fd()
    );
    let path = std::env::var_os("PATH").unwrap_or_default();
    let variables = [
        (OsString::from("PATH"), path),
        (OsString::from("SCRATCH"), scratch.path().into()),
    ];
    let mut supervised = Launch::new("/bin/sh")
        .arguments(["-c".to_owned(), shell])
        .environment(variables.to_vec())
        .start(Arc::clone(&world.session) as _)
        .unwrap();
    let status = supervised.wait().unwrap();
    let mut said = String::new();
    output.rewind().unwrap();
    output.read_to_string(&mut said).unwrap();
    assert!(status.success(), "{status}: {said}");
    Some(said)
}

fn tour(through: FilesThrough, way: &str) {
    let world = World::new(through);
    world.write("greeting", "only at the target\n");
    if let Some(said) = run(&world, way) {
        assert_eq!(said, "done\n");
        assert_eq!(world.read("killed"), "last words");
    }
}

#[test]
#[ignore = "needs root"]
fn a_program_uses_files_through_fuse() {
    tour(FilesThrough::Fuse, "fuse");
}

#[test]
fn a_program_uses_files_through_memory() {
    tour(FilesThrough::Memory, "memory");
}

fn crowd(through: FilesThrough) {
    let world = World::new(through);
    world.write("greeting", "only at the target\n");
    if let Some(said) = run_program(&world, "crowd.py", "") {
        assert_eq!(said, "1000 threads, no problems\n");
        let written = std::fs::read_dir(world.path("written")).unwrap();
        assert_eq!(written.count(), 1000);
        assert_eq!(world.read("written/999"), "999");
    }
}

#[test]
#[ignore = "needs root"]
fn a_thousand_threads_use_files_at_once_through_fuse() {
    crowd(FilesThrough::Fuse);
}

#[test]
fn a_thousand_threads_use_files_at_once_through_memory() {
    crowd(FilesThrough::Memory);
}
