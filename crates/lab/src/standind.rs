//! The image of the program beside services: `standind` and the operator that it becomes there, linked statically, in an
//! image that has nothing else.

use std::env;
use std::path::{Path, PathBuf};

use crate::command::{cargo, run};
use crate::environment;
use crate::error::Result;
use crate::image::Image;
use crate::progress::Progress;

/// How the lab's pods name it.
pub const REFERENCE: &str = "registry.lab/standind:1";

/// How it is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Quickly.
    Dev,
    /// Optimised, with the C library of the machine that builds it.
    Release,
    /// As it is given away: optimised, with musl, which comes with the compiler. So the same commit gives the same bytes
    /// wherever it is built, and nothing has to be looked up in a system that the image does not have.
    Distribution,
}

/// Compiles the program. A caller without root does this before it asks for root, and passes the result on through the
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

/// Compiles packages so that their programs need no other file.
pub fn build_static(
    repository: &Path,
    target: &Path,
    profile: Profile,
    packages: &[&str],
) -> Result<()> {
    let mut cargo = cargo(repository);
    cargo
        // With an explicit target these flags are for the program alone, not for build scripts and macros.
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

fn triple(profile: Profile) -> String {
    let libraries = match profile {
        Profile::Dev | Profile::Release => "gnu",
        Profile::Distribution => "musl",
    };
    format!("{}-unknown-linux-{libraries}", env::consts::ARCH)
}

/// What is given away names no folder of the machine that built it.
fn flags(repository: &Path, profile: Profile) -> String {
    let mut flags = "-C target-feature=+crt-static".to_owned();
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
