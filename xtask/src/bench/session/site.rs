//! The site where a session is measured: a client and a target in network namespaces of their own, and the wire between them.
//!
//! ```text
//!   client 10.201.0.1                      the wire            target 10.201.0.2
//!   worker ───────────────────────────────────────────────────────── server        bare
//!   worker ── relay ──────────────────────────────────────── relay ── server        plain chain, TLS chain
//!   worker ── standin ───────────────────────────────────── standind ─ server        session
//! ```

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use lab::wire::{Conditions, Wire};

use super::programs::{Program, Programs, Worker, log_path};

pub(in crate::bench) const TARGET: &str = "10.201.0.2";
pub(in crate::bench) const CLIENT: &str = "10.201.0.1";
/// Small files in the target's tree. Each is used once where a cache would distort the result.
pub(super) const SMALL_FILES: usize = 4000;
/// The size of the large file.
pub(super) const LARGE_FILE: usize = 64 << 20;

/// The port of an agent.
pub(in crate::bench) const AGENT: u16 = 7100;
const TLS_AGENT: u16 = 7101;
const CUT_AGENT: u16 = 7102;
const TOKEN: &str = "the token of the bench";

/// The target's servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Server {
    Echo = 7001,
    Sink = 7002,
    Source = 7003,
    Tally = 7004,
    Full = 7005,
    Http2 = 7006,
}

impl Server {
    pub(super) fn address(self) -> String {
        format!("{TARGET}:{}", self as u16)
    }
}

/// The transport between the two hops of a chain of relays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    Tcp,
    Tls,
}

impl Transport {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "no TLS",
            Self::Tls => "TLS",
        }
    }

    /// The address of a chain to a server, in the client's namespace.
    pub(super) fn chain(self, server: Server) -> String {
        format!("127.0.0.1:{}", self.near(server))
    }

    fn near(self, server: Server) -> u16 {
        server as u16 + if self == Self::Tcp { 1000 } else { 3000 }
    }

    fn far(self, server: Server) -> u16 {
        self.near(server) + 1000
    }
}

/// The site. What was started in it ends with it, in this order.
#[derive(Debug)]
pub(super) struct Site {
    programs: Programs,
    wire: Wire,
    certificate: String,
    _relays: Vec<Program>,
    agents: Vec<Program>,
    target: Program,
    client_network: Program,
    target_network: Program,
    folder: Folder,
}

impl Site {
    pub(super) fn build(programs: Programs) -> Result<Self> {
        let folder = Folder::new()?;
        // Discards the log of the previous run.
        File::create(log_path()?)?;
        let config = folder.0.join("standin.yaml");
        // The worker's own servers on this machine are not the target's.
        fs::write(
            &config,
            "feature:\n  network:\n    outgoing:\n      ignore_localhost: true\n",
        )?;
        let (client_network, target_network) = (network()?, network()?);
        let wire = join(&client_network, &target_network)?;
        let target = start_target(&programs, &target_network)?;
        let mut site = Self {
            programs,
            wire,
            certificate: String::new(),
            _relays: Vec::new(),
            agents: Vec::new(),
            target,
            client_network,
            target_network,
            folder,
        };
        site.start_agents()?;
        site.start_relays()?;
        Ok(site)
    }

    /// The target's tree.
    pub(super) fn tree() -> &'static str {
        "/mnt"
    }

    /// A folder of this machine, for local files.
    pub(super) fn local_folder(&self) -> &Path {
        &self.folder.0
    }

    pub(super) fn set_round_trip(&self, milliseconds: u64) -> Result<()> {
        let delay = Duration::from_micros(milliseconds * 500);
        self.wire
            .set_both("client", "target", Conditions::delayed_by(delay))?;
        Ok(())
    }

    /// A worker at the client without a session.
    pub(super) fn bare_worker(&self) -> Result<Worker> {
        worker(&self.client_network, &self.programs)
    }

    /// A worker at the client, in a session with the target.
    pub(super) fn session_worker(&self, transport: Transport) -> Result<Worker> {
        match transport {
            Transport::Tcp => self.session_worker_at(AGENT, None),
            Transport::Tls => self.session_worker_at(TLS_AGENT, Some(&self.certificate)),
        }
    }

    /// The same, over connections that are reset at an interval.
    pub(super) fn cut_session_worker(&mut self, every: Duration) -> Result<(Program, Worker)> {
        let mut relay = self.relay(&self.target_network);
        relay.args(["--listen", &format!("{TARGET}:{CUT_AGENT}")]);
        relay.args(["--to", &format!("{TARGET}:{AGENT}")]);
        relay.args(["--cut-every", &every.as_millis().to_string()]);
        let relay = Program::start(relay)?.0;
        Ok((relay, self.session_worker_at(CUT_AGENT, None)?))
    }

    /// A static program that does nothing, if there is one.
    pub(super) fn hello(&self) -> Option<PathBuf> {
        self.programs.hello.clone()
    }

    /// The agent that sessions without TLS use.
    pub(super) fn agent_pid(&self) -> Option<u32> {
        self.agents.first().map(Program::pid)
    }

    fn session_worker_at(&self, port: u16, certificate: Option<&str>) -> Result<Worker> {
        let mut command = exec(&self.client_network, &self.programs, port);
        if let Some(certificate) = certificate {
            command.args(["--agent-certificate", certificate]);
        }
        command.arg("-f").arg(self.folder.0.join("standin.yaml"));
        command.arg("--").arg(&self.programs.workload).arg("worker");
        Worker::start(command)
    }

    fn start_agents(&mut self) -> Result<()> {
        for (port, tls) in [(AGENT, false), (TLS_AGENT, true)] {
            let network = in_network(&self.target_network);
            let mut command = agent(network, &self.programs, &self.target, port);
            if tls {
                command.arg("--tls");
            }
            let (agent, first_line) = Program::start(command)?;
            if tls {
                self.certificate = last_word(&first_line)?;
            }
            self.agents.push(agent);
        }
        Ok(())
    }

    fn start_relays(&mut self) -> Result<()> {
        let mut relays = Vec::new();
        for server in [Server::Echo, Server::Sink, Server::Source] {
            for transport in [Transport::Tcp, Transport::Tls] {
                let far_address = format!("{TARGET}:{}", transport.far(server));
                let mut far = self.relay(&self.target_network);
                far.args(["--listen", &far_address]);
                far.args(["--to", &format!("127.0.0.1:{}", server as u16)]);
                let mut near = self.relay(&self.client_network);
                near.args(["--listen", &transport.chain(server)]);
                near.args(["--to", &far_address]);
                if transport == Transport::Tls {
                    far.arg("--tls");
                }
                let (far, first_line) = Program::start(far)?;
                if transport == Transport::Tls {
                    near.args(["--certificate", &last_word(&first_line)?]);
                }
                relays.extend([far, Program::start(near)?.0]);
            }
        }
        self._relays = relays;
        Ok(())
    }

    fn relay(&self, network: &Program) -> Command {
        let mut command = in_network(network);
        command.arg(&self.programs.workload).arg("relay");
        command
    }
}

fn last_word(line: &str) -> Result<String> {
    let word = line.split_whitespace().last();
    Ok(word.context("no certificate was printed")?.to_owned())
}

/// A process that keeps a network namespace alive.
pub(in crate::bench) fn network() -> Result<Program> {
    let mut command = Command::new("unshare");
    command.args([
        "--net",
        "--",
        "sh",
        "-c",
        "ip link set lo up && echo up && exec cat >&2",
    ]);
    Ok(Program::start(command)?.0)
}

/// A command in the network namespace of a process.
pub(in crate::bench) fn in_network(network: &Program) -> Command {
    let mut command = Command::new("nsenter");
    command
        .arg(format!("--net={}", namespace(network)))
        .arg("--");
    command
}

fn namespace(network: &Program) -> String {
    format!("/proc/{}/ns/net", network.pid())
}

/// Puts the wire between two namespaces.
pub(in crate::bench) fn join(client: &Program, target: &Program) -> Result<Wire> {
    let wire = Wire::start()?;
    for (endpoint, network, own, other) in [
        ("client", client, CLIENT, TARGET),
        ("target", target, TARGET, CLIENT),
    ] {
        let address = own.parse().context("an address of the bench")?;
        let namespace_file = File::open(namespace(network)).context("opening a namespace")?;
        wire.attach(endpoint, endpoint, &namespace_file, "wire0", &[address])?;
        for arguments in [
            ["addr", "add", own, "dev", "wire0"],
            ["route", "add", other, "dev", "wire0"],
        ] {
            let status = in_network(network).arg("ip").args(arguments).status()?;
            if !status.success() {
                bail!("`ip {}` failed", arguments.join(" "));
            }
        }
    }
    Ok(wire)
}

/// A worker in a network.
pub(in crate::bench) fn worker(network: &Program, programs: &Programs) -> Result<Worker> {
    let mut command = in_network(network);
    command.arg(&programs.workload).arg("worker");
    Worker::start(command)
}

/// The agent of a target at a port. `inside` runs a program where the agent has to be.
pub(in crate::bench) fn agent(
    mut inside: Command,
    programs: &Programs,
    target: &Program,
    port: u16,
) -> Command {
    inside
        .env("STANDIN_AGENT_TOKEN", TOKEN)
        .arg(&programs.standind)
        .args(["agent", "--end-with-input"])
        .args(["--process", &target.pid().to_string()])
        .args(["--listen", &format!("{TARGET}:{port}")]);
    inside
}

/// `standin exec` with the agent at a port. The program to run is missing.
pub(in crate::bench) fn exec(network: &Program, programs: &Programs, port: u16) -> Command {
    let mut command = in_network(network);
    command
        .env("STANDIN_AGENT_TOKEN", TOKEN)
        .arg(&programs.standin)
        .args(["exec", "--agent", &format!("{TARGET}:{port}")]);
    command
}

fn start_target(programs: &Programs, network: &Program) -> Result<Program> {
    let mut command = in_network(network);
    command
        .args(["unshare", "--mount", "--uts", "--"])
        .arg(&programs.workload)
        .args(["target", "--tree", Site::tree()])
        .args(["--small", &SMALL_FILES.to_string()])
        .args(["--large", &(LARGE_FILE >> 20).to_string()]);
    Ok(Program::start(command)?.0)
}

/// A folder that is removed with the site.
#[derive(Debug)]
pub(in crate::bench) struct Folder(pub(in crate::bench) PathBuf);

impl Folder {
    pub(in crate::bench) fn new() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("standin-bench-{}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
