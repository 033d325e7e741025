//! What incoming traffic costs: those who are stood in for, everybody else, and copies.
//!
//! Each measure is taken beside a direct run and beside a plain proxy or relay in the same place, in turn, so that whatever
//! else the machine does disturbs all of them. Numbers are medians.

mod endurance;
mod memory;
mod mirror;
mod site;
mod stolen;
mod unmatched;

use anyhow::Result;

use self::site::Site;
use super::groups::{self, Group};
use super::session::programs::Programs;
use super::{Extent, Row};

const GROUPS: &[Group<Site>] = &[
    ("stolen", stolen::rows),
    ("unmatched", unmatched::rows),
    ("mirror", mirror::rows),
    ("memory", memory::rows),
    ("endurance", endurance::rows),
];

pub(super) fn measure(extent: &Extent) -> Result<Vec<Row>> {
    groups::measure(
        GROUPS,
        extent,
        || Site::build(Programs::find()?),
        |_| Ok(()),
    )
}
