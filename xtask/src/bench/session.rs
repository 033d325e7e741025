//! What a session costs: every operation beside what it is compared with, in the same run, over links of several round
//! trips.
//!
//! One worker runs bare and one in a session; both do the same in turn, so that whatever else the machine does disturbs
//! both. Numbers are medians.

mod bulk;
mod connections;
mod faults;
mod files;
mod local;
mod memory;
pub(super) mod programs;
pub(super) mod site;
mod start;

use anyhow::{Result, bail};

use self::programs::Programs;
use self::site::Site;
use super::{Extent, Row};

/// The round trips of the links, in milliseconds.
const LINKS: [u64; 3] = [0, 5, 40];

/// Rows that belong together.
type Group = (&'static str, fn(&mut Site, &Extent) -> Result<Vec<Row>>);

const GROUPS: &[Group] = &[
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
    let names: Vec<&str> = GROUPS.iter().map(|(name, _)| *name).collect();
    if let Some(unknown) = extent
        .only
        .iter()
        .find(|only| !names.contains(&only.as_str()))
    {
        bail!(
            "there is no group `{unknown}`. These are there: {}",
            names.join(", ")
        );
    }
    let mut site = Site::build(Programs::find()?)?;
    let mut rows = Vec::new();
    for (name, group) in GROUPS {
        if !extent.only.is_empty() && !extent.only.iter().any(|only| only == name) {
            continue;
        }
        eprintln!("measuring {name}");
        site.set_round_trip(0)?;
        match group(&mut site, extent) {
            Ok(measured) => rows.extend(measured),
            Err(error) => {
                // The others can still be measured, and this one is missed.
                eprintln!("{name} could not be measured: {error:#}");
                rows.push(Row::new(format!("{name}: failures"), 1.0, "").at_most(0.0));
            }
        }
    }
    Ok(rows)
}

pub(super) fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}

fn most(numbers: &[f64]) -> f64 {
    numbers.iter().copied().fold(0.0, f64::max)
}

fn least(numbers: &[f64]) -> f64 {
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
