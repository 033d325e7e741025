//! The peer network of a target: its nameserver and its servers.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::thread;

use anyhow::{Context as _, Result, anyhow, ensure};
use nix::sched::{CloneFlags, unshare};

use super::network::{NAMESERVER, SERVER, SERVER6};
use super::role::Role;
use super::{nameserver, servers};

/// Prints `ready <pid of the target>` when everything runs, and serves until standard input ends.
pub(super) fn main() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNET).context("cannot unshare the network namespace")?;
    let mut target = StartingTarget::start()?;
    target.expect("unshared")?;
    let pid = target.process.id().to_string();
    ip(&format!(
        "link add eth0 type veth peer name eth0 netns {pid}"
    ))?;
    for address in [NAMESERVER, SERVER] {
        ip(&format!("address add {address}/24 dev eth0"))?;
    }
    ip(&format!("address add {SERVER6}/64 dev eth0 nodad"))?;
    for device in ["lo", "eth0"] {
        ip(&format!("link set {device} up"))?;
    }
    target.send("wired")?;
    target.expect("ready")?;
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        nameserver::start().await?;
        servers::start().await
    })?;
    let mut stdout = io::stdout();
    writeln!(stdout, "ready {pid}")?;
    stdout.flush()?;
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Runs `ip` in the caller's network namespace.
pub(super) fn ip(arguments: &str) -> Result<()> {
    let output = Command::new("ip")
        .args(arguments.split(' '))
        .output()
        .context("cannot run ip")?;
    ensure!(
        output.status.success(),
        "ip {arguments}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// The target while it starts. This process holds its standard input, so the target exits with this process.
struct StartingTarget {
    process: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl StartingTarget {
    fn start() -> Result<Self> {
        let spawn = || -> Result<Child> {
            unshare(CloneFlags::CLONE_NEWPID).context("cannot unshare the process namespace")?;
            let mut command = Role::Target.command()?;
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            command.spawn().context("cannot start the target")
        };
        // A thread whose children get a new process namespace cannot start threads, so this is not the main thread.
        let mut process = thread::spawn(spawn)
            .join()
            .map_err(|_| anyhow!("starting the target panicked"))??;
        let output = process.stdout.take().context("no output")?;
        Ok(StartingTarget {
            process,
            output: BufReader::new(output),
        })
    }

    fn expect(&mut self, word: &str) -> Result<()> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        ensure!(line.trim() == word, "the target did not report {word}");
        Ok(())
    }

    fn send(&mut self, word: &str) -> Result<()> {
        let input = self.process.stdin.as_mut().context("no input")?;
        Ok(writeln!(input, "{word}")?)
    }
}
