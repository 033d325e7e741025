//! The image of the program beside services: `standind`, linked statically, in an image that has nothing else.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::run;
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
    /// As it is given away.
    Release,
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
    build_program(repository, target, "server", "standind", profile, progress)
}

/// Compiles a program of the repository that needs nothing of the machine on which it runs.
pub fn build_program(
    repository: &Path,
    target: &Path,
    package: &str,
    name: &str,
    profile: Profile,
    progress: &Progress,
) -> Result<PathBuf> {
    progress.step(format!("building {name}, linked statically"));
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(repository)
        // With an explicit target these flags are for the program alone, not for build scripts and macros.
        .env("RUSTFLAGS", flags(repository, profile))
        .env("CARGO_PROFILE_DEV_STRIP", "symbols")
        .env("CARGO_TARGET_DIR", target)
        .args(["build", "--locked", "--package", package])
        .args(["--bin", name, "--target", &triple(profile)]);
    if profile == Profile::Release {
        cargo.arg("--release");
    }
    run(&mut cargo)?;
    Ok(built(target, profile, name))
}

/// Where [`build_program`] puts a program.
pub fn built(target: &Path, profile: Profile, name: &str) -> PathBuf {
    let folder = match profile {
        Profile::Dev => "debug",
        Profile::Release => "release",
    };
    target.join(triple(profile)).join(folder).join(name)
}

/// What is given away brings musl, which comes with the compiler, so that the libraries of the machine that builds it do
/// not matter. For tests the machine's own are quicker to have.
fn triple(profile: Profile) -> String {
    let environment = match profile {
        Profile::Dev => "gnu",
        Profile::Release => "musl",
    };
    format!("{}-unknown-linux-{environment}", env::consts::ARCH)
}

/// What is given away names no folder of the machine that built it, so that every machine builds the same bytes.
fn flags(repository: &Path, profile: Profile) -> String {
    let mut flags = "-C target-feature=+crt-static".to_owned();
    if profile == Profile::Release {
        let home = env::var_os("CARGO_HOME").map(PathBuf::from);
        let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")));
        for (folder, name) in [(Some(repository.to_owned()), "standin"), (home, "cargo")] {
            if let Some(folder) = folder.and_then(|folder| folder.canonicalize().ok()) {
                flags += &format!(" --remap-path-prefix={}=/{name}", folder.display());
            }
        }
    }
    flags
}

/// The image with the program.
pub fn image(reference: &str, program: &Path) -> Image {
    Image::new(reference)
        .file("/standind", program, 0o755)
        .entrypoint(["/standind"])
}
