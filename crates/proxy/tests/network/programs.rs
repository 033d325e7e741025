//! The programs beside these tests, compiled.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{LazyLock, Mutex};

static FOLDER: LazyLock<tempfile::TempDir> = LazyLock::new(|| tempfile::tempdir().unwrap());
static COMPILED: Mutex<Vec<(String, Option<PathBuf>)>> = Mutex::new(Vec::new());

/// The source of a test program.
pub(crate) fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/programs")
        .join(name)
}

/// Compiles a program, once for each way. `None`, said aloud, if the compiler is not on this machine.
fn compile(key: &str, command: impl FnOnce(&Path) -> Command) -> Option<PathBuf> {
    let mut compiled = COMPILED.lock().unwrap();
    if let Some((_, path)) = compiled.iter().find(|(known, _)| known == key) {
        return path.clone();
    }
    let path = FOLDER.path().join(key);
    let mut command = command(&path);
    let result = match command.output() {
        Ok(output) if output.status.success() => Some(path),
        Ok(output) => panic!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => {
            eprintln!("skipped: {}: {error}", command.get_program().display());
            None
        }
    };
    compiled.push((key.to_owned(), result.clone()));
    result
}

/// A C program for the usual library, dynamically linked.
pub(crate) fn c(name: &str) -> Option<PathBuf> {
    c_with(name, "gcc", &[])
}

pub(crate) fn c_with(name: &str, compiler: &str, options: &[&str]) -> Option<PathBuf> {
    let key = format!("{name}-{compiler}{}", options.concat());
    compile(&key, |path| {
        let mut command = Command::new(compiler);
        command.args(["-O1", "-pthread", "-o"]).arg(path);
        command.arg(source(&format!("{name}.c"))).args(options);
        command
    })
}

/// A Go program without any C library.
pub(crate) fn go(name: &str) -> Option<PathBuf> {
    compile(&format!("{name}-go"), |path| {
        let mut command = Command::new("go");
        command.env("CGO_ENABLED", "0").env("GO111MODULE", "off");
        command.args(["build", "-o"]).arg(path);
        command.arg(source(&format!("{name}.go")));
        command
    })
}

/// Whether a program is on this machine; said aloud if not.
pub(crate) fn is_there(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        eprintln!("skipped: {program} is not on this machine");
    }
    found
}
