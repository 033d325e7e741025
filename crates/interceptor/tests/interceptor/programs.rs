//! The programs beside these tests, compiled.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{LazyLock, Mutex};

static COMPILED: Mutex<Vec<(String, Option<PathBuf>)>> = Mutex::new(Vec::new());

/// Where compiled programs are kept from one run to the next: beside everything else that was built, or for a user who
/// may not write there, in the folder for temporary files.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let beside = Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs");
    if std::fs::create_dir_all(&beside).is_ok() && tempfile::tempfile_in(&beside).is_ok() {
        return beside;
    }
    std::env::temp_dir()
});

/// The source of a test program.
pub(crate) fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/programs")
        .join(name)
}

/// Compiles a program, once for each way and content. `None`, said aloud, if the compiler is not on this machine.
fn compile(source: &Path, way: &str, command: impl FnOnce(&Path) -> Command) -> Option<PathBuf> {
    let mut hasher = DefaultHasher::new();
    std::fs::read(source).unwrap().hash(&mut hasher);
    let name = source.file_stem().unwrap().to_str().unwrap();
    let key = format!("{name}-{way}-{:016x}", hasher.finish());
    let mut compiled = COMPILED.lock().unwrap();
    if let Some((_, path)) = compiled.iter().find(|(known, _)| *known == key) {
        return path.clone();
    }
    let path = FOLDER.join(&key);
    let result = if path.exists() {
        Some(path)
    } else {
        let unfinished = FOLDER.join(format!("{key}.{}", std::process::id()));
        run(command(&unfinished)).then(|| {
            std::fs::rename(&unfinished, &path).unwrap();
            path
        })
    };
    compiled.push((key, result.clone()));
    result
}

/// False, said aloud, if the compiler is not on this machine.
fn run(mut compiler: Command) -> bool {
    match compiler.output() {
        Ok(output) if output.status.success() => true,
        Ok(output) => panic!("{compiler:?}: {}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => {
            println!("skipped: {}: {error}", compiler.get_program().display());
            false
        }
    }
}

/// A C program for the usual library, dynamically linked.
pub(crate) fn c(name: &str) -> Option<PathBuf> {
    c_with(name, "gcc", &[])
}

pub(crate) fn c_with(name: &str, compiler: &str, options: &[&str]) -> Option<PathBuf> {
    let source = source(&format!("{name}.c"));
    let way = format!("{compiler}{}", options.concat());
    compile(&source, &way, |path| {
        let mut command = Command::new(compiler);
        command.args(["-O1", "-pthread", "-o"]).arg(path);
        command.arg(&source).args(options);
        command
    })
}

/// A Go program without any C library.
pub(crate) fn go(name: &str) -> Option<PathBuf> {
    let source = source(&format!("{name}.go"));
    compile(&source, "go", |path| {
        let mut command = Command::new("go");
        command.env("CGO_ENABLED", "0").env("GO111MODULE", "off");
        command.args(["build", "-o"]).arg(path);
        command.arg(&source);
        command
    })
}

/// Whether a program is on this machine; said aloud if not.
pub(crate) fn is_there(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        println!("skipped: {program} is not on this machine");
    }
    found
}
