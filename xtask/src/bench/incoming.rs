//! The cost for incoming traffic: stolen, not matched, and mirrored.
//!
//! Each measurement has the baselines of a direct connection and of a plain proxy or relay, in turn, so that other work
//! on the machine disturbs all of them. Numbers are medians.

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

/// Each group has its own site, so that the agent's memory and the target's sockets do not depend on the group before.
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
    // Discards the log of the previous run.
    File::create(log_path()?)?;
    groups::measure(GROUPS, extent, || Programs::find(extent), |_| Ok(()))
}
