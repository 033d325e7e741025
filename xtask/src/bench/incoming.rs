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

use std::fs::File;

use anyhow::Result;

use self::site::Site;
use super::groups::{self, Group};
use super::session::programs::{Programs, log_path};
use super::{Extent, Row};

/// Each at a site of its own: what the one before has left in the agent's memory or among the target's sockets is no
/// matter of the next.
const GROUPS: &[Group<Programs>] = &[
    ("stolen", |programs, extent| {
        stolen::rows(&mut Site::build(programs)?, extent)
    }),
    ("unmatched", |programs, extent| {
        unmatched::rows(&mut Site::build(programs)?, extent)
    }),
    ("mirror", |programs, extent| {
        mirror::rows(&mut Site::build(programs)?, extent)
    }),
    ("memory", |programs, extent| {
        memory::rows(&mut Site::build(programs)?, extent)
    }),
    ("endurance", |programs, extent| {
        endurance::rows(&mut Site::build(programs)?, extent)
    }),
];

pub(super) fn measure(extent: &Extent) -> Result<Vec<Row>> {
    // What was said in the run before is of no use any more.
    File::create(log_path()?)?;
    groups::measure(GROUPS, extent, || Programs::find(extent), |_| Ok(()))
}
