//! Many bytes, on one connection and on a hundred.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::programs::Worker;
use super::site::{Server, Site, Transport};
use super::{Extent, LINKS, Row, least, mebi, median, most};

const MANY: usize = 100;

/// Which way the bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Send,
    Receive,
}

impl Way {
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

    fn order(self, address: &str, milliseconds: u64, streams: usize) -> Value {
        json!({"do": self.name(), "address": address, "milliseconds": milliseconds, "streams": streams})
    }
}

pub(super) fn rows(site: &mut Site, extent: &Extent) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let mut bare = site.bare_worker()?;
    for transport in [Transport::Tcp, Transport::Tls] {
        for link in LINKS {
            site.set_round_trip(link)?;
            // TCP remembers how long a round trip once was, so each link has a session of its own.
            let mut inside = site.session_worker(transport)?;
            for way in [Way::Send, Way::Receive] {
                let workers = (&mut bare, &mut inside);
                rows.extend(one_stream(workers, transport, link, way, extent)?);
            }
            if transport == Transport::Tls {
                for way in [Way::Send, Way::Receive] {
                    let workers = (&mut bare, &mut inside);
                    rows.extend(many_streams(workers, link, way, extent)?);
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
    way: Way,
    extent: &Extent,
) -> Result<Vec<Row>> {
    // Long enough for TCP to find the speed of the link.
    let time = if link < 40 { 600 } else { 2000 };
    let order = |address: &str| way.order(address, time, 1);
    let (mut direct, mut chain, mut with) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..extent.rounds(5) {
        chain.extend(bare.measure(&order(&transport.chain(way.server())), "all")?);
        with.extend(inside.measure(&order(&way.server().address()), "all")?);
        direct.extend(bare.measure(&order(&way.server().address()), "all")?);
    }
    let name = format!(
        "one stream, {}, {}, {link} ms",
        way.name(),
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
    way: Way,
    extent: &Extent,
) -> Result<Vec<Row>> {
    let order = |address: &str| way.order(address, 2000, MANY);
    let (mut chain, mut with, mut fairness) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..extent.rounds(3) {
        chain.extend(bare.measure(&order(&Transport::Tls.chain(way.server())), "all")?);
        let mut numbers = inside.ask(&order(&way.server().address()))?;
        with.extend(numbers.remove("all").context("no sum")?);
        let each = numbers.remove("each").context("no single streams")?;
        fairness.push(least(&each) / most(&each));
    }
    let name = format!("{MANY} streams, {}, TLS, {link} ms", way.name());
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
