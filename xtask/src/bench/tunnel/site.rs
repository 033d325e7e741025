//! The site: hub and agent in network namespaces of their own, and the wire between them.
//!
//! ```text
//!   client 10.201.0.1                    the wire           target 10.201.0.2
//!   load ───────────────────────────────────────────────────── target       direct
//!   load ── hub ─────────────────────────────────────── agent ─ target       ours, remotedialer
//! ```

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use lab::wire::{Conditions, Wire};
use serde_json::Value;

use crate::bench::session::programs::{Numbers, Program, Worker, log_path, memory};
use crate::bench::session::site::{CLIENT, Folder, TARGET, in_network, join, network};
use crate::{process, workspace};

const TARGET_PORT: u16 = 7001;

/// What carries the connections of the load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Carrier {
    Direct,
    Ours,
    Remotedialer,
}

impl Carrier {
    pub(super) const ALL: [Self; 3] = [Self::Direct, Self::Ours, Self::Remotedialer];
    pub(super) const TUNNELS: [Self; 2] = [Self::Ours, Self::Remotedialer];

    /// Where the load connects to.
    pub(super) fn address(self) -> String {
        match self {
            Self::Direct => format!("{TARGET}:{TARGET_PORT}"),
            Self::Ours | Self::Remotedialer => format!("127.0.0.1:{}", self.port() + 1000),
        }
    }

    fn port(self) -> u16 {
        match self {
            Self::Direct => TARGET_PORT,
            Self::Ours => 8443,
            Self::Remotedialer => 8444,
        }
    }
}

/// Both ends of a tunnel.
#[derive(Debug)]
pub(super) struct Ends {
    agent: Program,
    hub: Program,
}

impl Ends {
    /// The memory of both ends, in MiB.
    pub(super) fn memory(&self) -> Result<f64> {
        Ok(memory(self.hub.pid())? + memory(self.agent.pid())?)
    }
}

/// The site. What was started in it ends with it, in this order.
#[derive(Debug)]
pub(super) struct Site {
    load: Worker,
    ours: Ends,
    remotedialer: Ends,
    _target: Program,
    wire: Wire,
    client_network: Program,
    target_network: Program,
    folder: Folder,
}

impl Site {
    pub(super) fn build() -> Result<Self> {
        let folder = Folder::new()?;
        // Discards the log of the previous run.
        File::create(log_path()?)?;
        process::run(
            Command::new(remotedialer()?)
                .arg("certificates")
                .arg(&folder.0)
                .arg(CLIENT),
        )?;
        let (client_network, target_network) = (network()?, network()?);
        let wire = join(&client_network, &target_network)?;
        let mut target = in_network(&target_network);
        target.arg(remotedialer()?).arg("target");
        target.arg(format!("0.0.0.0:{TARGET_PORT}"));
        let target = Program::start(target)?.0;
        let networks = (&client_network, &target_network);
        let ours = start_ours(networks, &folder.0)?;
        let remotedialer_ends = start_remotedialer(networks, &folder.0)?;
        let mut load = in_network(&client_network);
        load.arg(remotedialer()?).arg("load");
        Ok(Self {
            load: Worker::start(load)?,
            ours,
            remotedialer: remotedialer_ends,
            _target: target,
            wire,
            client_network,
            target_network,
            folder,
        })
    }

    pub(super) fn load(&mut self, request: &Value) -> Result<Numbers> {
        self.load.call(request)
    }

    pub(super) fn seconds(&mut self, request: &Value) -> Result<Vec<f64>> {
        self.load.measure(request, "seconds")
    }

    pub(super) fn ends(&self, carrier: Carrier) -> Option<&Ends> {
        match carrier {
            Carrier::Direct => None,
            Carrier::Ours => Some(&self.ours),
            Carrier::Remotedialer => Some(&self.remotedialer),
        }
    }

    pub(super) fn set_round_trip(&self, milliseconds: u64) -> Result<()> {
        let delay = Duration::from_micros(milliseconds * 500);
        self.set(Conditions::delayed_by(delay))
    }

    /// Drops every packet between hub and agent.
    pub(super) fn cut(&self) -> Result<()> {
        self.set(Conditions::cut())
    }

    fn set(&self, conditions: Conditions) -> Result<()> {
        Ok(self.wire.set_both("client", "target", conditions)?)
    }

    /// A hub for simulated agents.
    pub(super) fn second_hub(&self) -> Result<Worker> {
        let mut command = in_network(&self.client_network);
        command.arg(carry()?).arg("hub").arg(&self.folder.0);
        command.args([format!("{CLIENT}:8445"), "127.0.0.1:9445".to_owned()]);
        let mut hub = Worker::start(command)?;
        hub.wait_until_ready()?;
        Ok(hub)
    }

    /// Simulated agents of the second hub, in one process.
    pub(super) fn agents(&self, count: usize) -> Result<Program> {
        let mut command = in_network(&self.target_network);
        command.arg(carry()?).arg("agent").arg(&self.folder.0);
        command.arg(format!("wss://{CLIENT}:8445"));
        command.arg(format!("127.0.0.1:{TARGET_PORT}"));
        command.arg(count.to_string());
        Ok(Program::start(command)?.0)
    }
}

fn start_ours((client, target): (&Program, &Program), folder: &Path) -> Result<Ends> {
    let carrier = Carrier::Ours;
    let mut hub = in_network(client);
    hub.arg(carry()?).arg("hub").arg(folder);
    hub.args([format!("{CLIENT}:{}", carrier.port()), carrier.address()]);
    let hub = Program::start(hub)?.0;
    let mut agent = in_network(target);
    agent.arg(carry()?).arg("agent").arg(folder);
    agent.arg(format!("wss://{CLIENT}:{}", carrier.port()));
    agent.arg(format!("127.0.0.1:{TARGET_PORT}"));
    let agent = Program::start(agent)?.0;
    Ok(Ends { agent, hub })
}

fn start_remotedialer((client, target): (&Program, &Program), folder: &Path) -> Result<Ends> {
    let carrier = Carrier::Remotedialer;
    let mut hub = in_network(client);
    hub.arg(remotedialer()?).arg("hub").arg(folder);
    hub.args([format!("{CLIENT}:{}", carrier.port()), carrier.address()]);
    hub.arg(format!("127.0.0.1:{TARGET_PORT}"));
    let hub = Program::start(hub)?.0;
    let mut agent = in_network(target);
    agent.arg(remotedialer()?).arg("agent").arg(folder);
    agent.arg(format!("wss://{CLIENT}:{}", carrier.port()));
    let agent = Program::start(agent)?.0;
    Ok(Ends { agent, hub })
}

/// Both ends of ours.
fn carry() -> Result<PathBuf> {
    Ok(workspace::target()?.join("release/examples/carry"))
}

/// Both ends of remotedialer, the target and the load.
pub(super) fn remotedialer() -> Result<PathBuf> {
    let folder = workspace::target()?.join("bench");
    std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    Ok(folder.join("remotedialer"))
}
