//! Requests of all clusters at once, which one process of the developer answers, beside those of one cluster alone.

use std::thread;

use anyhow::{Context as _, Result, anyhow};

use super::LINKS;
use super::site::{ClusterGround, Site};
use crate::bench::load::{CONNECTIONS, Load, Loaded};
use crate::bench::session::median;
use crate::bench::{Extent, Row};

const ROUNDS: usize = 9;
const ROUNDS_QUICK: usize = 3;
/// All share the processors of this machine.
const LEAST: f64 = 0.7;

pub(super) fn rows(site: &mut Site, extent: &Extent) -> Result<Vec<Row>> {
    let rounds = if extent.quick { ROUNDS_QUICK } else { ROUNDS };
    let load = Load::full(CONNECTIONS, extent);
    let mut rows = Vec::new();
    for link in LINKS {
        site.set_round_trip(link)?;
        let _session = site.stealing_session()?;
        let mut together = Vec::new();
        let mut alone: Vec<Vec<f64>> = site.grounds.iter().map(|_| Vec::new()).collect();
        for _ in 0..rounds {
            for (ground, alone) in site.grounds.iter_mut().zip(&mut alone) {
                let way = ground.stolen();
                alone.push(load.run(ground, &way)?.all);
            }
            let all = at_once(load, &mut site.grounds)?;
            together.push(all.iter().map(|loaded| loaded.all).sum());
        }
        let clusters = alone.len() as f64;
        let alone = alone.into_iter().map(median).sum::<f64>() / clusters;
        let name = format!(
            "stolen by header in 3 clusters at once, {CONNECTIONS} connections each, {link} ms (baseline: in one, mean of the 3)"
        );
        rows.push(
            Row::new(name, median(together), "/s")
                .baseline(alone)
                .ratio_at_least(LEAST),
        );
    }
    Ok(rows)
}

/// Loads several clusters at the same time.
pub(super) fn at_once(load: Load, grounds: &mut [ClusterGround]) -> Result<Vec<Loaded>> {
    thread::scope(|scope| {
        let running: Vec<_> = grounds
            .iter_mut()
            .map(|ground| {
                scope.spawn(move || {
                    let way = ground.stolen();
                    let name = ground.name;
                    load.run(ground, &way).context(name)
                })
            })
            .collect();
        let joined = running.into_iter().map(|thread| {
            let ended = thread.join();
            ended.map_err(|_| anyhow!("a load ended by a bug"))?
        });
        joined.collect()
    })
}
