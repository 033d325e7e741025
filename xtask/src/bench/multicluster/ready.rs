//! The time until a session is there, over all clusters and over each alone.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::LINKS;
use super::site::{CLUSTERS, Over, Site};
use crate::bench::session::median;
use crate::bench::session::programs::Worker;
use crate::bench::{Extent, Row};

const ROUNDS: usize = 15;
const ROUNDS_QUICK: usize = 3;
/// What several clusters may cost beyond two round trips, in milliseconds.
const ALLOWANCE: f64 = 300.0;

pub(super) fn rows(site: &mut Site, extent: &Extent) -> Result<Vec<Row>> {
    let rounds = if extent.quick { ROUNDS_QUICK } else { ROUNDS };
    let mut rows = Vec::new();
    for link in LINKS {
        site.set_round_trip(link)?;
        let goal = 2.0 * link as f64 + ALLOWANCE;
        let (all, slowest) = measure(rounds, |over| program(site, over))?;
        let name = format!(
            "`exec` until the program runs, 3 clusters, {link} ms (baseline: the slowest of one cluster)"
        );
        rows.push(
            Row::new(name, all * 1e3, "ms")
                .baseline(slowest * 1e3)
                .at_most_more_than_baseline(goal),
        );
        let mut clients = Clients::start(site)?;
        let (all, slowest) = measure(rounds, |over| clients.begin(over))?;
        let name = format!(
            "session Ready, links to all agents, 3 clusters, {link} ms (baseline: the slowest of one cluster)"
        );
        rows.push(
            Row::new(name, all * 1e3, "ms")
                .baseline(slowest * 1e3)
                .at_most_more_than_baseline(goal),
        );
    }
    Ok(rows)
}

/// Seconds over all clusters, and over the one that takes longest.
fn measure(rounds: usize, mut begin: impl FnMut(Over) -> Result<f64>) -> Result<(f64, f64)> {
    let ways = || std::iter::once(Over::All).chain(CLUSTERS.map(Over::One));
    // Whatever is done first pays for all that is set up then.
    for over in ways() {
        begin(over)?;
    }
    let mut seconds: Vec<Vec<f64>> = ways().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for (over, seconds) in ways().zip(&mut seconds) {
            seconds.push(begin(over)?);
        }
    }
    let mut medians = seconds.into_iter().map(median);
    let all = medians.next().context("nothing was measured")?;
    Ok((all, medians.fold(0.0, f64::max)))
}

/// How long a program waits to be started.
fn program(site: &Site, over: Over) -> Result<f64> {
    let mut command = site.exec(over)?;
    command
        .args(["--", "echo", "started"])
        .stdout(Stdio::piped());
    let start = Instant::now();
    let mut child = command.spawn()?;
    let output = child.stdout.take().context("a session has no output")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    let seconds = start.elapsed().as_secs_f64();
    let status = child.wait()?;
    ensure!(
        status.success() && line == "started\n",
        "a session over {over:?} ended with {status}"
    );
    Ok(seconds)
}

/// Simulated clients of all clusters and of each alone.
struct Clients(Vec<(Over, Worker)>);

impl Clients {
    fn start(site: &Site) -> Result<Self> {
        let mut clients = vec![(Over::All, site.clients(Over::All, CLUSTERS.len())?)];
        for over in CLUSTERS.map(Over::One) {
            clients.push((over, site.clients(over, 1)?));
        }
        Ok(Self(clients))
    }

    fn begin(&mut self, over: Over) -> Result<f64> {
        let mut clients = self.0.iter_mut();
        let found = clients.find(|(known, _)| *known == over);
        let (_, client) = found.context("there is no such client")?;
        begin(client)
    }
}

/// Seconds until a simulated client has its session, which then ends.
pub(super) fn begin(client: &mut Worker) -> Result<f64> {
    let order = json!({"do": "open", "count": 1, "at_once": 1});
    let seconds = client.measure(&order, "seconds")?;
    client.ask(&json!({"do": "close"}))?;
    seconds.first().copied().context("no session was begun")
}
