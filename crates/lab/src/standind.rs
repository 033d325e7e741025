//! The images of the server programs, linked statically, which have nothing else: `standind` and `standind-operator` for
//! agents and the operator, and `standind-hub` and `standind-tunnel-agent` for the hub and its agents. The second is an
//! image of its own, because the first is pulled wherever a session runs.

use std::env;
use std::path::{Path, PathBuf};

use crate::command::{cargo, run};
use crate::environment;
use crate::error::Result;
use crate::image::Image;
use crate::progress::Progress;

/// The image reference that the lab's pods use.
pub const REFERENCE: &str = "registry.lab/standind:1";

/// The image reference of hubs and their agents in the lab.
pub const HUB_REFERENCE: &str = "registry.lab/standind-hub:1";

/// Compiler flags that link a program statically. They take effect with an explicit target only, so that build
/// scripts and macros are compiled without them.
pub const STATIC_FLAGS: &str = "-C target-feature=+crt-static";

/// How the program is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Unoptimised, for short build times.
    Dev,
    /// Optimised, with the C library of the machine that builds it.
    Release,
    /// As it is released: optimised, with musl, which comes with the compiler. So the same commit gives the same bytes
    /// wherever it is built, and the program needs no files of a system that the image does not have.
    Distribution,
}

/// Compiles the program. A caller without root does this before it becomes root, and passes the result on through the
/// environment.
pub fn build(
    repository: &Path,
    target: &Path,
    profile: Profile,
    progress: &Progress,
) -> Result<PathBuf> {
    if let Some(program) = env::var_os(environment::STATIC_STANDIND) {
        return Ok(program.into());
    }
    progress.step("building the agent for images");
    build_static(repository, target, profile, &["server"])?;
    Ok(built(target, profile, "standind"))
}

/// Compiles packages with statically linked programs.
pub fn build_static(
    repository: &Path,
    target: &Path,
    profile: Profile,
    packages: &[&str],
) -> Result<()> {
    let mut cargo = cargo(repository);
    cargo
        // With an explicit target these flags apply only to the program, not to build scripts and macros.
        .env("RUSTFLAGS", flags(repository, profile))
        .env("CARGO_PROFILE_DEV_STRIP", "symbols")
        .env("CARGO_TARGET_DIR", target)
        .args(["build", "--locked", "--target", &triple(profile)]);
    for package in packages {
        cargo.args(["--package", package]);
    }
    if profile != Profile::Dev {
        cargo.arg("--release");
    }
    run(&mut cargo).map(drop)
}

/// Where [`build_static`] puts a program.
pub fn built(target: &Path, profile: Profile, program: &str) -> PathBuf {
    let folder = match profile {
        Profile::Dev => "debug",
        Profile::Release | Profile::Distribution => "release",
    };
    target.join(triple(profile)).join(folder).join(program)
}

/// The target of programs that run on this machine and in images.
pub fn host_triple() -> String {
    triple(Profile::Dev)
}

fn triple(profile: Profile) -> String {
    let libraries = match profile {
        Profile::Dev | Profile::Release => "gnu",
        Profile::Distribution => "musl",
    };
    format!("{}-unknown-linux-{libraries}", env::consts::ARCH)
}

/// The compiler flags of a profile. A released program contains no path of the machine that built it.
fn flags(repository: &Path, profile: Profile) -> String {
    let mut flags = STATIC_FLAGS.to_owned();
    if profile != Profile::Distribution {
        return flags;
    }
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")));
    for (folder, name) in [(Some(repository.to_owned()), "standin"), (home, "cargo")] {
        if let Some(folder) = folder.and_then(|folder| folder.canonicalize().ok()) {
            flags += &format!(" --remap-path-prefix={}=/{name}", folder.display());
        }
    }
    flags
}

/// The image with the program, and with the operator that was built beside it.
pub fn image(reference: &str, program: &Path) -> Image {
    let operator = program.with_file_name("standind-operator");
    Image::new(reference)
        .file("/standind", program, 0o755)
        .file("/standind-operator", &operator, 0o755)
        .entrypoint(["/standind"])
}

/// The image with the hub and the tunnel agent that were built beside the program.
pub fn hub_image(reference: &str, program: &Path) -> Image {
    let mut image = Image::new(reference);
    for name in ["standind-hub", "standind-tunnel-agent"] {
        let program = program.with_file_name(name);
        image = image.file(format!("/{name}"), &program, 0o755);
    }
    image.entrypoint(["/standind-hub"])
}
