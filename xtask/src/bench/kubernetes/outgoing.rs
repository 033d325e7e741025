//! Outgoing traffic of a program in a session: connections to a Service, and DNS queries.

use anyhow::Result;
use serde_json::json;

use super::forward::Forward;
use super::site::Site;
use crate::bench::load::LoadSite as _;
use crate::bench::session::programs::Worker;
use crate::bench::session::{mebi, median, micro};
use crate::bench::{Extent, Row};

const ECHO: u16 = 7001;
const SINK: u16 = 7002;

pub(super) fn rows(site: &mut Site, extent: &Extent) -> Result<Vec<Row>> {
    let mut inside = site.session_worker()?;
    let mut rows = vec![connect_and_echo(site, &mut inside, extent)?];
    rows.extend(names(&mut inside)?);
    rows.push(bulk(site, &mut inside, extent)?);
    Ok(rows)
}

fn connect_and_echo(site: &mut Site, inside: &mut Worker, extent: &Extent) -> Result<Row> {
    let request = json!({"do": "connect_and_echo", "address": site.server(ECHO), "count": 200});
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..extent.rounds(5) {
        with.extend(inside.measure(&request, "seconds")?);
        without.extend(site.worker().measure(&request, "seconds")?);
    }
    let name = "connect + 1-byte echo to a Service (baseline: from the node)";
    Ok(Row::new(name, micro(median(with)), "µs")
        .baseline(micro(median(without)))
        .ratio_at_most(6.0))
}

fn names(inside: &mut Worker) -> Result<[Row; 2]> {
    let request = json!({"do": "resolve", "names": Site::names(), "again": 200});
    let mut resolved = inside.call(&request)?;
    let mut row = |name: &str, key: &str| {
        let samples = resolved.remove(key).unwrap_or_default();
        Row::new(name, median(samples) * 1e3, "ms")
    };
    Ok([
        row("DNS name of a Service", "first").at_most(1.5),
        row("DNS name of a Service, again within its TTL", "again").at_most(0.2),
    ])
}

fn bulk(site: &mut Site, inside: &mut Worker, extent: &Extent) -> Result<Row> {
    let milliseconds = if extent.quick { 1000 } else { 3000 };
    let request = |address: &str| json!({"do": "send", "address": address, "milliseconds": milliseconds, "streams": 1});
    let mut forward = Forward::start(site, "service/servers", SINK)?;
    let forwarded = request(forward.address());
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..extent.rounds(5) {
        with.extend(inside.measure(&request(&site.server(SINK)), "all")?);
        without.extend(forward.worker().measure(&forwarded, "all")?);
    }
    let name = "one outgoing stream (baseline: kubectl port-forward)";
    Ok(Row::new(name, mebi(median(with)), "MiB/s")
        .baseline(mebi(median(without)))
        .ratio_at_least(2.0))
}
