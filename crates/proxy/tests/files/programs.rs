//! Programs under supervision, with the session as their host.

use std::ffi::OsString;
use std::io::{Read as _, Seek as _};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use interceptor::Launch;
use proxy::FileBackend;

use crate::environment::{Environment, REMOTE};

/// Runs a Python program in the session, and returns its output. `None` if Python is not installed.
fn run_program(env: &Environment, program: &str, backend: &str) -> Option<String> {
    run_program_in(env, program, Path::new(REMOTE), backend)
}

/// Like [`run_program`], with another folder of the target as the first argument.
fn run_program_in(
    env: &Environment,
    program: &str,
    folder: &Path,
    backend: &str,
) -> Option<String> {
    if Command::new("python3").arg("--version").output().is_err() {
        println!("skipped: python3 is not on this machine");
        return None;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mut output_file = tempfile::tempfile().unwrap();
    let program = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/programs")
        .join(program);
    let shell = format!(
        "exec python3 -B {} {} {backend} >/proc/{}/fd/{} 2>&1",
        program.display(),
        folder.display(),
        std::process::id(),
        output_file.as_raw_fd()
    );
    let path = std::env::var_os("PATH").unwrap_or_default();
    let variables = [
        (OsString::from("PATH"), path),
        (OsString::from("SCRATCH"), scratch.path().into()),
    ];
    let mut supervised = Launch::new("/bin/sh")
        .arguments(["-c".to_owned(), shell])
        .environment(variables.to_vec())
        .start(Arc::clone(&env.session) as _)
        .unwrap();
    let status = supervised.wait().unwrap();
    let mut output = String::new();
    output_file.rewind().unwrap();
    output_file.read_to_string(&mut output).unwrap();
    assert!(status.success(), "{status}: {output}");
    Some(output)
}

fn use_files(backend: FileBackend, name: &str) {
    let env = Environment::new(backend);
    env.write("greeting", "only at the target\n");
    if let Some(output) = run_program(&env, "files.py", name) {
        assert_eq!(output, "done\n");
        assert_eq!(env.read("killed"), "before the kill");
    }
}

#[test]
#[ignore = "needs root"]
fn a_program_uses_files_with_fuse() {
    use_files(FileBackend::Fuse, "fuse");
}

#[test]
fn a_program_uses_files_with_memory() {
    use_files(FileBackend::Memory, "memory");
}

/// Working directories deeper than the kernel's limit for a path.
fn use_deep_directories(backend: FileBackend, name: &str) {
    let env = Environment::new(backend);
    let folder = env.folder.path().canonicalize().unwrap();
    // Its parent lists it, unlike that of a mapped folder.
    let output = run_program_in(&env, "deep.py", &folder, name);
    assert_eq!(output.as_deref(), Some("done\n"));
    let left = std::fs::read_dir(&folder).unwrap().count();
    assert_eq!(left, 1, "the file that the program leaves");
    assert_eq!(env.read("left"), "from the deep");
}

#[test]
#[ignore = "needs root"]
fn a_program_uses_deep_directories_with_fuse() {
    use_deep_directories(FileBackend::Fuse, "fuse");
}

#[test]
fn a_program_uses_deep_directories_with_memory() {
    use_deep_directories(FileBackend::Memory, "memory");
}

fn use_files_concurrently(backend: FileBackend) {
    let env = Environment::new(backend);
    env.write("greeting", "only at the target\n");
    if let Some(output) = run_program(&env, "many_threads.py", "") {
        assert_eq!(output, "1000 threads, no problems\n");
        let written = std::fs::read_dir(env.path("written")).unwrap();
        assert_eq!(written.count(), 1000);
        assert_eq!(env.read("written/999"), "999");
    }
}

#[test]
#[ignore = "needs root"]
fn a_thousand_threads_use_files_with_fuse() {
    use_files_concurrently(FileBackend::Fuse);
}

#[test]
fn a_thousand_threads_use_files_with_memory() {
    use_files_concurrently(FileBackend::Memory);
}
