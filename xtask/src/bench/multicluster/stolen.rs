//! Requests of all clusters in parallel, which one process of the developer serves, compared with one cluster alone.

use std::thread;

use anyhow::{Context as _, Result, anyhow};

use super::LINKS;
use super::site::{ClusterSite, Site};
use crate::bench::load::{CONNECTIONS, Load, LoadResult};
use crate::bench::session::median;
use crate::bench::{Extent, Row};

const ROUNDS: usize = 9;
const ROUNDS_QUICK: usize = 3;
/// All clusters share the CPU of this machine.
const MIN_RATIO: f64 = 0.7;

pub(super) fn rows(site: &mut Site, extent: &Extent) -> Result<Vec<Row>> {
    let rounds = if extent.quick { ROUNDS_QUICK } else { ROUNDS };
    let load = Load::full(CONNECTIONS, extent);
    let mut rows = Vec::new();
    for link in LINKS {
        site.set_round_trip(link)?;
        let _session = site.stealing_session()?;
        let mut together = Vec::new();
        let mut alone: Vec<Vec<f64>> = site.cluster_sites.iter().map(|_| Vec::new()).collect();
        for _ in 0..rounds {
            for (cluster_site, alone) in site.cluster_sites.iter_mut().zip(&mut alone) {
                let route = cluster_site.stolen();
                alone.push(load.run(cluster_site, &route)?.all);
            }
            let all = load_in_parallel(load, &mut site.cluster_sites)?;
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
                .ratio_at_least(MIN_RATIO),
        );
    }
    Ok(rows)
}

/// Runs the load in several clusters in parallel.
pub(super) fn load_in_parallel(
    load: Load,
    cluster_sites: &mut [ClusterSite],
) -> Result<Vec<LoadResult>> {
    thread::scope(|scope| {
        let running: Vec<_> = cluster_sites
            .iter_mut()
            .map(|cluster_site| {
                scope.spawn(move || {
                    let route = cluster_site.stolen();
                    let name = cluster_site.name;
                    load.run(cluster_site, &route).context(name)
                })
            })
            .collect();
        let joined = running.into_iter().map(|thread| {
            let result = thread.join();
            result.map_err(|_| anyhow!("a load panicked"))?
        });
        joined.collect()
    })
}
