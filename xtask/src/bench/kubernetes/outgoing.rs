//! What a program in a session asks of the cluster: connections to a Service and names.

use anyhow::Result;
use serde_json::json;

use super::forward::Forward;
use super::site::Site;
use crate::bench::load::Ground as _;
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
    let order = json!({"do": "connect_and_echo", "address": site.server(ECHO), "count": 200});
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..extent.rounds(5) {
        with.extend(inside.measure(&order, "seconds")?);
        without.extend(site.worker().measure(&order, "seconds")?);
    }
    let name = "connect + 1-byte echo to a Service (baseline: from the node)";
    Ok(Row::new(name, micro(median(with)), "µs")
        .baseline(micro(median(without)))
        .ratio_at_most(6.0))
}

fn names(inside: &mut Worker) -> Result<[Row; 2]> {
    let order = json!({"do": "resolve", "names": Site::names(), "again": 200});
    let mut resolved = inside.ask(&order)?;
    let mut row = |name: &str, key: &str| {
        let samples = resolved.remove(key).unwrap_or_default();
        Row::new(name, median(samples) * 1e3, "ms")
    };
    Ok([
        row("name of a Service", "first").at_most(1.5),
        row("name of a Service, again within its time", "again").at_most(0.2),
    ])
}

fn bulk(site: &mut Site, inside: &mut Worker, extent: &Extent) -> Result<Row> {
    let milliseconds = if extent.quick { 1000 } else { 3000 };
    let order = |address: &str| json!({"do": "send", "address": address, "milliseconds": milliseconds, "streams": 1});
    let mut forward = Forward::start(site, "service/servers", SINK)?;
    let forwarded = order(forward.address());
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..extent.rounds(5) {
        with.extend(inside.measure(&order(&site.server(SINK)), "all")?);
        without.extend(forward.worker().measure(&forwarded, "all")?);
    }
    let name = "one outgoing stream (baseline: kubectl port-forward)";
    Ok(Row::new(name, mebi(median(with)), "MiB/s")
        .baseline(mebi(median(without)))
        .ratio_at_least(2.0))
}
