//! Stolen requests, which the developer's server serves.

use anyhow::Result;

use super::site::Site;
use crate::bench::load::{CONNECTIONS, Load, Route, processor, requests, times};
use crate::bench::server::{Mode, ServerBehavior};
use crate::bench::{Extent, Row};

/// The allowed overhead compared with a proxy, in microseconds.
const ADDED: (f64, f64) = (400.0, 3000.0);

pub(super) fn rows(site: &mut Site, extent: &Extent) -> Result<Vec<Row>> {
    let _session = site.session(Mode::Steal, ServerBehavior::Healthy)?;
    let routes = || [Route::direct(), Route::proxy(), Route::stolen()];
    let [direct, proxy, stolen] =
        Load::full(CONNECTIONS, extent).compare(site, extent, &routes())?;
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
    let [direct, proxy, stolen] = Load::light(extent).compare(site, extent, &routes())?;
    let [p50, p99] = times("stolen, light load (baseline: proxy)", &stolen, &proxy);
    rows.push(p50.at_most_more_than_baseline(ADDED.0));
    rows.push(p99.at_most_more_than_baseline(ADDED.1));
    rows.extend(times(
        "plain proxy, light load (baseline: direct)",
        &proxy,
        &direct,
    ));
    let routes = [Route::direct(), Route::stolen()];
    let [direct, stolen] = Load::full(1, extent).compare(site, extent, &routes)?;
    let [p50, p99] = times(
        "stolen, one connection (baseline: direct)",
        &stolen,
        &direct,
    );
    rows.push(p50.ratio_at_most(5.0));
    rows.push(p99.ratio_at_most(3.0));
    Ok(rows)
}
