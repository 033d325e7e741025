//! Faults that a program must not notice: reset connections, and operations that hang.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;

use super::site::{Server, Site, Transport};
use super::{Extent, LINKS, Row, maximum, median, micro};

const CONNECTIONS: usize = 50;
const CUT_EVERY: Duration = Duration::from_secs(2);
/// Far more than a busy machine adds, and far less than an operation that hangs.
const MAX_ADDED_MILLISECONDS: f64 = 500.0;

pub(super) fn rows(site: &mut Site, extent: &Extent) -> Result<Vec<Row>> {
    let mut rows = beside(site, extent)?;
    for (number, link) in LINKS.into_iter().enumerate() {
        site.set_round_trip(link)?;
        rows.extend(cut(site, extent, link, number)?);
    }
    Ok(rows)
}

fn cut(site: &mut Site, extent: &Extent, link: u64, number: usize) -> Result<Vec<Row>> {
    let time = if extent.quick { 10 } else { 60 };
    let (relay, mut inside) = site.cut_session_worker(CUT_EVERY)?;
    let mut numbers = inside.call(&json!({
        "do": "requests",
        "address": Server::Tally.address(),
        "milliseconds": time * 1000,
        "connections": CONNECTIONS,
        // No number is used twice, because the server counts how often it saw each.
        "first": number * 1000,
    }))?;
    let mut number = |name: &str| median(numbers.remove(name).unwrap_or_default());
    let name = format!("cut every 2 s for {time} s, {CONNECTIONS} connections, {link} ms");
    let longest = number("longest") * 1e3;
    drop(inside);
    let last_line = relay.end()?;
    let cuts = last_line
        .split_whitespace()
        .next()
        .and_then(|count| count.parse().ok());
    let cuts: f64 = cuts.context("the relay did not report its cuts")?;
    Ok(vec![
        // One per interval, except for the first: there is no session yet.
        Row::new(format!("{name}: cuts"), cuts, "").at_least((time / 2 - 2) as f64),
        Row::new(format!("{name}: answered"), number("answered"), "").at_least(1.0),
        Row::new(format!("{name}: failed"), number("failed"), "").at_most(0.0),
        Row::new(format!("{name}: duplicated"), number("duplicated"), "").at_most(0.0),
        Row::new(format!("{name}: reordered"), number("reordered"), "").at_most(0.0),
        Row::new(format!("{name}: longest"), longest, "ms"),
    ])
}

fn beside(site: &mut Site, extent: &Extent) -> Result<Vec<Row>> {
    let time: u64 = if extent.quick { 2 } else { 5 };
    let mut numbers = site.session_worker(Transport::Tcp)?.call(&json!({
        "do": "beside",
        "full": Server::Full.address(),
        "folder": Site::tree(),
        "echo": Server::Echo.address(),
        "milliseconds": time * 1000,
    }))?;
    let mut samples = |name: &str| numbers.remove(name).unwrap_or_default();
    let (alone, beside, waited) = (samples("alone"), samples("beside"), samples("waited"));
    let name = format!("open and echo beside a connect that waits {time} s");
    let (longest_alone, longest) = (maximum(&alone) * 1e3, maximum(&beside) * 1e3);
    Ok(vec![
        Row::new(format!("{name}: it waited"), maximum(&waited), "s").near(time as f64, 0.5),
        Row::new(format!("{name}: median"), micro(median(beside)), "µs")
            .baseline(micro(median(alone)))
            .ratio_at_most(1.25),
        Row::new(format!("{name}: longest"), longest, "ms")
            .baseline(longest_alone)
            .at_most_more_than_baseline(MAX_ADDED_MILLISECONDS),
    ])
}
