//! What incoming traffic costs: those who are stood in for, everybody else, and copies.
//!
//! Each measure is taken beside a direct run and beside a plain proxy or relay in the same place, in turn, so that whatever
//! else the machine does disturbs all of them. Numbers are medians.

mod endurance;
mod load;
mod memory;
mod mirror;
mod site;
mod stolen;
mod unmatched;

use anyhow::{Result, bail};

use self::site::Site;
use super::session::programs::Programs;
use super::{Extent, Row};

/// Rows that belong together.
type Group = (&'static str, fn(&mut Site, &Extent) -> Result<Vec<Row>>);

const GROUPS: &[Group] = &[
    ("stolen", stolen::rows),
    ("unmatched", unmatched::rows),
    ("mirror", mirror::rows),
    ("memory", memory::rows),
    ("endurance", endurance::rows),
];

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
