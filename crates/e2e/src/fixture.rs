//! The programs and servers of `fixtures`. Each is compiled once for each version of its source.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

/// The folder of the sources.
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures");

/// One compiler at a time: each uses all cores, and some write to a cache that they share.
static COMPILING: Mutex<()> = Mutex::new(());

/// How a program is compiled.
#[derive(Clone, Copy, Debug)]
pub struct Recipe {
    /// The path below the folder of the sources.
    source: &'static str,
    compiler: &'static str,
    /// The compiler's arguments before the names of the result and the source.
    arguments: &'static [&'static str],
    variables: &'static [(&'static str, &'static str)],
    result: &'static str,
}

const STATIC_GO: &[(&str, &str)] = &[("CGO_ENABLED", "0"), ("GO111MODULE", "off")];
const GO: &[&str] = &["build", "-o"];
const C: &[&str] = &["-O1", "-Wall", "-o"];
const STATIC_C: &[&str] = &["-O1", "-static", "-o"];

#[rustfmt::skip] // A table is read by its columns.
impl Recipe {
    pub const GO_STATIC: Recipe = Recipe::new("programs/go/tour.go", "go", GO, STATIC_GO, "tour-go-static");
    pub const GO_CGO: Recipe = Recipe::new("programs/go/tour.go", "go", GO, &[("CGO_ENABLED", "1"), ("GO111MODULE", "off")], "tour-go-cgo");
    pub const RUST: Recipe = Recipe::new("programs/rust/tour.rs", "rustc", &["--edition=2024", "-o"], &[], "tour-rust");
    pub const C_DYNAMIC: Recipe = Recipe::new("programs/c/tour.c", "gcc", C, &[], "tour-c");
    pub const C_STATIC: Recipe = Recipe::new("programs/c/tour.c", "gcc", STATIC_C, &[], "tour-c-static");
    pub const C_MUSL: Recipe = Recipe::new("programs/c/tour.c", "musl-gcc", STATIC_C, &[], "tour-c-musl");
    pub const JAVA: Recipe = Recipe::new("programs/java/Tour.java", "javac", &["-d"], &[], "classes");
    pub const LOAD: Recipe = Recipe::new("programs/load/load.go", "go", GO, STATIC_GO, "load");

    pub const VISIT: Recipe = Recipe::new("programs/go/visit.go", "go", GO, STATIC_GO, "visit");
    pub const GO_HTTP: Recipe = Recipe::new("servers/go/http.go", "go", GO, STATIC_GO, "server-go-http");
    pub const C_EPOLL: Recipe = Recipe::new("servers/c/epoll.c", "gcc", C, &[], "server-c-epoll");
    pub const JAVA_SERVER: Recipe = Recipe::new("servers/java/Server.java", "javac", &["-d"], &[], "server-classes");
    /// A Go module, which must be compiled in its own folder.
    pub const GO_GRPC: Recipe = Recipe::new("servers/grpc/main.go", "go", GO, &[("CGO_ENABLED", "0"), ("GOFLAGS", "-mod=readonly")], "server-go-grpc");

    pub const ALL: [Recipe; 13] = [
        Self::GO_STATIC, Self::GO_CGO, Self::RUST, Self::C_DYNAMIC, Self::C_STATIC, Self::C_MUSL, Self::JAVA, Self::LOAD,
        Self::GO_HTTP, Self::C_EPOLL, Self::JAVA_SERVER, Self::GO_GRPC, Self::VISIT,
    ];
}

impl Recipe {
    const fn new(
        source: &'static str,
        compiler: &'static str,
        arguments: &'static [&'static str],
        variables: &'static [(&'static str, &'static str)],
        result: &'static str,
    ) -> Self {
        Recipe {
            source,
            compiler,
            arguments,
            variables,
            result,
        }
    }

    /// Returns the program, in a folder of its own below `cache`. Compiles it unless it exists.
    pub fn compile(self, cache: &Path) -> Result<PathBuf> {
        let _one_at_a_time = COMPILING.lock();
        let cache = std::path::absolute(cache)?;
        let source = source(self.source);
        let mut key = Sha256::new();
        key.update(fs::read(&source).with_context(|| format!("reading {}", source.display()))?);
        key.update(format!("{self:?}"));
        let folder = cache.join(format!("{}-{:.16x}", self.result, key.finalize()));
        let program = folder.join(self.result);
        if program.exists() {
            return Ok(program);
        }
        // The folder gets its final name only when it is complete.
        let unfinished = cache.join(format!("{}-{}", self.result, std::process::id()));
        fs::create_dir_all(&unfinished)?;
        let mut command = Command::new(self.compiler);
        command
            .args(self.arguments)
            .arg(unfinished.join(self.result))
            .arg(&source)
            .envs(self.variables.iter().copied());
        if let Some(folder) = source.parent() {
            command.current_dir(folder);
        }
        lab::output_of(&mut command)
            .with_context(|| format!("{} is needed to compile {}", self.compiler, self.result))?;
        let _ = fs::remove_dir_all(&folder);
        fs::rename(&unfinished, &folder)?;
        Ok(program)
    }
}

/// The path of a file in the folder of the sources.
pub fn source(path: &str) -> PathBuf {
    Path::new(SOURCES).join(path)
}

/// A program and its arguments, and the folder to run it in.
#[derive(Clone, Debug)]
pub struct Program {
    pub folder: PathBuf,
    pub command: Vec<OsString>,
    pub variables: &'static [(&'static str, &'static str)],
}

impl Program {
    /// A compiled program.
    pub fn compiled(recipe: Recipe, cache: &Path) -> Result<Self> {
        let path = recipe.compile(cache)?;
        Ok(Self::new(&path, [&path]))
    }

    /// A script in the folder of the sources, for an interpreter.
    pub fn script(interpreter: &str, path: &str) -> Self {
        let path = source(path);
        Self::new(
            &path,
            [OsString::from(interpreter), path.clone().into_os_string()],
        )
    }

    fn new(path: &Path, command: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        Program {
            folder: path.parent().unwrap_or(Path::new("/")).to_owned(),
            command: command.into_iter().map(Into::into).collect(),
            variables: &[],
        }
    }

    #[must_use]
    pub fn argument(mut self, argument: impl Into<OsString>) -> Self {
        self.command.push(argument.into());
        self
    }

    #[must_use]
    pub fn variables(mut self, variables: &'static [(&'static str, &'static str)]) -> Self {
        self.variables = variables;
        self
    }

    /// Sets the folder and the variables of a command that runs this program.
    pub fn prepare<'command>(&self, command: &'command mut Command) -> &'command mut Command {
        command
            .current_dir(&self.folder)
            .envs(self.variables.iter().copied())
    }
}
