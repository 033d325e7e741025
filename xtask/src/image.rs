//! `cargo xtask image`: the container image of `standind`, as an archive.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use lab::Progress;
use lab::standind::{self, Profile};

use crate::workspace;

#[derive(Debug, Args)]
pub(crate) struct ImageArguments {
    /// The archive to write, which `docker load`, `podman load`, `ctr images import` and `lab load-image` take
    #[arg(long, value_name = "FILE", default_value = "standind.tar")]
    output: PathBuf,
    /// The name and tag of the image
    #[arg(long, value_name = "NAME", default_value = standind::REFERENCE)]
    reference: String,
    /// Compile quickly, for tests
    #[arg(long)]
    dev: bool,
}

pub(crate) fn run(arguments: &ImageArguments) -> Result<ExitCode> {
    let profile = match arguments.dev {
        true => Profile::Dev,
        false => Profile::Release,
    };
    let progress = Progress::to_stderr();
    let target = workspace::image_target()?;
    let program = standind::build(&workspace::root()?, &target, profile, &progress)?;
    let archive = standind::image(&arguments.reference, &program).write(&arguments.output)?;
    println!("{}", archive.path().display());
    Ok(ExitCode::SUCCESS)
}
