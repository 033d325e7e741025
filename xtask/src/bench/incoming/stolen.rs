//! Requests that a session wants, which the developer's server answers.

use anyhow::Result;

use super::site::Site;
use crate::bench::load::{CONNECTIONS, Load, Way, processor, requests, times};
use crate::bench::server::{Manner, Mode};
use crate::bench::{Extent, Row};

/// What may be added to what a proxy needs, in microseconds.
const ADDED: (f64, f64) = (400.0, 3000.0);

pub(super) fn rows(site: &mut Site, extent: &Extent) -> Result<Vec<Row>> {
    let _session = site.session(Mode::Steal, Manner::Healthy)?;
    let ways = || [Way::direct(), Way::proxy(), Way::stolen()];
    let [direct, proxy, stolen] = Load::full(CONNECTIONS, extent).compare(site, extent, &ways())?;
    let name = "stolen, 64 connections";
    let mut rows = vec![
        requests(format!("{name} (baseline: proxy)"), &stolen, &proxy).ratio_at_least(0.35),
        requests(format!("{name} (baseline: direct)"), &stolen, &direct),
        requests(
            "plain proxy, 64 connections (baseline: direct)",
            &proxy,
            &direct,
        ),
        processor(
            "stolen: processor time of the agent for a request (baseline: proxy)",
            &stolen,
            &proxy,
        ),
    ];
    let [direct, proxy, stolen] = Load::light(extent).compare(site, extent, &ways())?;
    let [p50, p99] = times("stolen, light load (baseline: proxy)", &stolen, &proxy);
    rows.push(p50.at_most_more_than_baseline(ADDED.0));
    rows.push(p99.at_most_more_than_baseline(ADDED.1));
    rows.extend(times(
        "plain proxy, light load (baseline: direct)",
        &proxy,
        &direct,
    ));
    let ways = [Way::direct(), Way::stolen()];
    let [direct, stolen] = Load::full(1, extent).compare(site, extent, &ways)?;
    let [p50, p99] = times(
        "stolen, one connection (baseline: direct)",
        &stolen,
        &direct,
    );
    rows.push(p50.ratio_at_most(5.0));
    rows.push(p99.ratio_at_most(3.0));
    Ok(rows)
}
