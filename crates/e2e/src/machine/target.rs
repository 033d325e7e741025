//! A target, as the tests see it.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::role::Role;

/// A process of this machine with namespaces of its own. It ends with this value, and with this program.
#[derive(Debug)]
pub struct Target {
    ground: Child,
    pid: u32,
}

impl Target {
    /// What is in the environment of every target.
    pub const VARIABLE: (&'static str, &'static str) = ("GREETING", "hello from the target");

    /// Returns when the target and everything beside it serve.
    pub fn start() -> Result<Self> {
        Self::start_with(&[])
    }

    /// The same, with more variables in the target's environment.
    pub fn start_with(variables: &[(&str, &str)]) -> Result<Self> {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut ground = Role::Ground
            .command()?
            .env_clear()
            // The programs for administrators are not on the path of every user who becomes root.
            .env("PATH", format!("{path}:/usr/local/sbin:/usr/sbin:/sbin"))
            .envs([Self::VARIABLE])
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start the surroundings of a target")?;
        let mut line = String::new();
        let output = ground.stdout.take().context("no output")?;
        BufReader::new(output).read_line(&mut line)?;
        let Some(pid) = line.trim().strip_prefix("ready ") else {
            let mut said = String::new();
            drop(ground.stdin.take());
            if let Some(mut errors) = ground.stderr.take() {
                errors.read_to_string(&mut said)?;
            }
            let _ = ground.wait();
            bail!("there is no target: {said}");
        };
        Ok(Target {
            pid: pid.parse()?,
            ground,
        })
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// A command in the network beside the target, from where its clients come.
    pub fn outside(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/proc/{}/ns/net", self.ground.id()))
            .args(["--", program])
            .stdin(Stdio::null());
        command
    }

    /// The process that `network::SERVER` is.
    pub fn ground(&self) -> u32 {
        self.ground.id()
    }

    /// Where a path of the target is for this program.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let below = path.as_ref().strip_prefix("/").unwrap_or(path.as_ref());
        Path::new("/proc")
            .join(self.pid.to_string())
            .join("root")
            .join(below)
    }

    /// Makes a file of the target, with the folders above it.
    pub fn write(&self, path: &str, content: impl AsRef<[u8]>) -> Result<()> {
        let path = self.path(path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))
    }

    pub fn read(&self, path: &str) -> Result<String> {
        let path = self.path(path);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }

    /// The names in a folder of the target, in their order.
    pub fn list(&self, path: &str) -> Result<Vec<String>> {
        let mut names = fs::read_dir(self.path(path))?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<Result<Vec<_>>>()?;
        names.sort();
        Ok(names)
    }

    /// Ends the target at once, and nothing beside it.
    pub fn kill(&self) -> Result<()> {
        Ok(kill(Pid::from_raw(self.pid.try_into()?), Signal::SIGKILL)?)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        drop(self.ground.stdin.take());
        let _ = self.ground.wait();
    }
}
