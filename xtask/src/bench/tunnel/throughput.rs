//! How fast streams are read.

use anyhow::Result;
use serde_json::json;

use super::site::{Carrier, Site};
use super::{Extent, LINKS, Row};
use crate::bench::session::median;

/// Streams at the same time, and the MiB of all together without a delay, and with one.
const CASES: [(u32, &str, u64, u64); 2] =
    [(1, "one stream", 512, 256), (100, "100 streams", 1000, 500)];

pub(super) fn rows(site: &mut Site, extent: &Extent) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for link in LINKS {
        site.set_round_trip(link)?;
        for (streams, name, local, remote) in CASES {
            let total = if link == 0 { local } else { remote } / u64::from(streams);
            let mut speeds: [Vec<f64>; 3] = Default::default();
            // In turn, so that other work on the machine disturbs all of them.
            for _ in 0..extent.rounds(3) {
                for (carrier, speeds) in Carrier::ALL.into_iter().zip(&mut speeds) {
                    let request = json!({
                        "do": "throughput",
                        "address": carrier.address(),
                        "streams": streams,
                        "bytes": total << 20,
                    });
                    let mut numbers = site.load(&request)?;
                    speeds.extend(numbers.remove("mib").unwrap_or_default());
                }
            }
            let [direct, ours, remotedialer] = speeds.map(median);
            let row =
                |other: &str| Row::new(format!("{name}, {link} ms, and {other}"), ours, "MiB/s");
            rows.push(
                row("remotedialer")
                    .baseline(remotedialer)
                    .ratio_at_least(1.5),
            );
            let beside_direct = row("direct").baseline(direct);
            rows.push(match (streams, link) {
                (1, 1..) => beside_direct.ratio_at_least(0.7),
                _ => beside_direct,
            });
        }
    }
    Ok(rows)
}
