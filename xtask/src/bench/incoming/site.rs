//! Where incoming traffic is measured: clients and the developer on one side of the wire, the target on the other.
//!
//! ```text
//!   client 10.201.0.1                    the wire                   target 10.201.0.2
//!   load ─────────────────────────────────────────────────────────── application       direct
//!   load ──────────────────────────────────────────── proxy, relay ─ application       one hop
//!   load ──────────────────────────────────────────────── standind ─ application       not matched, mirrored
//!   load ──────────────────────────────────────────────── standind
//!   developer's server ── standin ────────────────────────────┘                        stolen, copies
//! ```

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use lab::wire::{Conditions, Wire};

use super::load::{Hop, Load, Way};
use crate::bench::session::programs::{Program, Programs, Worker, end, log, log_path};
use crate::bench::session::site::{Folder, TARGET, join, network, within};

/// The application's port that sessions take, and where it listens once more.
const APPLICATION: u16 = 8080;
const DIRECT: u16 = 8081;
const PROXY: u16 = 8082;
const RELAY: u16 = 8083;
/// The port of the target that takes all that comes, and a relay in front of it.
pub(super) const SINK: u16 = 7002;
pub(super) const SINK_RELAY: u16 = 8093;

const AGENT: u16 = 7100;
const TOKEN: &str = "the token of the bench";
/// So long the first traffic of a session may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// In which the kernel counts, for each second.
const TICKS: f64 = 100.0;

/// Which requests a session that steals wants.
const WANTED: &str = "x-standin: yes";
const NOT_WANTED: &str = "x-standin: no!";

/// The place. What was started in it ends with it, in this order.
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

/// What a session does with the traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Takes the requests that it wants.
    Steal,
    /// Gets a copy of everything.
    Mirror,
}

/// How the developer's server treats its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    Healthy,
    Slow,
    Dead,
}

impl Manner {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Slow => "slow",
            Self::Dead => "dead",
        }
    }
}

/// A developer's server in a session, until this is dropped.
#[derive(Debug)]
pub(super) struct Session {
    child: Child,
    /// What the server says.
    lines: Receiver<String>,
}

impl Site {
    pub(super) fn build(programs: Programs) -> Result<Self> {
        let folder = Folder::new()?;
        // What was said in the run before is of no use any more.
        File::create(log_path()?)?;
        let (client_network, target_network) = (network()?, network()?);
        let wire = join(&client_network, &target_network)?;
        wire.set_both("client", "target", Conditions::delayed_by(Duration::ZERO))?;
        let workload = |role: &str| {
            let mut command = within(&target_network);
            command.arg(&programs.workload).arg(role);
            command
        };
        let mut target = within(&target_network);
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
        let agent = start_agent(&programs, &target_network, &target)?;
        let mut worker = within(&client_network);
        worker.arg(&programs.workload).arg("worker");
        let worker = Worker::start(worker)?;
        Ok(Self {
            programs,
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

    pub(super) fn worker(&mut self) -> &mut Worker {
        &mut self.worker
    }

    pub(super) fn agent_pid(&self) -> u32 {
        self.agent.pid()
    }

    /// Starts a session for the application's port.
    pub(super) fn session(&mut self, mode: Mode, manner: Manner) -> Result<Session> {
        let session = self.start_session(mode, manner, APPLICATION)?;
        let way = match mode {
            Mode::Steal => Way::stolen(),
            Mode::Mirror => Way::unmatched(),
        };
        session.wait_for_traffic(|| Load::touch().run(self, &way).map(drop))?;
        Ok(session)
    }

    /// Starts a session for a port of the target, and waits until the server listens.
    pub(super) fn start_session(&self, mode: Mode, manner: Manner, port: u16) -> Result<Session> {
        let config = self.folder.0.join(format!("{mode:?}.yaml"));
        let incoming = match mode {
            Mode::Steal => {
                format!("mode: steal\n      http_filter:\n        header_filter: \"^{WANTED}$\"")
            }
            Mode::Mirror => "mode: mirror".to_owned(),
        };
        let text = format!("feature:\n  network:\n    incoming:\n      {incoming}\n");
        fs::write(&config, text)?;
        let mut command = within(&self.client_network);
        command
            .env("STANDIN_AGENT_TOKEN", TOKEN)
            .arg(&self.programs.standin)
            .args(["exec", "--agent", &format!("{TARGET}:{AGENT}")])
            .arg("-f")
            .arg(config)
            .arg("--")
            .arg(&self.programs.workload)
            .args(["http", "--from", "developer"])
            .args(["--listen", &format!("0.0.0.0:{port}")])
            .args(["--manner", manner.name()]);
        Session::start(command)
    }

    /// What a hop has used of the processors, in seconds.
    pub(super) fn processor_seconds(&self, hop: Hop) -> Result<f64> {
        let program = match hop {
            Hop::Nothing => return Ok(0.0),
            Hop::Proxy => &self.proxy,
            Hop::Relay => &self.relay,
            Hop::Agent => &self.agent,
        };
        let text = fs::read_to_string(format!("/proc/{}/stat", program.pid()))?;
        // After the name, which is in brackets: the 14th and the 15th field are those of the program and of the kernel.
        let fields = text.rsplit(')').next().unwrap_or_default();
        let ticks = fields.split_whitespace().skip(11).take(2);
        let ticks: f64 = ticks.map(str::parse::<f64>).sum::<Result<f64, _>>()?;
        Ok(ticks / TICKS)
    }

    /// Sockets of the target's network that wait for what may still be under way to them.
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

fn start_agent(programs: &Programs, network: &Program, target: &Program) -> Result<Program> {
    let mut command = within(network);
    command
        .env("STANDIN_AGENT_TOKEN", TOKEN)
        .arg(&programs.standind)
        .args(["agent", "--end-with-input"])
        .args(["--process", &target.pid().to_string()])
        .args(["--listen", &format!("{TARGET}:{AGENT}")]);
    Ok(Program::start(command)?.0)
}

impl Way {
    pub(super) fn direct() -> Self {
        Self::new(DIRECT, NOT_WANTED, "original", Hop::Nothing)
    }

    pub(super) fn proxy() -> Self {
        Self::new(PROXY, NOT_WANTED, "original", Hop::Proxy)
    }

    pub(super) fn relay() -> Self {
        Self::new(RELAY, NOT_WANTED, "original", Hop::Relay)
    }

    /// Through a session that does not want it, or only a copy.
    pub(super) fn unmatched() -> Self {
        Self::new(APPLICATION, NOT_WANTED, "original", Hop::Agent)
    }

    pub(super) fn stolen() -> Self {
        Self::new(APPLICATION, WANTED, "developer", Hop::Agent)
    }
}

impl Session {
    fn start(mut command: Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log()?)
            .spawn()
            .context("starting a session")?;
        let output = child.stdout.take().context("a session has no output")?;
        let (to_bench, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if to_bench.send(line).is_err() {
                    return;
                }
            }
        });
        let session = Self { child, lines };
        match session.lines.recv_timeout(PATIENCE) {
            Ok(line) if line == "ready" => Ok(session),
            other => bail!(
                "a session did not begin ({other:?}); what was said is in {}",
                log_path()?.display()
            ),
        }
    }

    /// Makes requests until one has arrived at the developer's server.
    pub(super) fn wait_for_traffic(
        &self,
        mut make_request: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        let start = Instant::now();
        loop {
            let made = make_request();
            match self.lines.recv_timeout(Duration::from_millis(100)) {
                Ok(line) if line == "connected" => return Ok(()),
                _ if start.elapsed() < PATIENCE => {}
                _ => {
                    made.context("no traffic has arrived at a session")?;
                    bail!("no traffic has arrived at a session");
                }
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}
