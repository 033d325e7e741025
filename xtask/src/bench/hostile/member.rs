//! The Primary while one of its members is hostile: its memory, and the start of sessions that include that member.
//!
//! The Primary is a real operator. The member is a server of the bench that has the API of a member cluster and a reason to
//! misuse it. The baseline is the same server while it behaves.

use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lab::Client;
use serde_json::{Value, json};

use super::health;
use crate::bench::kubernetes::operator::NAMESPACE as OPERATOR_NAMESPACE;
use crate::bench::kubernetes::site::{AccessPath, Site};
use crate::bench::kubernetes::start::session;
use crate::bench::session::ninety_fifth;
use crate::bench::session::programs::{Program, Programs, log, peak_memory, reset_peak_memory};
use crate::bench::{Extent, Row};
use crate::{operator, process};

const PORT: u16 = 7443;
/// The path of the server's baseline.
const QUIET: &str = "quiet";
/// The paths of the server, and what they mean.
const BEHAVIORS: [(&str, &str); 6] = [
    ("endless-health", "no response ends"),
    ("endless", "only responses to health checks end"),
    ("endless-errors", "errors do not end"),
    ("huge-lists", "lists do not end"),
    ("huge-statuses", "huge statuses change all the time"),
    ("slow", "a byte per second"),
];
const ROUNDS: usize = 40;
const ROUNDS_QUICK: usize = 5;
/// Users that list the targets of all clusters while a session starts.
const LISTING_USERS: usize = 8;
/// The limit of the operator's pod in the chart, in MiB.
const MAX_MEMORY: f64 = 512.0;
const MAX_RATIO: f64 = 2.0;
/// How long the Primary may take to check a new member.
const CHECK_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(300);

pub(super) fn rows(programs: &Programs, extent: &Extent) -> Result<Vec<Row>> {
    let site = Site::build(programs.clone(), extent)?;
    let member = HostileMember::start(&site)?;
    let rounds = if extent.quick { ROUNDS_QUICK } else { ROUNDS };
    member.join(&site, "install", QUIET)?;
    let client = site.client()?;
    operator::wait_for_nodes(&client, OPERATOR_NAMESPACE)?;
    let before = health(&site)?;
    let quiet = Measured::during(&site, rounds)?;
    let mut rows = Vec::new();
    for (behavior, description) in BEHAVIORS {
        eprintln!("a member: {description}");
        member.join(&site, "upgrade", behavior)?;
        let measured = Measured::during(&site, rounds)?;
        rows.extend(measured.rows(description, &quiet));
    }
    let after = health(&site)?;
    if before != after {
        eprintln!("{before:#?}, then {after:#?}");
    }
    let changes = after.iter().filter(|line| !before.contains(line)).count();
    let name = "restarts and failed probes of the Primary, hostile member";
    rows.push(Row::new(name, changes as f64, "").at_most(0.0));
    Ok(rows)
}

/// The server, which ends with this.
struct HostileMember {
    _server: Program,
    /// Its address without the path.
    server: String,
    /// The credential for it.
    access: Value,
}

impl HostileMember {
    fn start(site: &Site) -> Result<Self> {
        let address = site.cluster()?.plan().first_node().address;
        let listen = format!("{address}:{PORT}");
        let mut command = site.in_node_network()?;
        command.args(["hostile-member", "--listen", &listen]);
        let (server, access) = Program::start(command)?;
        Ok(Self {
            _server: server,
            server: format!("https://{listen}"),
            access: serde_json::from_str(&access).context("the access to the hostile member")?,
        })
    }

    /// Makes it the only member of the Primary, and waits until the Primary has checked it.
    fn join(&self, site: &Site, verb: &str, behavior: &str) -> Result<()> {
        let mut access = self.access.clone();
        access["server"] = format!("{}/{behavior}", self.server).into();
        // Each behavior has a name of its own, so that nothing of the one before counts.
        let name = format!("member-{behavior}");
        let values = json!({"operator": {
            "agent": {"mode": "node"},
            "multiCluster": {
                "enabled": true,
                "clusterName": "primary",
                "defaultCluster": "primary",
                "onUnreachable": "continue",
                "clusters": {&name: access},
            },
        }});
        let client = site.client()?;
        operator::install(&client, OPERATOR_NAMESPACE, verb, &values)?;
        let deadline = Instant::now() + CHECK_TIMEOUT;
        while !was_checked(&client, &name)? {
            ensure!(Instant::now() < deadline, "{name} was not checked");
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }
}

fn was_checked(client: &Client, name: &str) -> Result<bool> {
    let mut get = client.kubectl();
    get.args(["get", "mirrordoperators", "operator", "--output=json"]);
    let object: Value = serde_json::from_str(&process::output(&mut get)?)?;
    let clusters = object["status"]["connected_clusters"].as_array();
    let mut clusters = clusters.into_iter().flatten();
    Ok(clusters.any(|cluster| cluster["name"] == name && cluster["lastCheck"].is_string()))
}

struct Measured {
    /// Of the replica with the most, in MiB.
    memory: f64,
    /// Seconds of each session.
    starts: Vec<f64>,
}

impl Measured {
    /// Starts sessions over all clusters, while users list the targets of all clusters.
    fn during(site: &Site, rounds: usize) -> Result<Self> {
        // The first pays for one-time setup.
        session(site, AccessPath::Operator)?;
        let primary = site.processes("operator")?;
        for replica in &primary {
            reset_peak_memory(*replica)?;
        }
        let mut starts = Vec::new();
        for _ in 0..rounds {
            let listing: Vec<Child> = (0..LISTING_USERS)
                .map(|_| list_targets(&site.client()?))
                .collect::<Result<_>>()?;
            starts.push(session(site, AccessPath::Operator)?);
            for mut user in listing {
                ensure!(user.wait()?.success(), "the targets could not be listed");
            }
        }
        let mut memory = 0.0_f64;
        for replica in primary {
            memory = memory.max(peak_memory(replica)?);
        }
        Ok(Self { memory, starts })
    }

    fn rows(self, description: &str, quiet: &Self) -> [Row; 2] {
        let start = format!("session start, p95, hostile member: {description}");
        let memory = format!("peak memory of the Primary, hostile member: {description}");
        [
            Row::new(format!("{memory} (baseline: quiet)"), self.memory, "MiB")
                .baseline(quiet.memory)
                .at_most(MAX_MEMORY),
            Row::new(
                format!("{start} (baseline: quiet)"),
                ninety_fifth(self.starts),
                "s",
            )
            .baseline(ninety_fifth(quiet.starts.clone()))
            .ratio_at_most(MAX_RATIO),
        ]
    }
}

fn list_targets(client: &Client) -> Result<Child> {
    let mut list = client.kubectl();
    list.args(["get", "--raw", "/apis/operator.metalbear.co/v1/targets"]);
    list.stdout(Stdio::null()).stderr(log()?);
    list.spawn().context("starting kubectl")
}
