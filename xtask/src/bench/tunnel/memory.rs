//! Streams that only exist, and streams whose readers have stalled.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;

use super::site::{Carrier, Site};
use super::{Extent, Row};
use crate::bench::session::{micro, percentile};

const IDLE: u32 = 1000;
const STALLED: u32 = 200;

pub(super) fn rows(site: &mut Site, extent: &Extent) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let begin = Carrier::TUNNELS.map(|carrier| memory(site, carrier));
    let [ours, theirs] = idle(site)?;
    rows.push(
        Row::new("1,000 idle streams, memory of both ends", ours, "MiB")
            .baseline(theirs)
            .at_most(15.0),
    );
    let [(before, during, memory), (_, _, theirs)] = stalled(site, extent)?;
    rows.push(
        Row::new("200 stalled readers, memory of both ends", memory, "MiB")
            .baseline(theirs)
            .at_most(120.0),
    );
    rows.push(
        Row::new(
            "round trip beside 200 stalled readers, 99th percentile",
            during,
            "us",
        )
        .baseline(before)
        .ratio_at_most(1.5),
    );
    for (carrier, begin) in ["ours", "remotedialer"].iter().zip(begin) {
        rows.push(Row::new(
            format!("memory of both ends at first, {carrier}"),
            begin?,
            "MiB",
        ));
    }
    Ok(rows)
}

fn memory(site: &Site, carrier: Carrier) -> Result<f64> {
    site.ends(carrier)
        .context("a tunnel has two ends")?
        .memory()
}

/// How much memory idle streams add, for each tunnel.
fn idle(site: &mut Site) -> Result<[f64; 2]> {
    let mut added = [0.0; 2];
    for (carrier, added) in Carrier::TUNNELS.into_iter().zip(&mut added) {
        let before = memory(site, carrier)?;
        site.load(&json!({"do": "hold", "address": carrier.address(), "count": IDLE}))?;
        *added = memory(site, carrier)? - before;
        site.load(&json!({"do": "release"}))?;
    }
    Ok(added)
}

/// The 99th percentile of round trips before and beside stalled readers, and the memory that they add.
fn stalled(site: &mut Site, extent: &Extent) -> Result<[(f64, f64, f64); 2]> {
    let minute = if extent.quick { 5 } else { 60 };
    let mut measured = [(0.0, 0.0, 0.0); 2];
    for (carrier, measured) in Carrier::TUNNELS.into_iter().zip(&mut measured) {
        let address = carrier.address();
        let round_trips = json!({"do": "round_trips", "address": address, "count": 3000});
        let before = site.seconds(&round_trips)?;
        let memory_before = memory(site, carrier)?;
        let hold =
            json!({"do": "hold", "address": address, "count": STALLED, "bytes": 1_u64 << 40});
        site.load(&hold)?;
        sleep(Duration::from_secs(minute));
        // A tunnel that other streams cannot use any more counts as infinitely slow.
        let during = site.seconds(&round_trips).unwrap_or_default();
        let added = memory(site, carrier)? - memory_before;
        site.load(&json!({"do": "release"}))?;
        let ninety_ninth = |times: Vec<f64>| micro(percentile(times, 0.99));
        *measured = (ninety_ninth(before), ninety_ninth(during), added);
    }
    Ok(measured)
}
