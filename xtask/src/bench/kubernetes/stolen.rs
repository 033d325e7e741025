//! Requests that the developer's server answers, in place of the pod.

use anyhow::Result;

use super::site::Site;
use crate::bench::load::{Load, requests, times};
use crate::bench::server::Mode;
use crate::bench::{Extent, Row};

pub(super) fn rows(site: &mut Site, extent: &Extent) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (mode, how) in [(Mode::Steal, "by header"), (Mode::StealAll, "all of it")] {
        let _session = site.session(mode)?;
        let ways = [site.direct(), site.stolen()];
        for connections in [16, 64] {
            let load = Load::full(connections, extent);
            let [direct, stolen] = load.compare(site, extent, &ways)?;
            let name = format!("stolen {how}, {connections} connections (baseline: the pod)");
            rows.push(requests(name, &stolen, &direct).ratio_at_least(0.25));
        }
        let [direct, stolen] = Load::full(1, extent).compare(site, extent, &ways)?;
        let name = format!("stolen {how}, one connection (baseline: the pod)");
        let [p50, p99] = times(&name, &stolen, &direct);
        rows.push(p50.ratio_at_most(6.0));
        rows.push(p99.ratio_at_most(3.0));
    }
    Ok(rows)
}
