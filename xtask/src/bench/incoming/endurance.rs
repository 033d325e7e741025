//! Minutes of requests by clients that reconnect: not matched by a stealing session, and mirrored to another session.

use anyhow::{Result, ensure};

use super::site::Site;
use crate::bench::load::{Load, Route};
use crate::bench::server::{Mode, ServerBehavior};
use crate::bench::{Extent, Row};

/// How many seconds at the beginning and at the end are compared.
const COMPARED_SECONDS: usize = 10;
/// As fast as at the beginning, with a tolerance for other work on the machine.
const MIN_RATIO: f64 = 0.9;
/// Far fewer than the connections of the load.
const MAX_TIME_WAIT: f64 = 500.0;

pub(super) fn rows(site: &mut Site, extent: &Extent) -> Result<Vec<Row>> {
    let _stealing = site.session(Mode::Steal, ServerBehavior::Healthy)?;
    let _copying = site.session(Mode::Mirror, ServerBehavior::Healthy)?;
    let seconds = if extent.quick { 30 } else { 300 };
    let result = Load::long(seconds * 1000).run(site, &Route::unmatched())?;
    let time_wait = site.waiting_sockets()?;
    let each = result.per_second;
    ensure!(each.len() >= 2 * COMPARED_SECONDS, "too short to compare");
    let mean = |seconds: &[f64]| seconds.iter().sum::<f64>() / COMPARED_SECONDS as f64;
    let (first, last) = (
        mean(&each[..COMPARED_SECONDS]),
        mean(&each[each.len() - COMPARED_SECONDS..]),
    );
    Ok(vec![
        Row::new(
            format!("not matched and mirrored, {seconds} s: last 10 s (baseline: first 10 s)"),
            last,
            "/s",
        )
        .baseline(first)
        .ratio_at_least(MIN_RATIO),
        Row::new("sockets in TIME_WAIT at the target", time_wait as f64, "").at_most(MAX_TIME_WAIT),
    ])
}
