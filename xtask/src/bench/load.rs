//! HTTP load on several routes, and its results.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::session::programs::Worker;
use super::session::{median, micro};
use super::{Extent, Row};

/// The number of connections in the goals.
pub(super) const CONNECTIONS: usize = 64;

/// The header of requests that a stealing session matches.
pub(super) const MATCHED_HEADER: &str = "x-standin: yes";
pub(super) const UNMATCHED_HEADER: &str = "x-standin: no!";

/// A site where requests are sent.
pub(super) trait LoadSite {
    /// The worker that sends them.
    fn worker(&mut self) -> &mut Worker;

    /// The CPU time that a hop has used, in seconds.
    fn processor_seconds(&self, hop: Hop) -> Result<f64>;
}

/// A route from a client to an application.
#[derive(Debug, Clone)]
pub(super) struct Route {
    address: String,
    header: &'static str,
    /// The application that must respond.
    from: &'static str,
    hop: Hop,
}

/// What is between a client and the application, in the target's network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hop {
    Nothing,
    Proxy,
    Relay,
    Agent,
}

/// The parameters of a load.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    connections: usize,
    milliseconds: u64,
    /// Requests per second; unlimited if not set.
    rate: Option<f64>,
    requests_each: Option<usize>,
}

/// The result of a load. Times are in microseconds.
#[derive(Debug, Clone, Default)]
pub(super) struct LoadResult {
    pub(super) per_second: Vec<f64>,
    pub(super) all: f64,
    pub(super) p50: f64,
    pub(super) p99: f64,
    /// CPU time of the hop for each request.
    pub(super) cpu: f64,
}

impl Route {
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
    /// As many requests as possible.
    pub(super) fn full(connections: usize, extent: &Extent) -> Self {
        Self {
            connections,
            milliseconds: if extent.quick { 500 } else { 1000 },
            rate: None,
            requests_each: None,
        }
    }

    /// So few requests that none waits for another.
    pub(super) fn light(extent: &Extent) -> Self {
        Self {
            connections: 8,
            rate: Some(400.0),
            ..Self::full(0, extent)
        }
    }

    /// A long load by clients that reconnect.
    pub(super) fn long(milliseconds: u64) -> Self {
        Self {
            connections: CONNECTIONS,
            milliseconds,
            rate: None,
            // With fewer, the client would run out of ports: it has 28,000, and keeps each for a minute.
            requests_each: Some(250),
        }
    }

    /// As many requests as possible, for so long.
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

    pub(super) fn run(self, site: &mut impl LoadSite, route: &Route) -> Result<LoadResult> {
        let before = site.processor_seconds(route.hop)?;
        let mut numbers = site.worker().call(&self.to_request(route))?;
        let used = site.processor_seconds(route.hop)? - before;
        let per_second = numbers.remove("per_second").unwrap_or_default();
        let mut number = |name: &str| {
            let numbers = numbers.remove(name).unwrap_or_default();
            numbers.first().copied().context("a number is missing")
        };
        let all = number("all")?;
        let answers = all * self.milliseconds as f64 / 1e3;
        Ok(LoadResult {
            per_second,
            cpu: micro(used / answers),
            all,
            p50: micro(number("p50")?),
            p99: micro(number("p99")?),
        })
    }

    /// The request for a worker.
    pub(super) fn to_request(self, route: &Route) -> Value {
        json!({
            "do": "load",
            "address": route.address(),
            "header": route.header,
            "from": route.from,
            "connections": self.connections,
            "milliseconds": self.milliseconds,
            "rate": self.rate,
            "requests_each": self.requests_each,
        })
    }

    /// Runs the load on several routes in turn, and returns the medians of each.
    pub(super) fn compare<const ROUTES: usize>(
        self,
        site: &mut impl LoadSite,
        extent: &Extent,
        routes: &[Route; ROUTES],
    ) -> Result<[LoadResult; ROUTES]> {
        let mut seen: [Vec<LoadResult>; ROUTES] = std::array::from_fn(|_| Vec::new());
        // Many short rounds, so that other work on the machine disturbs all routes alike.
        for _ in 0..if extent.quick { 5 } else { 15 } {
            for (route, seen) in routes.iter().zip(&mut seen) {
                seen.push(self.run(site, route)?);
            }
        }
        Ok(seen.map(|rounds| {
            let of = |pick: fn(&LoadResult) -> f64| median(rounds.iter().map(pick).collect());
            LoadResult {
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
pub(super) fn requests(name: impl Into<String>, seen: &LoadResult, baseline: &LoadResult) -> Row {
    Row::new(name, seen.all, "/s").baseline(baseline.all)
}

/// A row of the hop's CPU time for a request. Other work on the machine disturbs it little.
pub(super) fn processor(name: impl Into<String>, seen: &LoadResult, baseline: &LoadResult) -> Row {
    Row::new(name, seen.cpu, "µs").baseline(baseline.cpu)
}

/// Rows of the median and of the 99th percentile.
pub(super) fn times(name: &str, seen: &LoadResult, baseline: &LoadResult) -> [Row; 2] {
    [
        Row::new(format!("{name}: p50"), seen.p50, "µs").baseline(baseline.p50),
        Row::new(format!("{name}: p99"), seen.p99, "µs").baseline(baseline.p99),
    ]
}
