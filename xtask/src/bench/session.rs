//! The cost of a session: every operation and its baseline, in the same run, over links with several round-trip times.
//!
//! One worker runs bare and one in a session. Both execute the same requests in turn, so that other work on the machine
//! disturbs both. Numbers are medians.

mod bulk;
mod connections;
mod faults;
mod files;
mod local;
mod memory;
pub(super) mod programs;
pub(super) mod site;
mod start;

use anyhow::Result;

use self::programs::Programs;
use self::site::Site;
use super::groups::{self, Group};
use super::{Extent, Row};

/// The round trips of the links, in milliseconds.
const LINKS: [u64; 3] = [0, 5, 40];

const GROUPS: &[Group<Site>] = &[
    ("local", local::rows),
    ("start", start::rows),
    ("files", files::rows),
    ("connections", connections::rows),
    ("bulk", bulk::rows),
    ("faults", faults::rows),
    ("memory", memory::rows),
];

pub(super) fn prepare() -> Result<()> {
    Programs::build()
}

pub(super) fn measure(extent: &Extent) -> Result<Vec<Row>> {
    groups::measure(
        GROUPS,
        extent,
        || Site::build(Programs::find(extent)?),
        |site| site.set_round_trip(0),
    )
}

pub(super) fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The 95th percentile.
pub(super) fn ninety_fifth(numbers: Vec<f64>) -> f64 {
    percentile(numbers, 0.95)
}

/// The number that this fraction of the numbers does not exceed.
pub(super) fn percentile(mut numbers: Vec<f64>, fraction: f64) -> f64 {
    numbers.sort_by(f64::total_cmp);
    let last = numbers.len().saturating_sub(1);
    let index = (last as f64 * fraction).round() as usize;
    numbers.get(index).copied().unwrap_or(f64::NAN)
}

fn maximum(numbers: &[f64]) -> f64 {
    numbers.iter().copied().fold(0.0, f64::max)
}

fn minimum(numbers: &[f64]) -> f64 {
    numbers.iter().copied().fold(f64::INFINITY, f64::min)
}

/// Seconds as microseconds.
pub(super) fn micro(seconds: f64) -> f64 {
    seconds * 1e6
}

/// Bytes as mebibytes.
pub(super) fn mebi(bytes: f64) -> f64 {
    bytes / f64::from(1 << 20)
}
