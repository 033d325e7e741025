//! Minutes of requests by clients that come and go, past a session that does not want them, with a copy for another.

use anyhow::{Result, ensure};

use super::site::Site;
use crate::bench::load::{Load, Way};
use crate::bench::server::{Manner, Mode};
use crate::bench::{Extent, Row};

/// How many seconds at the beginning and at the end are compared.
const COMPARED: usize = 10;
/// As fast as at the beginning, as far as can be told on a machine that does other things too.
const AS_FAST: f64 = 0.9;
/// Far fewer than the clients that came and went.
const MOST_WAITING: f64 = 500.0;

pub(super) fn rows(site: &mut Site, extent: &Extent) -> Result<Vec<Row>> {
    let _stealing = site.session(Mode::Steal, Manner::Healthy)?;
    let _copying = site.session(Mode::Mirror, Manner::Healthy)?;
    let seconds = if extent.quick { 30 } else { 300 };
    let seen = Load::long(seconds * 1000).run(site, &Way::unmatched())?;
    let waiting = site.waiting_sockets()?;
    let each = seen.per_second;
    ensure!(each.len() >= 2 * COMPARED, "too short to compare");
    let mean = |seconds: &[f64]| seconds.iter().sum::<f64>() / COMPARED as f64;
    let (first, last) = (
        mean(&each[..COMPARED]),
        mean(&each[each.len() - COMPARED..]),
    );
    Ok(vec![
        Row::new(
            format!("not matched and mirrored, {seconds} s: last 10 s (baseline: first 10 s)"),
            last,
            "/s",
        )
        .baseline(first)
        .ratio_at_least(AS_FAST),
        Row::new("sockets in TIME_WAIT at the target", waiting as f64, "").at_most(MOST_WAITING),
    ])
}
