//! Interruptions of the network between the agent and the hub that are shorter than the resume window.

use std::io::Read as _;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::time::sleep;

use super::clients::Running;
use super::environment::{CLUSTER, Tunnel};

const INTERRUPTION: Duration = Duration::from_secs(10);
/// More than what fits into all buffers on the path, at a rate at which it is still being sent when the network is cut.
const TRANSFERRED: usize = 48 * 1024 * 1024;
const RATE: &str = "rate 60mbit";

/// A log stream, a watch and a transfer continue, and nothing is lost or repeated.
pub(super) async fn nothing_is_lost_in_an_interruption(tunnel: &Tunnel<'_>) -> Result<()> {
    let lab = tunnel.clusters.lab();
    lab.set_link("hub", CLUSTER, &RATE.parse()?)?;
    let mut logs = tunnel.kubectl_command()?;
    let mut logs = Running::start(logs.args(["logs", "--follow", "counter"]))?;
    ensure!(logs.line()? == "1");
    let mut watch = tunnel.kubectl_command()?;
    watch.args(["get", "configmaps", "--watch", "--output=name"]);
    let mut watch = Running::start(&mut watch)?;
    let mut transfer = tunnel.kubectl_command()?;
    let script = format!("head -c {TRANSFERRED} /dev/zero");
    let mut transfer = transfer
        .args(["exec", "counter", "--", "sh", "-c", &script])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut received = transfer.stdout.take().context("no output")?;
    let mut first = vec![0; 1024 * 1024];
    received.read_exact(&mut first)?;
    lab.cut("hub", CLUSTER)?;
    // This is not a wait for something: the network is away for this time.
    sleep(INTERRUPTION).await;
    lab.set_link("hub", CLUSTER, &lab::Conditions::default())?;
    let rest = std::io::copy(&mut received, &mut std::io::sink())?;
    ensure!(transfer.wait()?.success(), "the transfer failed");
    ensure!(
        first.len() as u64 + rest == TRANSFERRED as u64,
        "{rest} bytes"
    );
    tunnel.kubectl(&["create", "configmap", "after-the-interruption"])?;
    while watch.line()? != "configmap/after-the-interruption" {}
    for expected in 2..=150 {
        let line = logs.line()?;
        ensure!(line == expected.to_string(), "{line} instead of {expected}");
    }
    Ok(())
}
