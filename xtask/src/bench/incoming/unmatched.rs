//! Requests that no session matches, which the target serves.

use anyhow::Result;

use super::site::Site;
use crate::bench::load::{CONNECTIONS, Load, Route, processor, requests, times};
use crate::bench::server::{Mode, ServerBehavior};
use crate::bench::{Extent, Row};

/// The allowed overhead compared with a direct connection, in microseconds.
const ADDED: f64 = 150.0;

pub(super) fn rows(site: &mut Site, extent: &Extent) -> Result<Vec<Row>> {
    let _session = site.session(Mode::Steal, ServerBehavior::Healthy)?;
    let routes = || [Route::direct(), Route::proxy(), Route::unmatched()];
    let [direct, proxy, unmatched] =
        Load::full(CONNECTIONS, extent).compare(site, extent, &routes())?;
    let name = "not matched, 64 connections";
    let mut rows = vec![
        requests(format!("{name} (baseline: proxy)"), &unmatched, &proxy).ratio_at_least(0.8),
        requests(format!("{name} (baseline: direct)"), &unmatched, &direct),
        processor(
            "not matched: processor time of the agent for a request (baseline: proxy)",
            &unmatched,
            &proxy,
        ),
    ];
    let [direct, proxy, unmatched] = Load::light(extent).compare(site, extent, &routes())?;
    let name = "not matched, light load";
    let [p50, p99] = times(&format!("{name} (baseline: direct)"), &unmatched, &direct);
    rows.push(p50.at_most_more_than_baseline(ADDED));
    rows.push(p99);
    rows.extend(times(
        &format!("{name} (baseline: proxy)"),
        &unmatched,
        &proxy,
    ));
    Ok(rows)
}
