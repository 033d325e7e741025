//! `cargo xtask image`: the container images of the server programs, as archives.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};
use lab::Progress;
use lab::image::Image;
use lab::standind::{self, Profile};

use crate::workspace;

#[derive(Debug, Args)]
pub(crate) struct ImageArguments {
    /// Which programs the image has
    #[arg(value_enum, default_value_t = Programs::Standind)]
    programs: Programs,
    /// The archive to write, which `docker load`, `podman load`, `ctr images import` and `lab load-image` take. Default: the
    /// programs' name with `.tar`
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The name and tag of the image. Default: the lab's
    #[arg(long, value_name = "NAME")]
    reference: Option<String>,
    /// Compile quickly, for tests
    #[arg(long)]
    dev: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Programs {
    /// Agents and the operator
    Standind,
    /// The hub and its tunnel agents
    StandindHub,
}

impl Programs {
    const fn file(self) -> &'static str {
        match self {
            Self::Standind => "standind.tar",
            Self::StandindHub => "standind-hub.tar",
        }
    }

    fn image(self, reference: Option<&str>, program: &Path) -> Image {
        match self {
            Self::Standind => standind::image(reference.unwrap_or(standind::REFERENCE), program),
            Self::StandindHub => {
                standind::hub_image(reference.unwrap_or(standind::HUB_REFERENCE), program)
            }
        }
    }
}

pub(crate) fn run(arguments: &ImageArguments) -> Result<ExitCode> {
    let profile = match arguments.dev {
        true => Profile::Dev,
        false => Profile::Release,
    };
    let progress = Progress::to_stderr();
    let target = workspace::image_target()?;
    let program = standind::build(&workspace::root()?, &target, profile, &progress)?;
    let output = arguments.output.clone();
    let output = output.unwrap_or_else(|| arguments.programs.file().into());
    let image = arguments
        .programs
        .image(arguments.reference.as_deref(), &program);
    let archive = image.write(&output)?;
    println!("{}", archive.path().display());
    Ok(ExitCode::SUCCESS)
}
