//! This program as a part of a target's surroundings.

use std::env;
use std::path::PathBuf;
use std::process::{self, Command};

use anyhow::{Context as _, Result};

use super::{ground, hyper, inside};
use crate::fixture::Recipe;

/// Unlikely enough to never be a word of a test's own command line.
const MARKER: &str = "standin-e2e-role";

#[derive(Clone, Copy, Debug)]
pub(super) enum Role {
    /// The network beside a target.
    Ground,
    /// The target itself.
    Target,
    /// A server that stands in.
    Hyper,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Role::Ground => "ground",
            Role::Target => "target",
            Role::Hyper => "hyper",
        }
    }

    pub(super) fn command(self) -> Result<Command> {
        let mut command = Command::new(env::current_exe().context("finding this program")?);
        command.args([MARKER, self.name()]);
        Ok(command)
    }
}

/// Becomes a part of a target's surroundings when that is what this program was started for; returns otherwise.
#[expect(
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "this is the `main` of those processes: it prints to their log and ends them"
)]
pub fn run_if_asked() {
    let mut arguments = env::args().skip(1);
    if arguments.next().is_none_or(|first| first != MARKER) {
        return;
    }
    let result = match arguments.next().as_deref() {
        Some("ground") => ground::main(),
        Some("target") => inside::main(),
        Some("hyper") => hyper::main(arguments.next()),
        Some("compile") => compile(arguments.next()),
        _ => Err(anyhow::anyhow!(
            "usage: {MARKER} ground|target|hyper PORT|compile FOLDER"
        )),
    };
    if let Err(error) = result {
        eprintln!("{error:#}");
        process::exit(1);
    }
    process::exit(0);
}

/// Compiles everything that stories on this machine run. For callers who are not root: no compiler should be, on their
/// behalf.
fn compile(folder: Option<String>) -> Result<()> {
    let folder = PathBuf::from(folder.context("name the folder")?);
    for recipe in Recipe::ALL {
        recipe.make(&folder)?;
    }
    Ok(())
}
