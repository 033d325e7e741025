//! A target process, as the tests control it.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::role::Role;

/// A process of this machine in its own namespaces. It exits when this value is dropped and when this program exits.
#[derive(Debug)]
pub struct Target {
    peer_network: Child,
    pid: u32,
}

impl Target {
    /// A variable in the environment of every target.
    pub const VARIABLE: (&'static str, &'static str) = ("GREETING", "hello from the target");

    /// Starts a target. Returns when the target and its peer network are ready.
    pub fn start() -> Result<Self> {
        Self::start_with(&[])
    }

    /// The same, with more variables in the target's environment.
    pub fn start_with(variables: &[(&str, &str)]) -> Result<Self> {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut peer_network = Role::PeerNetwork
            .command()?
            .env_clear()
            // `PATH` may lack the folders of administration programs, also for root.
            .env("PATH", format!("{path}:/usr/local/sbin:/usr/sbin:/sbin"))
            .envs([Self::VARIABLE])
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start the peer network of a target")?;
        let mut line = String::new();
        let output = peer_network.stdout.take().context("no output")?;
        BufReader::new(output).read_line(&mut line)?;
        let Some(pid) = line.trim().strip_prefix("ready ") else {
            let mut message = String::new();
            drop(peer_network.stdin.take());
            if let Some(mut errors) = peer_network.stderr.take() {
                errors.read_to_string(&mut message)?;
            }
            let _ = peer_network.wait();
            bail!("the target did not start: {message}");
        };
        Ok(Target {
            pid: pid.parse()?,
            peer_network,
        })
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// A command that runs in the peer network, as the target's clients do.
    pub fn in_peer_network(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/proc/{}/ns/net", self.peer_network.id()))
            .args(["--", program])
            .stdin(Stdio::null());
        command
    }

    /// The process of the peer network, which has the address `network::SERVER`.
    pub fn peer_network_pid(&self) -> u32 {
        self.peer_network.id()
    }

    /// The path of a target's file as this program sees it.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let below = path.as_ref().strip_prefix("/").unwrap_or(path.as_ref());
        Path::new("/proc")
            .join(self.pid.to_string())
            .join("root")
            .join(below)
    }

    /// Writes a file of the target, and creates the folders above it.
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

    /// The file names in a folder of the target, sorted.
    pub fn list(&self, path: &str) -> Result<Vec<String>> {
        let mut names = fs::read_dir(self.path(path))?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<Result<Vec<_>>>()?;
        names.sort();
        Ok(names)
    }

    /// Kills the target, and leaves the peer network running.
    pub fn kill(&self) -> Result<()> {
        Ok(kill(Pid::from_raw(self.pid.try_into()?), Signal::SIGKILL)?)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        drop(self.peer_network.stdin.take());
        let _ = self.peer_network.wait();
    }
}
