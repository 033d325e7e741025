//! The site where incoming traffic is measured: clients and the developer on one side of the wire, the target on the other.
//!
//! ```text
//!   client 10.201.0.1                    the wire                   target 10.201.0.2
//!   load ─────────────────────────────────────────────────────────── application       direct
//!   load ──────────────────────────────────────────── proxy, relay ─ application       one hop
//!   load ──────────────────────────────────────────────── standind ─ application       not matched, mirrored
//!   load ──────────────────────────────────────────────── standind
//!   developer's server ── standin ────────────────────────────┘                        stolen, copies
//! ```

use std::fs;
use std::time::Duration;

use anyhow::Result;
use lab::wire::{Conditions, Wire};

use crate::bench::load::{Hop, Load, LoadSite, MATCHED_HEADER, Route, UNMATCHED_HEADER};
use crate::bench::server::{Mode, ServerBehavior, Session};
use crate::bench::session::programs::{Program, Programs, Worker, processor_seconds};
use crate::bench::session::site::{
    AGENT, Folder, TARGET, agent, exec, in_network, join, network, worker,
};

/// The application's port that sessions steal, and a second port without a session.
const APPLICATION: u16 = 8080;
const DIRECT: u16 = 8081;
const PROXY: u16 = 8082;
const RELAY: u16 = 8083;
/// The port of the target's sink server, and of a relay in front of it.
pub(super) const SINK: u16 = 7002;
pub(super) const SINK_RELAY: u16 = 8093;

/// The site. What was started in it ends with it, in this order.
#[derive(Debug)]
pub(super) struct Site {
    programs: Programs,
    worker: Worker,
    agent: Program,
    proxy: Program,
    relay: Program,
    _servers: [Program; 2],
    target: Program,
    _wire: Wire,
    client_network: Program,
    _target_network: Program,
    folder: Folder,
}

impl Site {
    pub(super) fn build(programs: &Programs) -> Result<Self> {
        let folder = Folder::new()?;
        let (client_network, target_network) = (network()?, network()?);
        let wire = join(&client_network, &target_network)?;
        wire.set_both("client", "target", Conditions::delayed_by(Duration::ZERO))?;
        let workload = |role: &str| {
            let mut command = in_network(&target_network);
            command.arg(&programs.workload).arg(role);
            command
        };
        let mut target = in_network(&target_network);
        target
            .args(["unshare", "--mount", "--uts", "--"])
            .arg(&programs.workload)
            .args(["target", "--tree", "/mnt", "--small", "0", "--large", "0"]);
        let target = Program::start(target)?.0;
        let mut application = workload("http");
        application.args(["--from", "original"]);
        for port in [APPLICATION, DIRECT] {
            application.args(["--listen", &format!("0.0.0.0:{port}")]);
        }
        let application = Program::start(application)?.0;
        let hop = |role: &str, port: u16, to: u16| {
            let mut command = workload(role);
            command.args(["--listen", &format!("{TARGET}:{port}")]);
            command.args(["--to", &format!("127.0.0.1:{to}")]);
            Program::start(command).map(|(program, _)| program)
        };
        let (proxy, relay) = (hop("proxy", PROXY, DIRECT)?, hop("relay", RELAY, DIRECT)?);
        let sink_relay = hop("relay", SINK_RELAY, SINK)?;
        let agent = agent(in_network(&target_network), programs, &target, AGENT);
        let agent = Program::start(agent)?.0;
        let worker = worker(&client_network, programs)?;
        Ok(Self {
            programs: programs.clone(),
            worker,
            agent,
            proxy,
            relay,
            _servers: [application, sink_relay],
            target,
            _wire: wire,
            client_network,
            _target_network: target_network,
            folder,
        })
    }

    pub(super) fn agent_pid(&self) -> u32 {
        self.agent.pid()
    }

    /// Starts a session for the application's port.
    pub(super) fn session(&mut self, mode: Mode, behavior: ServerBehavior) -> Result<Session> {
        let session = self.start_session(mode, behavior, APPLICATION)?;
        let route = match mode {
            Mode::Steal | Mode::StealAll => Route::stolen(),
            Mode::Mirror => Route::unmatched(),
        };
        session.wait_for_traffic(|| Load::touch().run(self, &route).map(drop))?;
        Ok(session)
    }

    /// Starts a session for a port of the target, and waits until the server listens.
    pub(super) fn start_session(
        &self,
        mode: Mode,
        behavior: ServerBehavior,
        port: u16,
    ) -> Result<Session> {
        Session::start(
            exec(&self.client_network, &self.programs, AGENT),
            &self.programs,
            &self.folder.0,
            mode,
            behavior,
            port,
        )
    }

    /// Sockets of the target's network in the state `TIME_WAIT`.
    pub(super) fn waiting_sockets(&self) -> Result<usize> {
        let mut count = 0;
        for table in ["tcp", "tcp6"] {
            let path = format!("/proc/{}/net/{table}", self.target.pid());
            let text = fs::read_to_string(path)?;
            // The fourth word of a line is the state.
            let states = text
                .lines()
                .filter_map(|line| line.split_whitespace().nth(3));
            count += states.filter(|state| *state == "06").count();
        }
        Ok(count)
    }
}

impl LoadSite for Site {
    fn worker(&mut self) -> &mut Worker {
        &mut self.worker
    }

    fn processor_seconds(&self, hop: Hop) -> Result<f64> {
        let program = match hop {
            Hop::Nothing => return Ok(0.0),
            Hop::Proxy => &self.proxy,
            Hop::Relay => &self.relay,
            Hop::Agent => &self.agent,
        };
        processor_seconds(program.pid())
    }
}

impl Route {
    fn at(port: u16, header: &'static str, from: &'static str, hop: Hop) -> Self {
        Self::new(format!("{TARGET}:{port}"), header, from, hop)
    }

    pub(super) fn direct() -> Self {
        Self::at(DIRECT, UNMATCHED_HEADER, "original", Hop::Nothing)
    }

    pub(super) fn proxy() -> Self {
        Self::at(PROXY, UNMATCHED_HEADER, "original", Hop::Proxy)
    }

    pub(super) fn relay() -> Self {
        Self::at(RELAY, UNMATCHED_HEADER, "original", Hop::Relay)
    }

    /// Through a session that does not match it, or that mirrors it.
    pub(super) fn unmatched() -> Self {
        Self::at(APPLICATION, UNMATCHED_HEADER, "original", Hop::Agent)
    }

    pub(super) fn stolen() -> Self {
        Self::at(APPLICATION, MATCHED_HEADER, "developer", Hop::Agent)
    }
}
