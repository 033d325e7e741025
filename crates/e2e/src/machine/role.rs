//! The roles in which this program starts itself again.

use std::env;
use std::path::PathBuf;
use std::process::{self, Command};

use anyhow::{Context as _, Result};

use super::{hyper, peer_network, target_process};
use crate::fixture::Recipe;

/// The first argument of a process in a role. No test has such a name.
const MARKER: &str = "standin-e2e-role";

#[derive(Clone, Copy, Debug)]
pub(super) enum Role {
    /// The peer network of a target.
    PeerNetwork,
    /// The target itself.
    Target,
    /// A server that replaces the target.
    Hyper,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Role::PeerNetwork => "peer-network",
            Role::Target => "target",
            Role::Hyper => "hyper",
        }
    }

    pub(super) fn command(self) -> Result<Command> {
        let mut command = Command::new(env::current_exe().context("cannot find this program")?);
        command.args([MARKER, self.name()]);
        Ok(command)
    }
}

/// Runs the role that the command line names, and exits. Returns if it names none.
#[expect(
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "this is the `main` of those processes: it prints to their log and ends them"
)]
pub fn run_role_if_requested() {
    let mut arguments = env::args().skip(1);
    if arguments.next().is_none_or(|first| first != MARKER) {
        return;
    }
    let result = match arguments.next().as_deref() {
        Some("peer-network") => peer_network::main(),
        Some("target") => target_process::main(),
        Some("hyper") => hyper::main(arguments.next()),
        Some("compile") => compile(arguments.next()),
        _ => Err(anyhow::anyhow!(
            "usage: {MARKER} peer-network|target|hyper PORT|compile FOLDER"
        )),
    };
    if let Err(error) = result {
        eprintln!("{error:#}");
        process::exit(1);
    }
    process::exit(0);
}

/// Compiles everything that scenarios on this machine run. `cargo xtask test` calls this without root, so that no
/// compiler runs as root.
fn compile(folder: Option<String>) -> Result<()> {
    let folder = PathBuf::from(folder.context("the folder is missing")?);
    for recipe in Recipe::ALL {
        recipe.compile(&folder)?;
    }
    Ok(())
}
