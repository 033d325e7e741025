//! The images that the lab builds itself.
//!
//! `sandbox` owns a pod's namespaces, `tools` is for inspecting a network from inside a pod, and the others are language
//! runtimes and a database. The functions that end in `_image` return an [`Image`] to which an application adds its files.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{Cache, DEFAULT_PATH, Fingerprint, Image, ImageArchive, ImageError, output_of};
use crate::debian::{BuiltRootFilesystem, RootFilesystem};

/// The sandbox of pods, which Kubernetes calls the pause image.
pub const SANDBOX: &str = "registry.lab/pause:1";
pub const TOOLS: &str = "registry.lab/tools:1";
pub const PYTHON: &str = "registry.lab/python:1";
pub const NODE: &str = "registry.lab/node:1";
pub const POSTGRES: &str = "registry.lab/postgres:1";

const SANDBOX_SOURCE: &str = include_str!("../../images/pause.c");
const POSTGRES_ENTRYPOINT: &str = include_str!("../../images/postgres/entrypoint.sh");

/// The section of a [`Cache`] for compiled programs.
const PROGRAMS: &str = "programs";

/// A shell and basic commands, so that `kubectl exec` is useful in every image. `libc-bin` has the C.UTF-8 locale.
const SHELL: [&str; 3] = ["coreutils", "dash", "libc-bin"];

/// Packages are configured by Perl programs, which do not run here.
const PERL: [&str; 4] = ["perl", "perl-*", "libperl*", "libjson-perl"];

/// Packages for logins and for managing certificates, which a pod does not need.
const SERVICES: [&str; 4] = ["ca-certificates", "libdb5.3*", "libpam-modules*", "openssl"];

/// Python starts much faster when its library is already compiled. The compiled modules are not compared with their
/// sources, because the dates of the sources are not kept.
const COMPILE_PYTHON_LIBRARY: &str = "
import compileall, py_compile, sysconfig
compileall.compile_dir(
    sysconfig.get_path('stdlib'),
    quiet=1,
    invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
)
";

/// The sandbox of every pod: one static program that waits.
pub fn sandbox(cache: &Cache, progress: &dyn Fn(&str)) -> Result<ImageArchive, ImageError> {
    let mut fingerprint = Fingerprint::new("pause");
    fingerprint.text(SANDBOX_SOURCE);
    let name = format!("pause-{}", &fingerprint.finish()[..16]);
    let program = cache.entry(PROGRAMS, &name, |program| {
        progress("compiling pause");
        compile(SANDBOX_SOURCE, program)
    })?;
    Image::new(SANDBOX)
        .file("/pause", program, 0o755)
        .entrypoint(["/pause"])
        .user("65535:65535")
        .stop_signal("SIGTERM")
        .write_cached(cache)
}

/// Tools to inspect and change the network of a pod. The container sleeps; commands run through `kubectl exec`.
pub fn tools(cache: &Cache, progress: &dyn Fn(&str)) -> Result<ImageArchive, ImageError> {
    let root = RootFilesystem::new(SHELL)
        .and_packages([
            "bash",
            "conntrack",
            "curl",
            "grep",
            "iproute2",
            "iptables",
            "iputils-ping",
            "mawk",
            "nftables",
            "procps",
            "sed",
            "socat",
            "strace",
            "tar",
            "tcpdump",
            "util-linux",
        ])
        .without_packages(PERL)
        .without_packages(SERVICES)
        .without_paths(["./usr/lib/*/perl-base", "./usr/share/perl5"])
        .build(cache, progress)?;
    on_root(TOOLS, &root)
        .command(["sleep", "infinity"])
        .write_cached(cache)
}

/// Python with its standard library, without pip and without a compiler.
pub fn python(cache: &Cache, progress: &dyn Fn(&str)) -> Result<ImageArchive, ImageError> {
    python_image(PYTHON, cache, progress)?.write_cached(cache)
}

pub fn python_image(
    reference: &str,
    cache: &Cache,
    progress: &dyn Fn(&str),
) -> Result<Image, ImageError> {
    let root = RootFilesystem::new(SHELL)
        .and_packages(["python3"])
        .without_packages(PERL)
        .without_paths([
            "./usr/lib/python3*/ensurepip",
            "./usr/lib/python3*/idlelib",
            "./usr/lib/python3*/lib2to3",
            "./usr/lib/python3*/pydoc_data",
            "./usr/lib/python3*/tkinter",
            "./usr/lib/python3*/turtle*",
            "./usr/share/python3",
        ])
        .run_inside(["python3", "-c", COMPILE_PYTHON_LIBRARY])
        .build(cache, progress)?;
    // A container's file system is removed with it, so writing compiled modules there is useless.
    Ok(on_root(reference, &root)
        .environment("PYTHONDONTWRITEBYTECODE", "1")
        .environment("PYTHONUNBUFFERED", "1")
        .command(["python3"]))
}

/// Node.js of the distribution, without npm.
pub fn node(cache: &Cache, progress: &dyn Fn(&str)) -> Result<ImageArchive, ImageError> {
    node_image(NODE, cache, progress)?.write_cached(cache)
}

pub fn node_image(
    reference: &str,
    cache: &Cache,
    progress: &dyn Fn(&str),
) -> Result<Image, ImageError> {
    let root = RootFilesystem::new(SHELL)
        .and_packages(["nodejs"])
        .without_packages(PERL)
        .without_paths(["./usr/include", "./usr/lib/node_modules/npm"])
        .build(cache, progress)?;
    Ok(on_root(reference, &root).command(["node"]))
}

/// PostgreSQL's server and client. It creates its database when it first starts; see its entry point for the environment
/// variables that it reads.
pub fn postgres(cache: &Cache, progress: &dyn Fn(&str)) -> Result<ImageArchive, ImageError> {
    let root = RootFilesystem::new(SHELL)
        .and_packages(["postgresql"])
        .without_packages(PERL)
        // The JIT compiler for large queries is larger than everything else.
        .without_packages(["libllvm*", "libz3-*"])
        // Tools to manage several servers on one machine.
        .without_packages(["postgresql-common*", "postgresql-client-common", "ssl-cert"])
        .without_packages(["libc-l10n", "locales", "ucf"])
        .without_packages(SERVICES)
        .without_paths([
            "./usr/lib/postgresql/*/lib/bitcode",
            "./usr/lib/postgresql/*/lib/llvmjit*",
            "./usr/share/perl5",
            "./usr/share/postgresql/*/man",
        ])
        .build(cache, progress)?;
    let programs = postgres_programs(&root)?;
    on_root(POSTGRES, &root)
        .bytes("/entrypoint", POSTGRES_ENTRYPOINT, 0o755)
        .directory("/var/lib/postgresql", 0o1777)
        .environment("PATH", &format!("{programs}:{DEFAULT_PATH}"))
        .environment("PGDATA", "/var/lib/postgresql/data")
        // Some container runtimes mount an empty file system over /run, where the socket would be.
        .environment("PGHOST", "/tmp")
        .entrypoint(["/entrypoint"])
        .user("999:999")
        // With this signal PostgreSQL exits without waiting for its clients to disconnect.
        .stop_signal("SIGINT")
        .write_cached(cache)
}

/// The folder of PostgreSQL's programs in the image, which depends on the version in the Debian release.
fn postgres_programs(root: &BuiltRootFilesystem) -> Result<String, ImageError> {
    const VERSIONS: &str = "usr/lib/postgresql";
    let folder = root.path().join(VERSIONS);
    let versions = fs::read_dir(&folder).map_err(ImageError::file("list", &folder))?;
    versions
        .filter_map(Result::ok)
        .find(|version| version.path().join("bin/postgres").exists())
        .map(|version| format!("/{VERSIONS}/{}/bin", version.file_name().display()))
        .ok_or(ImageError::PackageLacks {
            package: "postgresql",
            path: "bin/postgres",
        })
}

fn on_root(reference: &str, root: &BuiltRootFilesystem) -> Image {
    Image::new(reference)
        .keyed_folder(root.path(), "/", root.key())
        .environment("LANG", "C.UTF-8")
        .working_directory("/")
}

/// Compiles a static C program. A machine that builds Rust programs has a C compiler, because Rust links with it.
fn compile(source: &str, program: &Path) -> Result<(), ImageError> {
    let source_file = program.with_extension("c");
    fs::write(&source_file, source).map_err(ImageError::file("write", &source_file))?;
    let compiled = output_of(
        Command::new("cc")
            .args(["-static", "-Os", "-s", "-Wall", "-Wextra", "-o"])
            .arg(program)
            .arg(&source_file),
    );
    fs::remove_file(&source_file).map_err(ImageError::file("remove", &source_file))?;
    compiled.map(drop)
}
