//! Compiles the programs next to these tests.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{LazyLock, Mutex};

static COMPILED: Mutex<Vec<(String, PathBuf)>> = Mutex::new(Vec::new());

/// The cache of compiled programs: in the build directory, or in the temporary directory for a user that may not write
/// there.
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

/// Compiles a program, once for each variant and content.
fn compile(source: &Path, variant: &str, command: impl FnOnce(&Path) -> Command) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    std::fs::read(source).unwrap().hash(&mut hasher);
    let name = source.file_stem().unwrap().to_str().unwrap();
    let key = format!("{name}-{variant}-{:016x}", hasher.finish());
    let mut compiled = COMPILED.lock().unwrap();
    if let Some((_, path)) = compiled.iter().find(|(compiled, _)| *compiled == key) {
        return path.clone();
    }
    let path = FOLDER.join(&key);
    if !path.exists() {
        let unfinished = FOLDER.join(format!("{key}.{}", std::process::id()));
        run(command(&unfinished));
        std::fs::rename(&unfinished, &path).unwrap();
    }
    compiled.push((key, path.clone()));
    path
}

fn run(mut compiler: Command) {
    require(&compiler.get_program().to_string_lossy());
    let output = compiler.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{compiler:?}: {errors}");
}

/// A C program for the default C library, dynamically linked.
pub(crate) fn c(name: &str) -> PathBuf {
    c_with(name, "gcc", &[])
}

pub(crate) fn c_with(name: &str, compiler: &str, options: &[&str]) -> PathBuf {
    let source = source(&format!("{name}.c"));
    let variant = format!("{compiler}{}", options.concat());
    compile(&source, &variant, |path| {
        let mut command = Command::new(compiler);
        command.args(["-O1", "-pthread", "-o"]).arg(path);
        command.arg(&source).args(options);
        command
    })
}

/// A Go program without C library.
pub(crate) fn go(name: &str) -> PathBuf {
    let source = source(&format!("{name}.go"));
    compile(&source, "go", |path| {
        let mut command = Command::new("go");
        command.env("CGO_ENABLED", "0").env("GO111MODULE", "off");
        command.args(["build", "-o"]).arg(path);
        command.arg(&source);
        command
    })
}

/// Fails the test if a program is not installed.
#[track_caller]
pub(crate) fn require(program: &str) {
    let is_installed = Command::new(program).arg("--version").output().is_ok();
    assert!(
        is_installed,
        "{program} is not installed; `cargo xtask test --only packages` installs what the tests need"
    );
}
