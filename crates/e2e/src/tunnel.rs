//! A hub and its tunnel agents, installed with their charts, as administrators do it.

use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use lab::standind;
use serde_json::{Value, json};

use crate::namespace::TestNamespace;

const HUB_CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/standin-hub");
const AGENT_CHART: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../charts/standin-tunnel-agent"
);
const HUB: &str = "standin-hub";
const AGENT: &str = "standin-tunnel-agent";

/// A hub in its own namespace. Clusters and clients reach it at the ports of its node.
#[derive(Clone, Debug)]
pub struct Hub {
    pub namespace: TestNamespace,
    /// The address of the node.
    host: String,
}

/// A tunnel agent in its own namespace.
#[derive(Clone, Debug)]
pub struct TunnelAgent {
    pub namespace: TestNamespace,
    /// The name of its cluster at the hub.
    pub cluster: String,
}

/// A registration token, and what else a new agent needs.
#[derive(Clone, Debug)]
pub struct Onboarding {
    pub token: String,
    pub agent_url: String,
    /// Of a hub with its own certificate.
    pub pin: Option<String>,
}

impl Hub {
    /// Installs a hub, waits until it is ready, and then sets its addresses.
    pub fn install(namespace: TestNamespace, values: &Value) -> Result<Self> {
        let host = namespace.kubectl(&[
            "get",
            "nodes",
            "--output=jsonpath={.items[0].status.addresses[?(@.type==\"InternalIP\")].address}",
        ])?;
        let hub = Self {
            namespace,
            host: host.trim().to_owned(),
        };
        hub.helm("install", values)?;
        hub.upgrade(values)?;
        Ok(hub)
    }

    /// Changes values. The addresses are those of the node, unless the values have others.
    pub fn upgrade(&self, values: &Value) -> Result<()> {
        let mut all = json!({
            "agent": { "url": format!("wss://{}", self.address("agents")?) },
            "apiURL": format!("https://{}", self.address("clients")?),
        });
        merge(&mut all, values);
        self.helm("upgrade", &all)
    }

    fn helm(&self, verb: &str, values: &Value) -> Result<()> {
        let (repository, tag) = image()?;
        let mut all = json!({
            "hub": { "image": { "repository": repository, "tag": tag } },
            "service": { "type": "NodePort" },
        });
        merge(&mut all, values);
        helm(&self.namespace, &[verb, HUB, HUB_CHART], &all)
    }

    /// Host and port at which a port of the Service is reached from outside of the cluster.
    pub fn address(&self, port: &str) -> Result<String> {
        let path = format!("--output=jsonpath={{.spec.ports[?(@.name==\"{port}\")].nodePort}}");
        let port = self.namespace.kubectl(&["get", "service", HUB, &path])?;
        let port = port.trim();
        ensure!(!port.is_empty(), "the Service of the hub has no port");
        Ok(format!("{}:{port}", self.host))
    }

    /// The certificate authority of the hub, in PEM.
    pub fn authority(&self) -> Result<String> {
        let path = "--output=go-template={{index .data \"ca.crt\" | base64decode}}";
        self.namespace
            .kubectl(&["get", "secret", "standin-hub-ca", path])
    }

    /// The log of all replicas.
    pub fn log(&self) -> Result<String> {
        let name = format!("deployment/{HUB}");
        self.namespace
            .kubectl(&["logs", &name, "--all-pods", "--tail=-1"])
    }

    /// Removes the hub, and fails if anything but the certificate authority is left.
    pub fn uninstall(&self) -> Result<()> {
        uninstall(&self.namespace, HUB)?;
        let left = left_of(&self.namespace, HUB)?;
        let expected = ["secret/standin-hub-ca"];
        ensure!(left == expected, "left behind: {left:?}");
        self.namespace
            .kubectl(&["delete", "secret", "standin-hub-ca"])
            .map(drop)
    }
}

impl TunnelAgent {
    /// Installs an agent with a token in a Secret, and waits until it is connected.
    pub fn install(
        namespace: TestNamespace,
        cluster: &str,
        onboarding: &Onboarding,
        values: &Value,
    ) -> Result<Self> {
        let agent = Self {
            namespace,
            cluster: cluster.to_owned(),
        };
        agent.set_token(&onboarding.token)?;
        agent.helm("install", onboarding, values)?;
        Ok(agent)
    }

    /// Replaces the registration token.
    pub fn set_token(&self, token: &str) -> Result<()> {
        let secret = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": { "name": "token" },
            "stringData": { "token": token },
        });
        self.namespace.apply(&secret.to_string())
    }

    /// Installs the chart or changes values.
    pub fn helm(&self, verb: &str, onboarding: &Onboarding, values: &Value) -> Result<()> {
        let (repository, tag) = image()?;
        let mut all = json!({ "agent": {
            "cluster": self.cluster,
            "serverURL": onboarding.agent_url,
            "serverCAHash": onboarding.pin.as_deref().unwrap_or_default(),
            "registrationTokenSecretName": "token",
            "image": { "repository": repository, "tag": tag },
        } });
        merge(&mut all, values);
        helm(&self.namespace, &[verb, AGENT, AGENT_CHART], &all)
    }

    pub fn log(&self) -> Result<String> {
        let name = format!("deployment/{AGENT}");
        self.namespace
            .kubectl(&["logs", &name, "--all-pods", "--tail=-1"])
    }

    /// Removes the agent, and fails if anything is left.
    pub fn uninstall(&self) -> Result<()> {
        uninstall(&self.namespace, AGENT)?;
        let left = left_of(&self.namespace, AGENT)?;
        ensure!(left.is_empty(), "left behind: {left:?}");
        Ok(())
    }
}

fn image() -> Result<(&'static str, &'static str)> {
    standind::HUB_REFERENCE
        .rsplit_once(':')
        .context("the image has no tag")
}

/// Runs `helm` with values in a file: arguments are visible to every user of the machine.
fn helm(namespace: &TestNamespace, arguments: &[&str], values: &Value) -> Result<()> {
    ensure!(
        Path::new(HUB_CHART).exists(),
        "the chart is not at {HUB_CHART}"
    );
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(values.to_string().as_bytes())?;
    let mut command = namespace.cluster.client.helm();
    command
        .args(arguments)
        .args(["--namespace", &namespace.name])
        .args(["--wait", "--timeout=120s", "--values"])
        .arg(file.path());
    Ok(lab::output_of(&mut command).map(drop)?)
}

fn uninstall(namespace: &TestNamespace, release: &str) -> Result<()> {
    let mut command = namespace.cluster.client.helm();
    command
        .args(["uninstall", release, "--wait", "--timeout=120s"])
        .args(["--namespace", &namespace.name]);
    Ok(lab::output_of(&mut command).map(drop)?)
}

/// What is left of a release, in its namespace and in the cluster.
fn left_of(namespace: &TestNamespace, name: &str) -> Result<Vec<String>> {
    let kinds = "customresourcedefinitions,clusterroles,clusterrolebindings,deployments,services,secrets,configmaps,\
                 serviceaccounts,roles,rolebindings,poddisruptionbudgets,networkpolicies";
    let found = namespace.kubectl(&["get", kinds, "--output=name"])?;
    let is_left = |line: &&str| line.contains(name) || line.contains("standin.dev");
    Ok(found.lines().filter(is_left).map(str::to_owned).collect())
}

/// Adds values to values.
fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}
