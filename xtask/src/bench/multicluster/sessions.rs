//! Many sessions over all clusters, by simulated clients: what they cost the Primary while idle.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::json;

use super::site::{CLUSTERS, DEFAULT, PRIMARY, SessionScope, Site};
use crate::bench::session::ninety_fifth;
use crate::bench::session::programs::{memory, processor_seconds};
use crate::bench::{Extent, Row};

/// So many start in parallel.
const AT_ONCE: usize = 8;
const SESSIONS: usize = 100;
const SESSIONS_QUICK: usize = 30;
/// How long idle sessions are measured: several times the interval of their periodic work.
const IDLE: Duration = Duration::from_secs(60);
const IDLE_QUICK: Duration = Duration::from_secs(15);

pub(super) fn rows(site: &mut Site, extent: &Extent) -> Result<Vec<Row>> {
    let (count, idle) = if extent.quick {
        (SESSIONS_QUICK, IDLE_QUICK)
    } else {
        (SESSIONS, IDLE)
    };
    site.wait_for_no_session()?;
    let without_sessions = Usage::during(site, idle)?;
    let mut clients = site.clients(SessionScope::All, CLUSTERS.len())?;
    let request = json!({"do": "open", "count": count, "at_once": AT_ONCE});
    let start_times = clients.measure(&request, "seconds")?;
    let many = Usage::during(site, idle)?;
    let cut = clients.measure(&json!({"do": "status"}), "cut")?;
    clients.call(&json!({"do": "close"}))?;
    site.wait_for_no_session()?;
    let all = format!("{count} idle sessions over 3 clusters");
    Ok(vec![
        Row::new(
            format!("Primary, {all}: memory of all replicas (baseline: with none)"),
            many.primary,
            "MiB",
        )
        .baseline(without_sessions.primary)
        .at_most(300.0),
        Row::new(
            format!("Primary, {all}: of a core, all replicas (baseline: with none)"),
            many.processor,
            "%",
        )
        .baseline(without_sessions.processor),
        Row::new(
            format!("a member's operator, {all}: memory of all replicas (baseline: with none)"),
            many.member,
            "MiB",
        )
        .baseline(without_sessions.member),
        Row::new(
            format!("start of a session over 3 clusters, {AT_ONCE} at once, p95"),
            ninety_fifth(start_times),
            "s",
        ),
        Row::new(format!("{all}: cut"), cut.iter().sum(), "").at_most(0.0),
    ])
}

/// The resource usage of operators.
struct Usage {
    /// In MiB.
    primary: f64,
    member: f64,
    /// Of the Primary, in percent of a core.
    processor: f64,
}

impl Usage {
    fn during(site: &Site, time: Duration) -> Result<Self> {
        let primary = site.processes(PRIMARY, "operator")?;
        let used = || -> Result<f64> { primary.iter().map(|pid| processor_seconds(*pid)).sum() };
        let (before, start) = (used()?, Instant::now());
        thread::sleep(time);
        let processor = (used()? - before) / start.elapsed().as_secs_f64() * 100.0;
        let all = |processes: Vec<u32>| -> Result<f64> { processes.into_iter().map(memory).sum() };
        Ok(Self {
            primary: all(primary.clone())?,
            member: all(site.processes(DEFAULT, "operator")?)?,
            processor,
        })
    }
}
