//! A member that is cut off while it has requests: nothing arrives there, and nobody is told. The others must not notice,
//! and the developer must hear of it.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use lab::Lab;

use super::site::{ClusterGround, OTHER, PRIMARY, Site};
use super::stolen::at_once;
use crate::bench::load::{Load, Loaded};
use crate::bench::session::programs::{Worker, log_path};
use crate::bench::{Extent, Row};

/// Requests per second in each cluster: so few that nobody waits for another.
const RATE: f64 = 100.0;
/// As no change at all, as far as can be told on a machine that does other things too.
const SAME: f64 = 1.2;
/// The slowest of a hundred differ more from one look to the next.
const SAME_OF_THE_SLOWEST: f64 = 1.5;
const NOTICED: f64 = 30.0;
/// How long the word may take before it is given up.
const PATIENCE: Duration = Duration::from_secs(90);
/// Longer than everything that is measured: it ends when its worker is ended.
const FOR_EVER: u64 = 3_600_000;

pub(super) fn rows(site: &mut Site, extent: &Extent) -> Result<Vec<Row>> {
    let _session = site.stealing_session()?;
    let mut victim = site.in_node_network(OTHER)?;
    victim.arg("worker");
    let mut victim = Worker::start(victim)?;
    let (cut_off, others) = site.grounds.split_last_mut().context("no cluster")?;
    victim.tell(&Load::paced(RATE, FOR_EVER).order(&cut_off.stolen()))?;
    let rows = measure(&site.lab, others, extent);
    site.lab.heal()?;
    let healed = Instant::now();
    let mut rows = rows?;
    cut_off.wait_until_stolen()?;
    rows.push(Row::new(
        "the member is back: until its requests are answered again",
        healed.elapsed().as_secs_f64(),
        "s",
    ));
    Ok(rows)
}

fn measure(lab: &Lab, others: &mut [ClusterGround], extent: &Extent) -> Result<Vec<Row>> {
    let load = Load::paced(RATE, if extent.quick { 8_000 } else { 25_000 });
    let before = at_once(load, others)?;
    let said = said_so_far()?;
    lab.cut(PRIMARY, OTHER)?;
    let cut = Instant::now();
    let (during, noticed) = thread::scope(|scope| {
        let loading = scope.spawn(|| at_once(load, others));
        let noticed = wait_for_word(said, cut);
        (loading.join(), noticed)
    });
    let during = during.map_err(|_| anyhow!("a load ended by a bug"))??;
    let mut rows = Vec::new();
    for ((ground, before), during) in others.iter().zip(&before).zip(&during) {
        rows.extend(latency(ground.name, before, during));
    }
    rows.push(
        Row::new(
            "a member is cut off: until the developer is told",
            noticed?.as_secs_f64(),
            "s",
        )
        .at_most(NOTICED),
    );
    Ok(rows)
}

fn latency(name: &str, before: &Loaded, during: &Loaded) -> [Row; 2] {
    let name = format!("a member is cut off: stolen requests in {name}, 100/s (baseline: before)");
    [
        Row::new(format!("{name}: p50"), during.p50, "µs")
            .baseline(before.p50)
            .ratio_at_most(SAME),
        Row::new(format!("{name}: p99"), during.p99, "µs")
            .baseline(before.p99)
            .ratio_at_most(SAME_OF_THE_SLOWEST),
    ]
}

/// How much the programs have said.
fn said_so_far() -> Result<usize> {
    Ok(fs::read(log_path()?)?.len())
}

/// Waits until the session says that the member is away.
fn wait_for_word(said: usize, cut: Instant) -> Result<Duration> {
    let word = format!("cluster {OTHER} cannot be reached");
    while cut.elapsed() < PATIENCE {
        let text = fs::read(log_path()?)?;
        let new = String::from_utf8_lossy(text.get(said..).unwrap_or_default());
        if new.contains(&word) {
            return Ok(cut.elapsed());
        }
        thread::sleep(Duration::from_millis(50));
    }
    bail!("nobody has said that {OTHER} cannot be reached")
}
