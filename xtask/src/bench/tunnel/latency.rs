//! Round trips of small messages, alone and beside bulk, and new streams.

use anyhow::Result;
use serde_json::{Value, json};

use super::site::{Carrier, Site};
use super::{Extent, LINKS, Row};
use crate::bench::session::{median, micro, percentile};

/// Streams that are read as fast as they come, beside round trips.
const BULK_STREAMS: u32 = 4;

pub(super) fn rows(site: &mut Site, extent: &Extent) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for link in LINKS {
        site.set_round_trip(link)?;
        let count = if link == 0 { 3000 } else { 50 };
        let [direct, ours, theirs] =
            in_turn(site, extent, &json!({"do": "round_trips", "count": count}))?;
        let row = |ours: f64, theirs: f64, name: &str| {
            Row::new(format!("{name}, {link} ms"), ours, "us").baseline(theirs)
        };
        let [direct, own, other] = [direct, ours, theirs].map(|times| micro(median(times)));
        rows.push(row(own, other, "round trip of 64 bytes").ratio_at_most(1.0));
        rows.push(row(own, direct, "round trip of 64 bytes, and direct"));
        let count = if link == 0 { 300 } else { 30 };
        let [_, ours, theirs] = in_turn(site, extent, &json!({"do": "opens", "count": count}))?;
        let [own, other] = [ours, theirs].map(|times| micro(median(times)));
        rows.push(row(own, other, "new stream").ratio_at_most(1.1));
        let seconds = if extent.quick { 2 } else { 5 };
        let request = json!({"do": "under_bulk", "streams": BULK_STREAMS, "seconds": seconds});
        let [_, ours, theirs] = in_turn(site, extent, &request)?;
        for (name, fraction, goal) in [("median", 0.5, 0.9), ("99th percentile", 0.99, 0.7)] {
            let [own, other] =
                [&ours, &theirs].map(|times| micro(percentile(times.clone(), fraction)));
            let name = format!("round trip under bulk, {name}");
            rows.push(row(own, other, &name).ratio_at_most(goal));
        }
    }
    Ok(rows)
}

/// The seconds of a request with each carrier.
fn in_turn(site: &mut Site, extent: &Extent, request: &Value) -> Result<[Vec<f64>; 3]> {
    let mut times: [Vec<f64>; 3] = Default::default();
    for _ in 0..extent.rounds(3) {
        for (carrier, times) in Carrier::ALL.into_iter().zip(&mut times) {
            let mut request = request.clone();
            request["address"] = carrier.address().into();
            times.extend(site.seconds(&request)?);
        }
    }
    Ok(times)
}
