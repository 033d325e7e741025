//! A pod that opens connections to every listener of the operator and of the agents: what it costs a session's start and a
//! change of a policy.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lab::Paths;
use lab::hostile::{HostileConnections, LOADED, POD, listeners_of_pods, listeners_of_sessions};
use lab::image::recipes;

use super::{health, list};
use crate::bench::kubernetes::operator::NAMESPACE as OPERATOR_NAMESPACE;
use crate::bench::kubernetes::site::{AccessPath, NAMESPACE, Site, TARGET};
use crate::bench::kubernetes::start::session;
use crate::bench::session::percentile;
use crate::bench::session::programs::{Programs, end, log};
use crate::bench::{Extent, Row};
use crate::soak::Cycle;

/// To each listener.
const CONNECTIONS: usize = 10_000;
/// To each listener, per second.
const RATE: usize = 500;
/// Enough for a 99th percentile.
const ROUNDS: usize = 100;
const ROUNDS_QUICK: usize = 10;
/// Each cycle of the soak has so many.
const SOAK_ROUNDS: usize = 20;
/// A server of the target's Service, which the policy forbids.
const PORT: u16 = 7001;
/// How long the pod may take to open all connections.
const LOAD_TIMEOUT: Duration = Duration::from_secs(300);
const POLL_INTERVAL: Duration = Duration::from_millis(300);

/// Prints each expected state (`open` or `refused`) once a new connection through the target has it.
const OBSERVER: &str = "\
while read -r expected; do
    while :; do
        if (exec 3<>\"/dev/tcp/$0/$1\") 2>/dev/null; then now=open; else now=refused; fi
        [ \"$now\" = \"$expected\" ] && break
        sleep 0.02
    done
    echo \"$expected\"
done";

pub(super) fn rows(programs: &Programs, extent: &Extent) -> Result<Vec<Row>> {
    let mut site = site(programs, extent)?;
    let rounds = if extent.quick { ROUNDS_QUICK } else { ROUNDS };
    let without = measure(&mut site, rounds)?;
    let load = Load::start(&mut site)?;
    let with = measure(&mut site, rounds)?;
    load.end(&site)?;
    let row = |name: &str, with: Vec<f64>, without: Vec<f64>| {
        let name = format!(
            "{name}, {CONNECTIONS} hostile connections to each listener, p99 (baseline: none)"
        );
        Row::new(name, percentile(with, 0.99), "s")
            .baseline(percentile(without, 0.99))
            .ratio_at_most(2.0)
    };
    Ok(vec![
        row("session start", with.starts, without.starts),
        row("policy change", with.changes, without.changes),
    ])
}

/// One cycle of the soak: sessions start, policies change, no container restarts and no probe fails.
pub(crate) fn soak(cycle: &Cycle<'_>) -> Result<()> {
    let extent = Extent {
        programs: cycle.programs.map(Path::to_owned),
        ..Extent::default()
    };
    let mut site = site(&Programs::find(&extent)?, &extent)?;
    let load = Load::start(&mut site)?;
    measure(&mut site, SOAK_ROUNDS)?;
    load.end(&site)
}

fn site(programs: &Programs, extent: &Extent) -> Result<Site> {
    let mut site = Site::build(programs.clone(), extent)?;
    let python = recipes::python(&Paths::from_environment().images(), &|text| {
        eprintln!("{text}");
    })?;
    site.load_image(python.path())?;
    site.operator()?;
    Ok(site)
}

/// Seconds of each round.
struct Measured {
    starts: Vec<f64>,
    changes: Vec<f64>,
}

fn measure(site: &mut Site, rounds: usize) -> Result<Measured> {
    // The first of each pays for one-time setup.
    session(site, AccessPath::Operator)?;
    let mut observer = Observer::start(site)?;
    observer.wait_for("open")?;
    let (mut starts, mut changes) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        starts.push(session(site, AccessPath::Operator)?);
        let start = Instant::now();
        site.client()?.apply(NAMESPACE, &policy())?;
        observer.wait_for("refused")?;
        changes.push(start.elapsed().as_secs_f64());
        site.kubectl(&[
            "delete",
            "mirrordpolicies.policies.mirrord.metalbear.co/hostile",
        ])?;
        observer.wait_for("open")?;
    }
    Ok(Measured { starts, changes })
}

fn policy() -> String {
    format!(
        "apiVersion: policies.mirrord.metalbear.co/v1alpha\nkind: MirrordPolicy\nmetadata: {{name: hostile}}\nspec: \
         {{targetPath: {TARGET}, network: {{outgoing: {{block: [':{PORT}']}}}}}}\n"
    )
}

/// A session that observes which policy applies to it.
struct Observer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Observer {
    fn start(site: &Site) -> Result<Self> {
        let server = site.server(PORT);
        let (host, port) = server.rsplit_once(':').context("no port")?;
        let mut command = site.exec(AccessPath::Operator)?;
        command.args(["--", "bash", "-c", OBSERVER, host, port]);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(log()?).spawn()?;
        Ok(Self {
            input: child.stdin.take().context("no input")?,
            output: BufReader::new(child.stdout.take().context("no output")?),
            child,
        })
    }

    fn wait_for(&mut self, expected: &str) -> Result<()> {
        writeln!(self.input, "{expected}")?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        ensure!(line.trim() == expected, "the session has ended");
        Ok(())
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// The pod with the hostile connections.
struct Load {
    /// What must not change while it runs.
    health: Vec<String>,
}

impl Load {
    /// Starts it while a session is open, so that the session's agent is among the listeners.
    fn start(site: &mut Site) -> Result<Self> {
        let health = health(site)?;
        let mut observer = Observer::start(site)?;
        observer.wait_for("open")?;
        let mut listeners = listeners_of_pods(&list(site, "pods", OPERATOR_NAMESPACE)?);
        listeners.extend(listeners_of_sessions(&list(
            site,
            "mirrordclustersessions",
            NAMESPACE,
        )?));
        let connections = HostileConnections {
            count: CONNECTIONS,
            rate: RATE,
            listeners,
        };
        site.client()?.apply(NAMESPACE, &connections.manifest())?;
        let deadline = Instant::now() + LOAD_TIMEOUT;
        while !log_of_load(site).contains(LOADED) {
            ensure!(
                Instant::now() < deadline,
                "the connections were not opened: {}",
                log_of_load(site)
            );
            thread::sleep(POLL_INTERVAL);
        }
        Ok(Self { health })
    }

    fn end(self, site: &Site) -> Result<()> {
        let phase = site.kubectl(&["get", "pod", POD, "--output=jsonpath={.status.phase}"])?;
        ensure!(phase == "Running", "the load has ended: {phase}");
        let health = health(site)?;
        ensure!(
            self.health == health,
            "{:#?}, then {health:#?}",
            self.health
        );
        site.kubectl(&["delete", "pod", POD, "--now"]).map(drop)
    }
}

/// Empty until the pod has started.
fn log_of_load(site: &Site) -> String {
    site.kubectl(&["logs", POD]).unwrap_or_default()
}
