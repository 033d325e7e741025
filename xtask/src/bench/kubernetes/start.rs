//! The time from a command to a session, beside the time of a pod that does nothing.

use std::process::Stdio;
use std::time::Instant;

use anyhow::{Result, ensure};

use super::site::Site;
use crate::bench::session::median;
use crate::bench::{Extent, Row};

/// Each session leaves the entry of its ended container in the pod.
const ROUNDS: usize = 9;

pub(super) fn rows(site: &mut Site, extent: &Extent) -> Result<Vec<Row>> {
    let (mut sessions, mut pods) = (Vec::new(), Vec::new());
    // Whatever is done first pays for all that is set up then.
    pause_pod(site, "pause-first")?;
    session(site)?;
    for round in 0..extent.rounds(ROUNDS).max(3) {
        pods.push(pause_pod(site, &format!("pause-{round}"))?);
        sessions.push(session(site)?);
    }
    let name = "`exec -- true`, no operator (baseline: a pause pod until it is ready)";
    Ok(vec![
        Row::new(name, median(sessions), "s")
            .baseline(median(pods))
            .ratio_at_most(0.9),
    ])
}

/// How long a session takes that does nothing.
fn session(site: &Site) -> Result<f64> {
    let mut command = site.exec()?;
    command.args(["--", "true"]).stdout(Stdio::null());
    let start = Instant::now();
    let status = command.status()?;
    let seconds = start.elapsed().as_secs_f64();
    ensure!(status.success(), "a session ended with {status}");
    Ok(seconds)
}

/// How long a pod takes that does nothing.
fn pause_pod(site: &Site, name: &str) -> Result<f64> {
    let pod = format!("pod/{name}");
    let image = format!("--image={}", lab::image::recipes::PAUSE);
    let start = Instant::now();
    site.kubectl(&["run", name, &image, "--restart=Never"])?;
    site.kubectl(&["wait", "--for=condition=Ready", &pod, "--timeout=60s"])?;
    let seconds = start.elapsed().as_secs_f64();
    site.kubectl(&["delete", &pod, "--now", "--wait=true"])?;
    Ok(seconds)
}
