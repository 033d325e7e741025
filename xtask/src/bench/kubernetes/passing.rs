//! Requests that a session does not match or that it mirrors: in the first minute of load and in the fifth.

use anyhow::Result;

use super::site::{AccessPath, Site};
use crate::bench::load::{Load, requests};
use crate::bench::server::Mode;
use crate::bench::{Extent, Row};

const CONNECTIONS: usize = 64;
/// As fast as in the first minute, with a tolerance for other work on the machine.
const MIN_RATIO: f64 = 0.9;

pub(super) fn rows(site: &mut Site, extent: &Extent) -> Result<Vec<Row>> {
    let seconds: u64 = if extent.quick { 4 } else { 60 };
    let mut rows = Vec::new();
    for (mode, name) in [(Mode::Steal, "not matched"), (Mode::Mirror, "mirrored")] {
        let _session = site.session(mode, AccessPath::OwnRights)?;
        let load = Load::lasting(CONNECTIONS, seconds * 1000);
        let before = load.run(site, &site.direct())?;
        let mut minutes = Vec::new();
        for _ in 0..5 {
            minutes.push(load.run(site, &site.passing())?);
        }
        let after = load.run(site, &site.direct())?;
        let (Some(first), Some(fifth)) = (minutes.first(), minutes.last()) else {
            continue;
        };
        let name = format!("{name}, 64 connections");
        rows.push(
            requests(
                format!("{name}, first {seconds} s (baseline: the pod)"),
                first,
                &before,
            )
            .ratio_at_least(0.4),
        );
        rows.push(
            requests(
                format!("{name}, fifth {seconds} s (baseline: the pod)"),
                fifth,
                &after,
            )
            .ratio_at_least(0.4),
        );
        rows.push(
            requests(
                format!("{name}, fifth {seconds} s (baseline: the first)"),
                fifth,
                first,
            )
            .ratio_at_least(MIN_RATIO),
        );
    }
    Ok(rows)
}
