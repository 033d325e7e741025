//! Throughput, on one connection and on a hundred.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::programs::Worker;
use super::site::{Server, Site, Transport};
use super::{Extent, LINKS, Row, maximum, mebi, median, minimum};

const MANY: usize = 100;

/// The direction of the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Send,
    Receive,
}

impl Direction {
    fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Receive => "receive",
        }
    }

    fn server(self) -> Server {
        match self {
            Self::Send => Server::Sink,
            Self::Receive => Server::Source,
        }
    }

    fn request(self, address: &str, milliseconds: u64, streams: usize) -> Value {
        json!({"do": self.name(), "address": address, "milliseconds": milliseconds, "streams": streams})
    }
}

pub(super) fn rows(site: &mut Site, extent: &Extent) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let mut bare = site.bare_worker()?;
    for transport in [Transport::Tcp, Transport::Tls] {
        for link in LINKS {
            site.set_round_trip(link)?;
            // TCP caches round-trip times, so each link has its own session.
            let mut inside = site.session_worker(transport)?;
            for direction in [Direction::Send, Direction::Receive] {
                let workers = (&mut bare, &mut inside);
                rows.extend(one_stream(workers, transport, link, direction, extent)?);
            }
            if transport == Transport::Tls {
                for direction in [Direction::Send, Direction::Receive] {
                    let workers = (&mut bare, &mut inside);
                    rows.extend(many_streams(workers, link, direction, extent)?);
                }
            }
        }
    }
    Ok(rows)
}

fn one_stream(
    (bare, inside): (&mut Worker, &mut Worker),
    transport: Transport,
    link: u64,
    direction: Direction,
    extent: &Extent,
) -> Result<Vec<Row>> {
    // Long enough for TCP to find the speed of the link.
    let time = if link < 40 { 600 } else { 2000 };
    let request = |address: &str| direction.request(address, time, 1);
    let (mut direct, mut chain, mut with) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..extent.rounds(5) {
        chain.extend(bare.measure(&request(&transport.chain(direction.server())), "all")?);
        with.extend(inside.measure(&request(&direction.server().address()), "all")?);
        direct.extend(bare.measure(&request(&direction.server().address()), "all")?);
    }
    let name = format!(
        "one stream, {}, {}, {link} ms",
        direction.name(),
        transport.name()
    );
    let (direct, chain, with) = (
        mebi(median(direct)),
        mebi(median(chain)),
        mebi(median(with)),
    );
    Ok(vec![
        Row::new(format!("{name} (baseline: relays)"), with, "MiB/s")
            .baseline(chain)
            .ratio_at_least(0.6),
        Row::new(format!("{name} (baseline: bare)"), with, "MiB/s").baseline(direct),
    ])
}

fn many_streams(
    (bare, inside): (&mut Worker, &mut Worker),
    link: u64,
    direction: Direction,
    extent: &Extent,
) -> Result<Vec<Row>> {
    let request = |address: &str| direction.request(address, 2000, MANY);
    let (mut chain, mut with, mut fairness) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..extent.rounds(3) {
        chain.extend(bare.measure(&request(&Transport::Tls.chain(direction.server())), "all")?);
        let mut numbers = inside.call(&request(&direction.server().address()))?;
        with.extend(numbers.remove("all").context("no sum")?);
        let each = numbers.remove("each").context("no single streams")?;
        fairness.push(minimum(&each) / maximum(&each));
    }
    let name = format!("{MANY} streams, {}, TLS, {link} ms", direction.name());
    Ok(vec![
        Row::new(
            format!("{name} (baseline: relays)"),
            mebi(median(with)),
            "MiB/s",
        )
        .baseline(mebi(median(chain)))
        .ratio_at_least(0.6),
        Row::new(format!("{name}: slowest / fastest"), median(fairness), "").at_least(0.333),
    ])
}
