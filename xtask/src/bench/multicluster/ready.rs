//! The time until a session is ready, over all clusters and over each alone.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::LINKS;
use super::site::{CLUSTERS, SessionScope, Site};
use crate::bench::session::median;
use crate::bench::session::programs::Worker;
use crate::bench::{Extent, Row};

const ROUNDS: usize = 15;
const ROUNDS_QUICK: usize = 3;
/// The allowed overhead of several clusters beyond two round trips, in milliseconds.
const ALLOWANCE: f64 = 300.0;

pub(super) fn rows(site: &mut Site, extent: &Extent) -> Result<Vec<Row>> {
    let rounds = if extent.quick { ROUNDS_QUICK } else { ROUNDS };
    let mut rows = Vec::new();
    for link in LINKS {
        site.set_round_trip(link)?;
        let goal = 2.0 * link as f64 + ALLOWANCE;
        let (all, slowest) = measure(rounds, |scope| program(site, scope))?;
        let name = format!(
            "`exec` until the program runs, 3 clusters, {link} ms (baseline: the slowest of one cluster)"
        );
        rows.push(
            Row::new(name, all * 1e3, "ms")
                .baseline(slowest * 1e3)
                .at_most_more_than_baseline(goal),
        );
        let mut clients = Clients::start(site)?;
        let (all, slowest) = measure(rounds, |scope| clients.time_session(scope))?;
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
fn measure(
    rounds: usize,
    mut time_session: impl FnMut(SessionScope) -> Result<f64>,
) -> Result<(f64, f64)> {
    let scopes = || std::iter::once(SessionScope::All).chain(CLUSTERS.map(SessionScope::One));
    // The first session of each scope pays for one-time setup.
    for scope in scopes() {
        time_session(scope)?;
    }
    let mut seconds: Vec<Vec<f64>> = scopes().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for (scope, seconds) in scopes().zip(&mut seconds) {
            seconds.push(time_session(scope)?);
        }
    }
    let mut medians = seconds.into_iter().map(median);
    let all = medians.next().context("nothing was measured")?;
    Ok((all, medians.fold(0.0, f64::max)))
}

/// The time until a program in a session runs.
fn program(site: &Site, scope: SessionScope) -> Result<f64> {
    let mut command = site.exec(scope)?;
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
        "a session over {scope:?} ended with {status}"
    );
    Ok(seconds)
}

/// Simulated clients of all clusters and of each alone.
struct Clients(Vec<(SessionScope, Worker)>);

impl Clients {
    fn start(site: &Site) -> Result<Self> {
        let mut clients = vec![(
            SessionScope::All,
            site.clients(SessionScope::All, CLUSTERS.len())?,
        )];
        for scope in CLUSTERS.map(SessionScope::One) {
            clients.push((scope, site.clients(scope, 1)?));
        }
        Ok(Self(clients))
    }

    fn time_session(&mut self, scope: SessionScope) -> Result<f64> {
        let mut clients = self.0.iter_mut();
        let found = clients.find(|(found_scope, _)| *found_scope == scope);
        let (_, client) = found.context("no client for this scope")?;
        time_session(client)
    }
}

/// Seconds until a simulated client has its session, which then ends.
pub(super) fn time_session(client: &mut Worker) -> Result<f64> {
    let request = json!({"do": "open", "count": 1, "at_once": 1});
    let seconds = client.measure(&request, "seconds")?;
    client.call(&json!({"do": "close"}))?;
    seconds.first().copied().context("no session was started")
}
