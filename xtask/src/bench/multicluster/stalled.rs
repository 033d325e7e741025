//! A member is cut off while it has requests: packets are dropped silently. The other clusters must not be affected, and
//! the developer must be notified.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use lab::Lab;

use super::site::{ClusterSite, OTHER, PRIMARY, Site};
use super::stolen::load_in_parallel;
use crate::bench::load::{Load, LoadResult};
use crate::bench::session::programs::{Worker, log_path};
use crate::bench::{Extent, Row};

/// Requests per second in each cluster: so few that none waits for another.
const RATE: f64 = 100.0;
/// No change, with a tolerance for other work on the machine.
const MAX_MEDIAN_RATIO: f64 = 1.2;
/// The 99th percentile varies more between measurements.
const MAX_P99_RATIO: f64 = 1.5;
const MAX_SECONDS_UNTIL_NOTICE: f64 = 30.0;
/// The longest time to wait for the notice.
const TIMEOUT: Duration = Duration::from_secs(90);
/// Longer than the measurement: the load ends with its worker.
const UNTIL_STOPPED: u64 = 3_600_000;

pub(super) fn rows(site: &mut Site, extent: &Extent) -> Result<Vec<Row>> {
    let _session = site.stealing_session()?;
    let mut victim = site.in_node_network(OTHER)?;
    victim.arg("worker");
    let mut victim = Worker::start(victim)?;
    let (cut_off, others) = site.cluster_sites.split_last_mut().context("no cluster")?;
    victim.send(&Load::paced(RATE, UNTIL_STOPPED).to_request(&cut_off.stolen()))?;
    let rows = measure(&site.lab, others, extent);
    site.lab.heal()?;
    let healed = Instant::now();
    let mut rows = rows?;
    cut_off.wait_until_stolen()?;
    rows.push(Row::new(
        "the member is reachable again: until its requests are stolen again",
        healed.elapsed().as_secs_f64(),
        "s",
    ));
    Ok(rows)
}

fn measure(lab: &Lab, others: &mut [ClusterSite], extent: &Extent) -> Result<Vec<Row>> {
    let load = Load::paced(RATE, if extent.quick { 8_000 } else { 25_000 });
    let before = load_in_parallel(load, others)?;
    let log_length = current_log_length()?;
    lab.cut(PRIMARY, OTHER)?;
    let cut = Instant::now();
    let (during, noticed) = thread::scope(|scope| {
        let loading = scope.spawn(|| load_in_parallel(load, others));
        let noticed = wait_for_notice(log_length, cut);
        (loading.join(), noticed)
    });
    let during = during.map_err(|_| anyhow!("a load panicked"))??;
    let mut rows = Vec::new();
    for ((cluster_site, before), during) in others.iter().zip(&before).zip(&during) {
        rows.extend(latency(cluster_site.name, before, during));
    }
    rows.push(
        Row::new(
            "a member is cut off: until the developer is notified",
            noticed?.as_secs_f64(),
            "s",
        )
        .at_most(MAX_SECONDS_UNTIL_NOTICE),
    );
    Ok(rows)
}

fn latency(name: &str, before: &LoadResult, during: &LoadResult) -> [Row; 2] {
    let name = format!("a member is cut off: stolen requests in {name}, 100/s (baseline: before)");
    [
        Row::new(format!("{name}: p50"), during.p50, "µs")
            .baseline(before.p50)
            .ratio_at_most(MAX_MEDIAN_RATIO),
        Row::new(format!("{name}: p99"), during.p99, "µs")
            .baseline(before.p99)
            .ratio_at_most(MAX_P99_RATIO),
    ]
}

/// The length of the log so far.
fn current_log_length() -> Result<usize> {
    Ok(fs::read(log_path()?)?.len())
}

/// Waits until the session reports that the member is unreachable.
fn wait_for_notice(log_length: usize, cut: Instant) -> Result<Duration> {
    let notice = format!("cluster {OTHER} cannot be reached");
    while cut.elapsed() < TIMEOUT {
        let text = fs::read(log_path()?)?;
        let new = String::from_utf8_lossy(text.get(log_length..).unwrap_or_default());
        if new.contains(&notice) {
            return Ok(cut.elapsed());
        }
        thread::sleep(Duration::from_millis(50));
    }
    bail!("no session has reported that {OTHER} cannot be reached")
}
