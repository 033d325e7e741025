//! The memory of the agent while clients of its target open streams that the application never reads.
//!
//! The agent and the application share a control group with a memory limit, as in a pod in production. A well-behaved client
//! sends requests meanwhile.

mod group;
mod site;

use anyhow::Result;

use self::site::Site;
use crate::bench::session::programs::{Programs, memory};
use crate::bench::{Extent, Row};

/// Streams of each client.
const STREAMS: usize = 1024;
/// The documented bound of an agent with the default budget, in MiB.
const BOUND: f64 = 128.0;
/// Requests of the well-behaved client.
const REQUESTS: usize = 50;

pub(super) fn rows(programs: &Programs, extent: &Extent) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for clients in [1, 16, 256] {
        // A site of its own, so that the memory does not depend on the clients before.
        let mut site = Site::build(programs)?;
        let _session = site.session()?;
        site.well_behaved(REQUESTS)?;
        let idle = memory(site.agent_pid())?;
        site.stall(clients, STREAMS)?;
        let served = site.well_behaved(if extent.quick { 5 } else { REQUESTS });
        // An agent that was killed had reached the limit.
        let stalled = memory(site.agent_pid()).unwrap_or(site::LIMIT as f64 / f64::from(1 << 20));
        let name = format!("{clients} x {STREAMS} stalled streams");
        rows.push(
            Row::new(
                format!("memory of the agent, {name} (baseline: idle)"),
                stalled,
                "MiB",
            )
            .baseline(idle)
            .at_most(BOUND),
        );
        let failures = if served.is_ok() { 0.0 } else { 1.0 };
        rows.push(
            Row::new(
                format!("failures of a well-behaved client, {name}"),
                failures,
                "",
            )
            .at_most(0.0),
        );
        rows.push(
            Row::new(
                format!("processes killed for memory, {name}"),
                site.killed()?,
                "",
            )
            .at_most(0.0),
        );
    }
    Ok(rows)
}
