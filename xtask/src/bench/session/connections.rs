//! Connections through the target.

use anyhow::Result;
use serde_json::json;

use super::site::{Server, Site, Transport};
use super::{Extent, LINKS, Row, median, micro};

/// The allowed overhead on links with latency, in microseconds.
const ADDED: f64 = 500.0;

pub(super) fn rows(site: &mut Site, extent: &Extent) -> Result<Vec<Row>> {
    let mut bare = site.bare_worker()?;
    let mut rows = Vec::new();
    for link in LINKS {
        site.set_round_trip(link)?;
        let mut inside = site.session_worker(Transport::Tcp)?;
        let count = if link == 0 { 200 } else { 10 };
        let request =
            |address: String| json!({"do": "connect_and_echo", "address": address, "count": count});
        let (mut without, mut chain, mut with) = (Vec::new(), Vec::new(), Vec::new());
        inside.call(&request(Server::Echo.address()))?;
        for _ in 0..extent.rounds(5) {
            without.extend(bare.measure(&request(Server::Echo.address()), "seconds")?);
            chain.extend(bare.measure(&request(Transport::Tcp.chain(Server::Echo)), "seconds")?);
            with.extend(inside.measure(&request(Server::Echo.address()), "seconds")?);
        }
        let name = format!("connect + 1-byte echo, {link} ms");
        let (without, chain, with) = (
            micro(median(without)),
            micro(median(chain)),
            micro(median(with)),
        );
        let row = Row::new(name.clone(), with, "µs").baseline(without);
        rows.push(if link == 0 {
            row.ratio_at_most(3.0)
        } else {
            row.at_most_more_than_baseline(ADDED)
        });
        rows.push(Row::new(format!("{name} (baseline: plain chain)"), with, "µs").baseline(chain));
    }
    Ok(rows)
}
