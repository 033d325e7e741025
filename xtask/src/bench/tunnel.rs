//! The reverse tunnel, compared with remotedialer and with a direct connection in the same run.
//!
//! One load measures all three: it connects to the target directly, or to a hub that forwards its connections through an
//! agent. Both tunnels use WebSockets over TLS with certificates of both ends. A round-trip time is that of the network
//! between hub and agent.

mod agents;
mod interruption;
mod latency;
mod memory;
mod site;
mod throughput;

use std::process::Command;

use anyhow::Result;

use self::site::Site;
use super::groups::{self, Group};
use super::{Extent, Row};
use crate::{process, workspace};

/// The round-trip times of the network, in milliseconds.
const LINKS: [u64; 3] = [0, 20, 80];

const GROUPS: &[Group<Site>] = &[
    ("throughput", throughput::rows),
    ("latency", latency::rows),
    ("memory", memory::rows),
    ("agents", agents::rows),
    ("outage", interruption::rows),
];

/// Builds both tunnels, as the caller and never as root. Go caches what it has built.
pub(super) fn prepare() -> Result<()> {
    let root = workspace::root()?;
    process::run(lab::cargo(&root).args([
        "build",
        "--release",
        "--locked",
        "--package=tunnel",
        "--example=carry",
    ]))?;
    process::run(
        Command::new("go")
            .args(["build", "-trimpath", "-o"])
            .arg(site::remotedialer()?)
            .arg(".")
            .env("CGO_ENABLED", "0")
            .env("GOWORK", "off")
            .env("GOFLAGS", "-buildvcs=false -mod=readonly")
            .current_dir(root.join("xtask/src/bench/tunnel/remotedialer")),
    )
}

pub(super) fn measure(extent: &Extent) -> Result<Vec<Row>> {
    groups::measure(GROUPS, extent, Site::build, |site| site.set_round_trip(0))
}
