//! Many agents of one hub, and its restart.

use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use serde_json::json;

use super::site::Site;
use super::{Extent, Row};
use crate::bench::session::percentile;
use crate::bench::session::programs::{memory, processor_seconds};

const AGENTS: usize = 1000;

pub(super) fn rows(site: &mut Site, extent: &Extent) -> Result<Vec<Row>> {
    let mut hub = site.second_hub()?;
    let _agents = site.agents(AGENTS)?;
    hub.measure(&json!(AGENTS), "seconds")?;
    let seconds = if extent.quick { 10 } else { 60 };
    let before = processor_seconds(hub.pid())?;
    sleep(Duration::from_secs(seconds));
    let used = processor_seconds(hub.pid())? - before;
    let idle = memory(hub.pid())?;
    drop(hub);
    // As long as a pod needs to start again.
    sleep(Duration::from_secs(3));
    let mut hub = site.second_hub()?;
    let connected = hub.measure(&json!(AGENTS), "seconds")?;
    Ok(vec![
        Row::new("hub with 1,000 idle agents, memory", idle, "MiB").at_most(200.0),
        Row::new(
            "hub with 1,000 idle agents, of one processor",
            used / seconds as f64 * 100.0,
            "%",
        )
        .at_most(10.0),
        Row::new(
            "hub restarted with 1,000 agents, all connected",
            percentile(connected.clone(), 1.0),
            "s",
        )
        .at_most(30.0),
        Row::new(
            "hub restarted with 1,000 agents, 99th percentile",
            percentile(connected, 0.99),
            "s",
        )
        .at_most(10.0),
    ])
}
