//! Requests: how many, on how many connections, and what came of them.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::session::programs::Worker;
use super::session::{median, micro};
use super::{Extent, Row};

/// As the goals say.
pub(super) const CONNECTIONS: usize = 64;

/// Which requests a session that steals wants.
pub(super) const WANTED: &str = "x-standin: yes";
pub(super) const NOT_WANTED: &str = "x-standin: no!";

/// Where requests are made.
pub(super) trait Ground {
    /// Whoever makes them.
    fn worker(&mut self) -> &mut Worker;

    /// What a hop has used of the processors, in seconds.
    fn processor_seconds(&self, hop: Hop) -> Result<f64>;
}

/// A way from a client to whoever answers.
#[derive(Debug, Clone)]
pub(super) struct Way {
    address: String,
    header: &'static str,
    /// Who must answer.
    from: &'static str,
    hop: Hop,
}

/// What is between a client and whoever answers, in the target's network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hop {
    Nothing,
    Proxy,
    Relay,
    Agent,
}

/// What is asked of a way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    connections: usize,
    milliseconds: u64,
    /// Requests per second. Without it, as many as can be.
    rate: Option<f64>,
    requests_each: Option<usize>,
}

/// What came of it. Times are in microseconds.
#[derive(Debug, Clone, Default)]
pub(super) struct Loaded {
    pub(super) per_second: Vec<f64>,
    pub(super) all: f64,
    pub(super) p50: f64,
    pub(super) p99: f64,
    /// Processor time of the hop for each request.
    pub(super) cpu: f64,
}

impl Way {
    pub(super) fn new(address: String, header: &'static str, from: &'static str, hop: Hop) -> Self {
        Self {
            address,
            header,
            from,
            hop,
        }
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    pub(super) fn from(&self) -> &'static str {
        self.from
    }
}

impl Load {
    /// As many requests as can be.
    pub(super) fn full(connections: usize, extent: &Extent) -> Self {
        Self {
            connections,
            milliseconds: if extent.quick { 500 } else { 1000 },
            rate: None,
            requests_each: None,
        }
    }

    /// Few enough that nobody waits for another.
    pub(super) fn light(extent: &Extent) -> Self {
        Self {
            connections: 8,
            rate: Some(400.0),
            ..Self::full(0, extent)
        }
    }

    /// For minutes, by clients that come and go.
    pub(super) fn long(milliseconds: u64) -> Self {
        Self {
            connections: CONNECTIONS,
            milliseconds,
            rate: None,
            // With fewer, the client would run out of ports: it has 28,000, and keeps each for a minute.
            requests_each: Some(250),
        }
    }

    /// As many requests as can be, for so long.
    pub(super) fn lasting(connections: usize, milliseconds: u64) -> Self {
        Self {
            connections,
            milliseconds,
            rate: None,
            requests_each: None,
        }
    }

    /// So many requests per second, on eight connections, for so long.
    pub(super) fn paced(rate: f64, milliseconds: u64) -> Self {
        Self {
            connections: 8,
            milliseconds,
            rate: Some(rate),
            requests_each: None,
        }
    }

    /// One request or two.
    pub(super) fn touch() -> Self {
        Self {
            connections: 1,
            milliseconds: 1,
            rate: None,
            requests_each: None,
        }
    }

    pub(super) fn run(self, ground: &mut impl Ground, way: &Way) -> Result<Loaded> {
        let before = ground.processor_seconds(way.hop)?;
        let mut numbers = ground.worker().ask(&self.order(way))?;
        let used = ground.processor_seconds(way.hop)? - before;
        let per_second = numbers.remove("per_second").unwrap_or_default();
        let mut number = |name: &str| {
            let numbers = numbers.remove(name).unwrap_or_default();
            numbers.first().copied().context("a number is missing")
        };
        let all = number("all")?;
        let answers = all * self.milliseconds as f64 / 1e3;
        Ok(Loaded {
            per_second,
            cpu: micro(used / answers),
            all,
            p50: micro(number("p50")?),
            p99: micro(number("p99")?),
        })
    }

    /// What a worker is told.
    pub(super) fn order(self, way: &Way) -> Value {
        json!({
            "do": "load",
            "address": way.address(),
            "header": way.header,
            "from": way.from,
            "connections": self.connections,
            "milliseconds": self.milliseconds,
            "rate": self.rate,
            "requests_each": self.requests_each,
        })
    }

    /// Loads several ways in turn, and answers the medians of each.
    pub(super) fn compare<const WAYS: usize>(
        self,
        ground: &mut impl Ground,
        extent: &Extent,
        ways: &[Way; WAYS],
    ) -> Result<[Loaded; WAYS]> {
        let mut seen: [Vec<Loaded>; WAYS] = std::array::from_fn(|_| Vec::new());
        // Many short rounds: whatever else the machine does then disturbs all ways alike.
        for _ in 0..if extent.quick { 5 } else { 15 } {
            for (way, seen) in ways.iter().zip(&mut seen) {
                seen.push(self.run(ground, way)?);
            }
        }
        Ok(seen.map(|rounds| {
            let of = |pick: fn(&Loaded) -> f64| median(rounds.iter().map(pick).collect());
            Loaded {
                per_second: Vec::new(),
                all: of(|one| one.all),
                p50: of(|one| one.p50),
                p99: of(|one| one.p99),
                cpu: of(|one| one.cpu),
            }
        }))
    }
}

/// A row of requests per second.
pub(super) fn requests(name: impl Into<String>, seen: &Loaded, baseline: &Loaded) -> Row {
    Row::new(name, seen.all, "/s").baseline(baseline.all)
}

/// A row of what the hop needs for a request. Other work on the machine disturbs it little.
pub(super) fn processor(name: impl Into<String>, seen: &Loaded, baseline: &Loaded) -> Row {
    Row::new(name, seen.cpu, "µs").baseline(baseline.cpu)
}

/// Rows of the median and of the slowest in a hundred.
pub(super) fn times(name: &str, seen: &Loaded, baseline: &Loaded) -> [Row; 2] {
    [
        Row::new(format!("{name}: p50"), seen.p50, "µs").baseline(baseline.p50),
        Row::new(format!("{name}: p99"), seen.p99, "µs").baseline(baseline.p99),
    ]
}
