//! The cost of a session over several clusters: its start, operations in the Default, stolen requests of all clusters at
//! once, a member that is cut off, many sessions, and many members.
//!
//! Everything is in a lab of three clusters. The Primary has targets too, and the Default is a member. The developer is
//! beside the Primary, so the link between the Primary and a member is also between the developer and that member.
//! Links are named by their round trip. Baselines are measured in the same run, in turn.

mod members;
mod ready;
mod sessions;
mod site;
mod stalled;
mod stateful;
mod stolen;

use anyhow::Result;
use lab::Paths;

use self::site::Site;
use super::groups::{self, Group};
use super::session::programs::Programs;
use super::{Extent, Row, images};

/// The round trips between the Primary and its members, in milliseconds.
const LINKS: [u64; 3] = [0, 20, 80];

const GROUPS: &[Group<Site>] = &[
    ("ready", ready::rows),
    ("stateful", stateful::rows),
    ("stolen", stolen::rows),
    ("stalled", stalled::rows),
    ("sessions", sessions::rows),
    ("members", members::rows),
];

pub(super) fn prepare() -> Result<()> {
    crate::lab::prepare(&Paths::from_environment(), site::CLUSTERS.len(), 1)?;
    images::build_programs()
}

pub(super) fn measure(extent: &Extent) -> Result<Vec<Row>> {
    groups::measure(
        GROUPS,
        extent,
        || Site::build(Programs::find(extent)?, extent),
        |site| site.set_round_trip(0),
    )
}
