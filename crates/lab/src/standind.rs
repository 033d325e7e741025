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
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(repository)
        // With an explicit target these flags are for the program alone, not for build scripts and macros.
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .env("CARGO_PROFILE_DEV_STRIP", "symbols")
        .env("CARGO_TARGET_DIR", target)
        .args(["build", "--locked", "--target", &triple()]);
    for package in packages {
        cargo.args(["--package", package]);
    }
    if profile == Profile::Release {
        cargo.arg("--release");
    }
    run(&mut cargo).map(drop)
}

/// Where [`build_static`] puts a program.
pub fn built(target: &Path, profile: Profile, program: &str) -> PathBuf {
    let folder = match profile {
        Profile::Dev => "debug",
        Profile::Release => "release",
    };
    target.join(triple()).join(folder).join(program)
}

fn triple() -> String {
    format!("{}-unknown-linux-gnu", env::consts::ARCH)
}

/// The image with the program.
pub fn image(reference: &str, program: &Path) -> Image {
    Image::new(reference)
        .file("/standind", program, 0o755)
        .entrypoint(["/standind"])
}
