//! The memory of the agent for open, idle connections.

use anyhow::Result;
use serde_json::json;

use super::site::Site;
use crate::bench::load::{LoadSite as _, Route};
use crate::bench::server::{Mode, ServerBehavior};
use crate::bench::session::programs::memory;
use crate::bench::{Extent, Row};

const CONNECTIONS: usize = 1000;
const MAX_MEMORY: f64 = 20.0;

pub(super) fn rows(site: &mut Site, _: &Extent) -> Result<Vec<Row>> {
    let _session = site.session(Mode::Steal, ServerBehavior::Healthy)?;
    let before = memory(site.agent_pid())?;
    let route = Route::unmatched();
    site.worker().call(&json!({
        "do": "hold_requests",
        "address": route.address(),
        "from": route.from(),
        "count": CONNECTIONS,
    }))?;
    let with_connections = memory(site.agent_pid())?;
    site.worker().call(&json!({"do": "release"}))?;
    Ok(vec![
        Row::new(
            "memory of the agent, a session and 1,000 open connections (baseline: none open)",
            with_connections,
            "MiB",
        )
        .baseline(before)
        .at_most(MAX_MEMORY),
    ])
}
