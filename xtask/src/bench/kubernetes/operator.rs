//! An operator, installed by its chart as users do it, with agents that wait on nodes.

use anyhow::{Context as _, Result};
use lab::Client;
use lab::standind;

use crate::workspace;

const NAMESPACE: &str = "mirrord";
const API_SERVICE: &str = "apiservice/v1.operator.metalbear.co";

/// It goes with the lab.
#[derive(Debug)]
pub(super) struct Operator {
    client: Client,
}

impl Operator {
    pub(super) fn install(client: &Client) -> Result<Self> {
        let operator = Self {
            client: client.clone(),
        };
        let chart = workspace::root()?.join("charts/standin-operator");
        let (repository, tag) = standind::REFERENCE.rsplit_once(':').context("no tag")?;
        let mut helm = client.helm();
        helm.args(["install", "standin"]).arg(chart).args([
            "--namespace",
            NAMESPACE,
            "--create-namespace",
            "--wait",
            "--timeout=180s",
            "--set=operator.agent.mode=node",
            &format!("--set=operator.image.repository={repository}"),
            &format!("--set-string=operator.image.tag={tag}"),
        ]);
        lab::output_of(&mut helm)?;
        operator.kubectl(&[
            "rollout",
            "status",
            "daemonset/mirrord-node-agent",
            "--timeout=120s",
        ])?;
        operator.wait()?;
        Ok(operator)
    }

    /// Waits until the API server knows that it is there.
    pub(super) fn wait(&self) -> Result<()> {
        self.kubectl(&[
            "wait",
            "--for=condition=Available",
            API_SERVICE,
            "--timeout=60s",
        ])
        .map(drop)
    }

    fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let mut command = self.client.kubectl();
        command.args(["--namespace", NAMESPACE]).args(arguments);
        Ok(lab::output_of(&mut command)?)
    }
}
