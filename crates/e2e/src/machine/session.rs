//! Sessions with targets: `standin` and its output.

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
    /// The programs in the folder that the environment names, or else those of this repository, built once into `target`.
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

    /// Removes the variables of the tests: `standin` warns about unknown names.
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.0.join(name));
        for variable in [
            environment::PROGRAMS,
            environment::FIXTURES,
            environment::STATIC_STANDIND,
            environment::CONTEXTS,
            environment::GROUP,
            environment::AWS_TOOLS,
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

/// The output and exit code of a program.
#[derive(Clone, Debug)]
pub struct ProgramOutput {
    pub stdout: String,
    pub stderr: String,
    /// The exit code as a shell reports it: the program's own code, or 128 plus the number of the signal that ended it.
    pub code: Option<i32>,
}

impl ProgramOutput {
    /// Runs a command until it exits.
    pub fn of(command: &mut Command) -> Result<Self> {
        let Output {
            status,
            stdout,
            stderr,
        } = command.output()?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(ProgramOutput::new(text(stdout), text(stderr), status))
    }

    pub fn new(stdout: String, stderr: String, status: ExitStatus) -> Self {
        let signal = status.signal().map(|signal| 128 + signal);
        ProgramOutput {
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

impl std::fmt::Display for ProgramOutput {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "exited with {:?}\n--- stdout\n{}--- stderr\n{}",
            self.code, self.stdout, self.stderr
        )
    }
}
