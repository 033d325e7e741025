//! What open connections take of the target's memory while nothing happens on them.

use anyhow::Result;
use serde_json::json;

use super::site::Site;
use crate::bench::load::{Ground as _, Way};
use crate::bench::server::{Manner, Mode};
use crate::bench::session::programs::memory;
use crate::bench::{Extent, Row};

const CONNECTIONS: usize = 1000;
const MOST: f64 = 20.0;

pub(super) fn rows(site: &mut Site, _: &Extent) -> Result<Vec<Row>> {
    let _session = site.session(Mode::Steal, Manner::Healthy)?;
    let before = memory(site.agent_pid())?;
    let way = Way::unmatched();
    site.worker().ask(&json!({
        "do": "hold_requests",
        "address": way.address(),
        "from": way.from(),
        "count": CONNECTIONS,
    }))?;
    let held = memory(site.agent_pid())?;
    site.worker().ask(&json!({"do": "let_go"}))?;
    Ok(vec![
        Row::new(
            "memory of the agent, a session and 1,000 open connections (baseline: none open)",
            held,
            "MiB",
        )
        .baseline(before)
        .at_most(MOST),
    ])
}
