//! The target's throughput while its traffic is mirrored to a healthy, slow or dead server.

use anyhow::{Context as _, Result};
use serde_json::json;

use super::site::{SINK, SINK_RELAY, Site};
use crate::bench::load::{CONNECTIONS, Load, LoadSite as _, Route, processor, requests};
use crate::bench::server::{Mode, ServerBehavior};
use crate::bench::session::site::TARGET;
use crate::bench::session::{mebi, median};
use crate::bench::{Extent, Row};

pub(super) fn rows(site: &mut Site, extent: &Extent) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for behavior in [
        ServerBehavior::Healthy,
        ServerBehavior::Slow,
        ServerBehavior::Dead,
    ] {
        let copy = behavior.name();
        let session = site.session(Mode::Mirror, behavior)?;
        let routes = [Route::relay(), Route::unmatched()];
        let load = Load::full(CONNECTIONS, extent);
        let [relay, mirrored] = load.compare(site, extent, &routes)?;
        drop(session);
        let name = format!("mirrored to a {copy} copy, 64 connections (baseline: relay)");
        rows.push(requests(name, &mirrored, &relay).ratio_at_least(0.7));
        let name = format!("mirrored to a {copy} copy: processor time of the agent for a request");
        rows.push(processor(name + " (baseline: relay)", &mirrored, &relay));
        rows.push(bulk(site, extent, behavior)?);
    }
    Ok(rows)
}

fn bulk(site: &mut Site, extent: &Extent, behavior: ServerBehavior) -> Result<Row> {
    let session = site.start_session(Mode::Mirror, behavior, SINK)?;
    session.wait_for_traffic(|| send(site, SINK, 10).map(drop))?;
    let milliseconds = if extent.quick { 1000 } else { 3000 };
    let (mut relay, mut mirrored) = (Vec::new(), Vec::new());
    for _ in 0..extent.rounds(3) {
        relay.push(send(site, SINK_RELAY, milliseconds)?);
        mirrored.push(send(site, SINK, milliseconds)?);
    }
    let name = format!(
        "mirrored to a {} copy, one stream (baseline: relay)",
        behavior.name()
    );
    let row = Row::new(name, mebi(median(mirrored)), "MiB/s").baseline(mebi(median(relay)));
    Ok(row.ratio_at_least(0.7))
}

fn send(site: &mut Site, port: u16, milliseconds: u64) -> Result<f64> {
    let address = format!("{TARGET}:{port}");
    let request =
        json!({"do": "send", "address": address, "milliseconds": milliseconds, "streams": 1});
    let numbers = site.worker().measure(&request, "all")?;
    numbers.first().copied().context("a number is missing")
}
