//! The nftables rules in the network namespaces of pods, which redirect traffic to agents.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::Setup;

impl Setup<'_> {
    /// The number of lines of rules in the network namespaces of these pods.
    pub(super) fn count_rules(&self, pods: &[Value]) -> Result<usize> {
        let processes = self.clusters.lab().processes()?;
        let mut lines = 0;
        for pod in pods {
            let name = pod["metadata"]["name"].as_str().context("no name")?;
            let process = processes.iter().find(|pid| is_in(**pid, name));
            let process = process.with_context(|| format!("no process runs in {name}"))?;
            let mut list = Command::new("nsenter");
            list.args(["--target", &process.to_string(), "--net"])
                .args(["nft", "--stateless", "list", "ruleset"]);
            lines += lab::output_of(&mut list)?.lines().count();
        }
        Ok(lines)
    }
}

fn is_in(process: i32, pod: &str) -> bool {
    let variables = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
    let host_name = format!("HOSTNAME={pod}");
    let mut variables = variables.split(|byte| *byte == 0);
    variables.any(|variable| variable == host_name.as_bytes())
}
