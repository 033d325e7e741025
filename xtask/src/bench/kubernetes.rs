//! The cost of a session on a cluster: its start, stolen traffic, other traffic, outgoing connections and DNS, and memory.
//! First without an operator, then with an operator that has node agents: start, stolen traffic, and many sessions.
//!
//! Everything is in a lab of one cluster with the images present. Clients are in the network of the node; the developer is
//! on the machine and reaches only the API server. Baselines are measured in the same run, in turn.

mod forward;
mod memory;
pub(super) mod operator;
mod outgoing;
mod passing;
mod raw_relay;
mod sessions;
pub(super) mod site;
pub(super) mod start;
mod stolen;

use anyhow::Result;
use lab::Paths;

use self::site::Site;
use super::groups::{self, Group};
use super::session::programs::Programs;
use super::{Extent, Row, images};

const GROUPS: &[Group<Site>] = &[
    ("start", start::rows),
    ("stolen", stolen::rows),
    ("passing", passing::rows),
    ("outgoing", outgoing::rows),
    ("memory", memory::rows),
    ("operator-start", start::rows_with_operator),
    ("operator-stolen", stolen::rows_with_operator),
    ("operator-sessions", sessions::rows),
];

pub(super) fn prepare() -> Result<()> {
    crate::lab::prepare(&Paths::from_environment(), 1, 1)?;
    images::build_programs()
}

pub(super) fn measure(extent: &Extent) -> Result<Vec<Row>> {
    groups::measure(
        GROUPS,
        extent,
        || Site::build(Programs::find(extent)?, extent),
        |_| Ok(()),
    )
}
