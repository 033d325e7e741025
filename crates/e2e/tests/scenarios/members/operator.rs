//! An operator in one of the clusters: installation, configuration and removal by its chart.

use std::io::Write as _;

use anyhow::{Context as _, Result, ensure};
use e2e::{OwnClusters, Scenario, TestCluster, TestNamespace};
use lab::standind;
use serde_json::Value;

use super::CHART;

/// An operator in its own namespace.
pub(super) struct Operator {
    pub(super) namespace: TestNamespace,
}

impl Operator {
    pub(super) async fn new(
        scenario: &Scenario<'_>,
        clusters: &OwnClusters,
        name: &str,
    ) -> Result<Self> {
        let cluster: &TestCluster = clusters.get(name)?;
        let namespace = scenario.namespace_on(cluster).await?;
        Ok(Operator { namespace })
    }

    /// Installs or upgrades the chart. Values go through a file, because some are secret.
    pub(super) fn helm(&self, verb: &str, values: &Value) -> Result<()> {
        let (repository, tag) = standind::REFERENCE.rsplit_once(':').context("no tag")?;
        let mut file = tempfile::NamedTempFile::new()?;
        file.write_all(values.to_string().as_bytes())?;
        let file = file.path().display().to_string();
        let repository = format!("operator.image.repository={repository}");
        let tag = format!("operator.image.tag={tag}");
        let mut command = self.namespace.cluster.client.helm();
        let command = command
            .args(["--namespace", &self.namespace.name, verb, "standin", CHART])
            .args(["--wait", "--timeout=180s", "--values", &file])
            .args(["--set", &repository, "--set-string", &tag]);
        lab::output_of(command)?;
        self.wait_until_available()
    }

    pub(super) fn wait_until_available(&self) -> Result<()> {
        let rollout = [
            "rollout",
            "status",
            "deployment/mirrord-operator",
            "--timeout=180s",
        ];
        self.namespace.kubectl(&rollout)?;
        let service = "apiservice/v1.operator.metalbear.co";
        self.namespace.kubectl(&[
            "wait",
            "--for=condition=Available",
            service,
            "--timeout=60s",
        ])?;
        Ok(())
    }

    pub(super) fn kubectl_in(&self, namespace: &str, arguments: &[&str]) -> Result<String> {
        let mut command = self.namespace.cluster.client.kubectl();
        Ok(lab::output_of(
            command.args(["--namespace", namespace]).args(arguments),
        )?)
    }

    /// `mirrordoperators/operator`.
    pub(super) fn object(&self) -> Result<Value> {
        let text =
            self.namespace
                .kubectl(&["get", "mirrordoperators", "operator", "--output=json"])?;
        Ok(serde_json::from_str(&text)?)
    }

    pub(super) fn uninstall(&self) -> Result<()> {
        let mut command = self.namespace.cluster.client.helm();
        let namespace = ["--namespace", &self.namespace.name];
        lab::output_of(command.args(namespace).args([
            "uninstall",
            "standin",
            "--wait",
            "--timeout=120s",
        ]))?;
        let kinds = "customresourcedefinitions,clusterroles,clusterrolebindings,apiservices";
        let own = "secrets,configmaps,serviceaccounts,roles,rolebindings";
        let left = self.namespace.kubectl(&["get", kinds, "--output=name"])?
            + &self.namespace.kubectl(&["get", own, "--output=name"])?;
        // The scenario created this Secret itself.
        let left: Vec<&str> = left
            .lines()
            .filter(|name| name.contains("mirrord") || name.contains("metalbear"))
            .filter(|name| *name != "secret/mirrord-cluster-west")
            .collect();
        ensure!(left.is_empty(), "left behind: {left:?}");
        Ok(())
    }
}

/// A member in `mirrordoperators/operator` of its Primary.
pub(super) fn member_of(object: &Value, name: &str) -> Value {
    let members = object["status"]["connected_clusters"].as_array();
    let mut members = members.into_iter().flatten();
    let found = members.find(|member| member["name"] == name);
    found.cloned().unwrap_or_default()
}
