//! The memory of an idle session: in the pod and on the developer's machine.

use std::fs;

use anyhow::{Context as _, Result};
use serde_json::json;

use super::site::Site;
use crate::bench::session::programs::memory;
use crate::bench::{Extent, Row};

pub(super) fn rows(site: &mut Site, _: &Extent) -> Result<Vec<Row>> {
    let mut inside = site.session_worker()?;
    // The response arrives when the session is ready.
    inside.call(&json!({"do": "release"}))?;
    Ok(vec![
        Row::new("memory of the agent, idle", memory(agent(site)?)?, "MiB").at_most(12.0),
        Row::new(
            "memory of `standin exec`, idle",
            memory(inside.pid())?,
            "MiB",
        )
        .at_most(25.0),
    ])
}

/// The first process of the agent: the one whose parent is no agent process.
fn agent(site: &Site) -> Result<u32> {
    let agents = site.processes("agent")?;
    let parent = |pid: u32| -> Option<u32> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
        line.trim().parse().ok()
    };
    let first = agents
        .iter()
        .find(|pid| parent(**pid).is_none_or(|parent| !agents.contains(&parent)));
    first.copied().context("there is no agent in the lab")
}
