//! Sessions for targets: `standin`, and what became of it.

use std::env;
use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;

use anyhow::{Result, anyhow};

use super::target::Target;
use crate::environment;

/// The folder with `standin` and `standind`.
#[derive(Clone, Debug)]
pub struct Programs(PathBuf);

impl Programs {
    /// Those that the environment names, or else those of this repository, built once into `target`.
    pub fn find(target: &Path) -> Result<Self> {
        static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
        BUILT
            .get_or_init(|| build(target).map_err(|error| format!("{error:#}")))
            .clone()
            .map(Programs)
            .map_err(|error| anyhow!(error))
    }

    pub fn standin(&self) -> Command {
        self.program("standin")
    }

    pub fn standind(&self) -> Command {
        self.program("standind")
    }

    /// Without the variables that are for the stories: `standin` warns of names that it does not know.
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.0.join(name));
        for variable in [
            environment::PROGRAMS,
            environment::FIXTURES,
            environment::STATIC_STANDIND,
            environment::CONTEXTS,
            lab::environment::SHOP_PROGRAMS,
            lab::environment::SHOP_NODE,
        ] {
            command.env_remove(variable);
        }
        command
    }

    /// `standin exec` for a target, ready to run.
    pub fn exec(&self, target: &Target, command: &[impl AsRef<OsStr>]) -> Command {
        let mut standin = self.standin();
        standin
            .args(["exec", "-t", &format!("process/{}", target.pid()), "--"])
            .args(command)
            .stdin(Stdio::null());
        standin
    }
}

fn build(target: &Path) -> Result<PathBuf> {
    if let Some(folder) = env::var_os(environment::PROGRAMS) {
        return Ok(PathBuf::from(folder));
    }
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("CARGO_TARGET_DIR", target)
        .args([
            "build",
            "--locked",
            "--package",
            "cli",
            "--package",
            "server",
        ]);
    lab::output_of(&mut cargo)?;
    Ok(target.join("debug"))
}

/// What a program printed, and how it ended.
#[derive(Clone, Debug)]
pub struct Ended {
    pub stdout: String,
    pub stderr: String,
    /// As a shell tells it: the program's own code, or 128 and the signal that ended it.
    pub code: Option<i32>,
}

impl Ended {
    /// Runs a command to its end.
    pub fn of(command: &mut Command) -> Result<Self> {
        let Output {
            status,
            stdout,
            stderr,
        } = command.output()?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(Ended::new(text(stdout), text(stderr), status))
    }

    pub fn new(stdout: String, stderr: String, status: ExitStatus) -> Self {
        let signal = status.signal().map(|signal| 128 + signal);
        Ended {
            stdout,
            stderr,
            code: status.code().or(signal),
        }
    }

    /// The value of a line `key=value`.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.stdout
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "ended with {:?}\n--- stdout\n{}--- stderr\n{}",
            self.code, self.stdout, self.stderr
        )
    }
}
