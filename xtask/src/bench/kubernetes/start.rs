//! The time to start a session, compared with the time to start a pause pod.

use std::process::Stdio;
use std::time::Instant;

use anyhow::{Result, ensure};

use super::site::{AccessPath, Site};
use crate::bench::session::{median, ninety_fifth};
use crate::bench::{Extent, Row};

/// Each session leaves the entry of its ended container in the pod.
const ROUNDS: usize = 9;
/// Enough for a 95th percentile.
const ROUNDS_WITH_OPERATOR: usize = 40;

pub(super) fn rows(site: &mut Site, extent: &Extent) -> Result<Vec<Row>> {
    let (sessions, pods) = measure(site, extent.rounds(ROUNDS).max(3), AccessPath::OwnRights)?;
    let name = "`exec -- true`, no operator (baseline: a pause pod until it is ready)";
    Ok(vec![
        Row::new(name, median(sessions), "s")
            .baseline(median(pods))
            .ratio_at_most(0.9),
    ])
}

/// With an operator that has node agents.
pub(super) fn rows_with_operator(site: &mut Site, extent: &Extent) -> Result<Vec<Row>> {
    site.operator()?;
    let rounds = if extent.quick {
        5
    } else {
        ROUNDS_WITH_OPERATOR
    };
    let (sessions, pods) = measure(site, rounds, AccessPath::Operator)?;
    let name = "`exec -- true`, operator, agent on the node";
    let pod = median(pods);
    Ok(vec![
        Row::new(
            format!("{name} (baseline: a pause pod until it is ready)"),
            median(sessions.clone()),
            "s",
        )
        .baseline(pod)
        .ratio_at_most(0.5),
        Row::new(
            format!("{name}, p95 (baseline: the same)"),
            ninety_fifth(sessions),
            "s",
        )
        .baseline(pod)
        .ratio_at_most(0.9),
    ])
}

/// Seconds of sessions and of pods, in turn.
fn measure(site: &Site, rounds: usize, access: AccessPath) -> Result<(Vec<f64>, Vec<f64>)> {
    // The first of each pays for one-time setup.
    pause_pod(site, "pause-first")?;
    session(site, access)?;
    let (mut sessions, mut pods) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        pods.push(pause_pod(site, &format!("pause-{round}"))?);
        sessions.push(session(site, access)?);
    }
    Ok((sessions, pods))
}

/// The duration of a session that does nothing.
pub(in crate::bench) fn session(site: &Site, access: AccessPath) -> Result<f64> {
    let mut command = site.exec(access)?;
    command.args(["--", "true"]).stdout(Stdio::null());
    let start = Instant::now();
    let status = command.status()?;
    let seconds = start.elapsed().as_secs_f64();
    ensure!(status.success(), "a session ended with {status}");
    Ok(seconds)
}

/// The time until a pause pod is ready.
fn pause_pod(site: &Site, name: &str) -> Result<f64> {
    let pod = format!("pod/{name}");
    let image = format!("--image={}", lab::image::recipes::SANDBOX);
    let start = Instant::now();
    site.kubectl(&["run", name, &image, "--restart=Never"])?;
    site.kubectl(&["wait", "--for=condition=Ready", &pod, "--timeout=60s"])?;
    let seconds = start.elapsed().as_secs_f64();
    site.kubectl(&["delete", &pod, "--now", "--wait=true"])?;
    Ok(seconds)
}
