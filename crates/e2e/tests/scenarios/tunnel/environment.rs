//! The clusters and programs of the scenarios: a cluster with a hub, and one with an agent.

use std::fs;
use std::io::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use e2e::{OwnClusters, Scenario, TestNamespace};
use lab::{HOST, Progress, standind};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::scenarios::support::{agent_image, hub_image, programs};

const HUB_CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/standin-hub");
const AGENT_CHART: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../charts/standin-tunnel-agent"
);
/// The cluster that dials out, at the hub and in the lab.
pub(super) const CLUSTER: &str = "far";
const HUB: &str = "hub";
/// The ports of the hub's node for agents and for Kubernetes clients.
const AGENTS_PORT: u16 = 30443;
const CLIENTS_PORT: u16 = 30643;
/// A user of the hub's cluster.
const USER: &str = "anna";

pub(super) struct Tunnel<'scenario> {
    pub(super) clusters: OwnClusters,
    pub(super) hub: TestNamespace,
    pub(super) agent: TestNamespace,
    /// The home directory of the user.
    home: TempDir,
    /// The hub's host, as agents and users reach it.
    address: IpAddr,
    _scenario: &'scenario Scenario<'scenario>,
}

impl<'scenario> Tunnel<'scenario> {
    /// Starts the clusters and installs the hub.
    pub(super) async fn install(scenario: &'scenario Scenario<'scenario>) -> Result<Self> {
        let clusters = OwnClusters::start(&[HUB, CLUSTER], &Progress::to_stderr()).await?;
        for image in [agent_image()?, hub_image()?] {
            clusters.lab().load_image(&image)?;
        }
        let hub = scenario.namespace_on(clusters.get(HUB)?).await?;
        let agent = scenario.namespace_on(clusters.get(CLUSTER)?).await?;
        let address = host_of(&clusters.lab().cluster(HUB)?.api_server())?;
        let tunnel = Self {
            clusters,
            hub,
            agent,
            home: tempfile::tempdir()?,
            address,
            _scenario: scenario,
        };
        tunnel.helm("install", &tunnel.addresses())?;
        tunnel.create_user()?;
        Ok(tunnel)
    }

    fn addresses(&self) -> Value {
        json!({
            "agent": {"url": format!("wss://{}:{}", self.address, AGENTS_PORT)},
            "apiURL": self.url(),
        })
    }

    /// The address for Kubernetes clients.
    pub(super) fn url(&self) -> String {
        format!("https://{}:{}", self.address, CLIENTS_PORT)
    }

    fn helm(&self, verb: &str, values: &Value) -> Result<()> {
        let (repository, tag) = standind::HUB_REFERENCE.rsplit_once(':').context("no tag")?;
        let mut values = values.clone();
        values["service"] = json!({
            "type": "NodePort", "nodePorts": {"agents": AGENTS_PORT, "clients": CLIENTS_PORT},
        });
        values["hub"] = json!({
            "replicas": 1, "image": {"repository": repository, "tag": tag}, "log": {"level": "info", "json": false},
        });
        let mut file = tempfile::NamedTempFile::new()?;
        file.write_all(values.to_string().as_bytes())?;
        let mut helm = self.hub.cluster.client.helm();
        helm.args([
            "--namespace",
            &self.hub.name,
            verb,
            "standin-hub",
            HUB_CHART,
        ])
        .args(["--wait", "--timeout=180s", "--values"])
        .arg(file.path());
        lab::output_of(&mut helm).map(drop)?;
        Ok(())
    }

    /// A user of the hub, who may also administer it.
    fn create_user(&self) -> Result<()> {
        let account = format!("{}:{USER}", self.hub.name);
        self.hub.kubectl(&["create", "serviceaccount", USER])?;
        for role in ["user", "administrator", "auditor"] {
            let name = format!("{USER}-{role}");
            let role = format!("--clusterrole=standin-hub-{role}");
            let account = format!("--serviceaccount={account}");
            self.hub
                .kubectl(&["create", "rolebinding", &name, &role, &account])?;
        }
        Ok(())
    }

    /// The user's name in every cluster.
    pub(super) fn user(&self) -> String {
        format!("system:serviceaccount:{}:{USER}", self.hub.name)
    }

    /// `standin` of the user. Its output.
    pub(super) fn standin(&self, arguments: &[&str]) -> Result<String> {
        Ok(lab::output_of(self.standin_command()?.args(arguments))?)
    }

    pub(super) fn standin_command(&self) -> Result<Command> {
        let mut standin = programs()?.standin();
        self.as_user(&mut standin)?;
        standin.stdin(Stdio::null());
        Ok(standin)
    }

    /// The environment of the user, in which `standin` is installed.
    fn as_user(&self, command: &mut Command) -> Result<()> {
        let standin = programs()?.standin();
        let folder = Path::new(standin.get_program()).parent();
        let folder = folder.context("no folder")?.display().to_string();
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .env("HOME", self.home.path())
            .env("PATH", format!("{folder}:{path}"))
            .env("KUBECONFIG", self.kubeconfig());
        // The lab's addresses exist only on this machine, where no proxy can reach them.
        for variable in ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"] {
            command.env_remove(variable);
        }
        Ok(())
    }

    /// The home directory of the user.
    pub(super) fn home(&self) -> &Path {
        self.home.path()
    }

    pub(super) fn kubeconfig(&self) -> PathBuf {
        self.home.path().join("kubeconfig")
    }

    /// The user logs in with a token of the hub's cluster, and trusts the authority that the administrator has.
    pub(super) fn log_in(&self) -> Result<()> {
        let token = self
            .hub
            .kubectl(&["create", "token", USER, "--duration=1h"])?;
        let token_file = self.home.path().join("token");
        fs::write(&token_file, token)?;
        let authority = r#"--output=go-template={{index .data "ca.crt" | base64decode}}"#;
        let authority = self
            .hub
            .kubectl(&["get", "secret", "standin-hub-ca", authority])?;
        let authority_file = self.home.path().join("hub-ca.crt");
        fs::write(&authority_file, authority)?;
        let (token_file, authority_file) = (
            token_file.display().to_string(),
            authority_file.display().to_string(),
        );
        let flags = ["--token-file", &token_file, "--ca-file", &authority_file];
        let url = self.url();
        self.standin(&[&["cluster", "login", &url], &flags[..]].concat())?;
        Ok(())
    }

    /// The hub's response to a request with the user's token.
    pub(super) fn get(&self, path: &str) -> Result<String> {
        let token = fs::read_to_string(self.home.path().join("token"))?;
        // In a file, because other users can read the arguments of programs.
        let headers = self.home.path().join("headers");
        fs::write(
            &headers,
            format!("Authorization: Bearer {}\n", token.trim()),
        )?;
        let mut curl = Command::new("curl");
        curl.args([
            "--silent",
            "--show-error",
            "--fail-with-body",
            "--noproxy",
            "*",
        ])
        .arg("--cacert")
        .arg(self.home.path().join("hub-ca.crt"))
        .arg("--header")
        .arg(format!("@{}", headers.display()))
        .arg(format!("{}{path}", self.url()));
        Ok(lab::output_of(&mut curl)?)
    }

    /// Runs what `standin cluster add` prints, in the cluster that dials out.
    pub(super) fn onboard(&self) -> Result<()> {
        let namespace = &self.agent.name;
        let added = self.standin(&[
            "cluster",
            "add",
            CLUSTER,
            "--agent-namespace",
            namespace,
            "--output",
            "json",
        ])?;
        let added: Value = serde_json::from_str(&added)?;
        let values = added["values"]
            .as_object()
            .with_context(|| format!("no values: {added}"))?;
        let pin = values.get("agent.serverCAHash").and_then(Value::as_str);
        ensure!(
            pin.is_some_and(|pin| pin.starts_with("sha256:")),
            "no pin: {added}"
        );
        let token = self.standin(&["cluster", "token", CLUSTER])?;
        let mut file = tempfile::NamedTempFile::new()?;
        file.write_all(token.trim().as_bytes())?;
        let from_file = format!("--from-file=token={}", file.path().display());
        self.agent.kubectl(&[
            "create",
            "secret",
            "generic",
            "standin-tunnel-agent-token",
            &from_file,
        ])?;
        let (repository, tag) = standind::HUB_REFERENCE.rsplit_once(':').context("no tag")?;
        // Groups of service accounts are groups of the system, which have to be named.
        let of_namespace = format!("system:serviceaccounts:{}", self.hub.name);
        let groups = format!("system:serviceaccounts,{of_namespace}");
        let mut helm = self.agent.cluster.client.helm();
        helm.args([
            "--namespace",
            namespace,
            "install",
            "standin-tunnel-agent",
            AGENT_CHART,
        ])
        .args(["--wait", "--timeout=180s"])
        .args(["--set", &format!("agent.image.repository={repository}")])
        .args(["--set-string", &format!("agent.image.tag={tag}")])
        .args(["--set", &format!("agent.allow.users={{{}}}", self.user())])
        .args(["--set", &format!("agent.allow.groups={{{groups}}}")]);
        for (key, value) in values {
            let value = value.as_str().context("no text")?;
            helm.args(["--set-string", &format!("{key}={value}")]);
        }
        lab::output_of(&mut helm).map(drop)?;
        // What the user may do in this cluster.
        let user = format!("--user={}", self.user());
        let admin = [
            "create",
            "rolebinding",
            "anna",
            "--clusterrole=cluster-admin",
            &user,
        ];
        self.agent.kubectl(&admin)?;
        Ok(())
    }

    /// From now on nothing can dial the cluster: neither the hub's cluster nor this machine.
    pub(super) fn isolate(&self) -> Result<()> {
        for from in [HUB, HOST] {
            self.clusters.lab().set_dialling(from, CLUSTER, false)?;
        }
        Ok(())
    }

    /// The opposite of [`isolate`](Self::isolate).
    pub(super) fn reconnect(&self) -> Result<()> {
        for from in [HUB, HOST] {
            self.clusters.lab().set_dialling(from, CLUSTER, true)?;
        }
        Ok(())
    }

    pub(super) fn write_kubeconfig(&self) -> Result<()> {
        let file = self.kubeconfig().display().to_string();
        self.standin(&["cluster", "kubeconfig", "--output", &file])?;
        Ok(())
    }

    /// The name of the context of the cluster.
    pub(super) fn context(&self) -> Result<String> {
        let names = self.kubectl_without_context(&["config", "get-contexts", "--output=name"])?;
        let name = names
            .lines()
            .find(|name| name.ends_with(&format!("/{CLUSTER}")));
        Ok(name
            .with_context(|| format!("no context: {names}"))?
            .to_owned())
    }

    fn kubectl_without_context(&self, arguments: &[&str]) -> Result<String> {
        let mut kubectl = self.program("kubectl")?;
        Ok(lab::output_of(kubectl.args(arguments))?)
    }

    /// A program of the lab for the user: with the user's kubeconfig and credential plugin.
    fn program(&self, name: &str) -> Result<Command> {
        let client = &self.hub.cluster.client;
        let command = match name {
            "helm" => client.helm(),
            _ => client.kubectl(),
        };
        let mut command = Command::new(command.get_program());
        self.as_user(&mut command)?;
        Ok(command)
    }

    /// `kubectl` of the user, through the tunnel.
    pub(super) fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        Ok(lab::output_of(self.kubectl_command()?.args(arguments))?)
    }

    pub(super) fn kubectl_command(&self) -> Result<Command> {
        let mut kubectl = self.program("kubectl")?;
        let context = self.context()?;
        kubectl.args(["--context", &context, "--namespace", &self.agent.name]);
        Ok(kubectl)
    }

    /// `helm` of the user, through the tunnel.
    pub(super) fn user_helm(&self, arguments: &[&str]) -> Result<String> {
        let mut helm = self.program("helm")?;
        let context = self.context()?;
        helm.args(["--kube-context", &context, "--namespace", &self.agent.name]);
        Ok(lab::output_of(helm.args(arguments))?)
    }

    /// The last lines of the logs of hub and agent.
    pub(super) fn logs(&self) -> String {
        let _ = self.reconnect();
        let logs = |namespace: &TestNamespace, deployment: &str| {
            let deployment = format!("deployment/{deployment}");
            let logs = namespace.kubectl(&["logs", &deployment, "--all-pods", "--tail=20"]);
            let logs = logs.unwrap_or_else(|error| format!("{error:#}"));
            format!("--- {deployment}\n{logs}\n")
        };
        logs(&self.hub, "standin-hub") + &logs(&self.agent, "standin-tunnel-agent")
    }

    /// Removes both charts. Only the authority of the hub stays.
    pub(super) fn uninstall(&self) -> Result<()> {
        self.reconnect()?;
        for (namespace, release) in [
            (&self.agent, "standin-tunnel-agent"),
            (&self.hub, "standin-hub"),
        ] {
            let mut helm = namespace.cluster.client.helm();
            helm.args(["--namespace", &namespace.name, "uninstall", release])
                .args(["--wait", "--timeout=120s"]);
            lab::output_of(&mut helm)?;
            let kinds = "customresourcedefinitions,clusterroles,clusterrolebindings";
            let own = "secrets,configmaps,serviceaccounts,roles,rolebindings,services,deployments";
            let left = namespace.kubectl(&["get", kinds, "--output=name"])?
                + &namespace.kubectl(&["get", own, "--output=name"])?;
            let created = ["secret/standin-hub-ca", "secret/standin-tunnel-agent-token"];
            let left: Vec<&str> = left
                .lines()
                .filter(|name| name.contains("standin"))
                .filter(|name| !created.contains(name))
                .collect();
            ensure!(left.is_empty(), "left behind: {left:?}");
        }
        Ok(())
    }
}

/// The host of `https://HOST:PORT`.
fn host_of(url: &str) -> Result<IpAddr> {
    let host = url
        .strip_prefix("https://")
        .and_then(|url| url.rsplit_once(':'));
    let (host, _) = host.with_context(|| format!("no host: {url}"))?;
    Ok(host.parse()?)
}

impl Drop for Tunnel<'_> {
    fn drop(&mut self) {
        // So that the diagnostics of a failure can reach the cluster.
        let _ = self.reconnect();
    }
}
