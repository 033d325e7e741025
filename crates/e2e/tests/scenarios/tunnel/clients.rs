//! Kubernetes clients, unchanged, through the tunnel.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use e2e::until;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use lab::standind;
use serde_json::Value;

use super::environment::{CLUSTER, Tunnel};
use crate::scenarios::support::programs;

/// A pod that prints a number ten times per second.
const COUNTER: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: counter}\nspec:\n  terminationGracePeriodSeconds: 0\n  \
    containers: [{name: counter, image: 'registry.lab/tools:1', command: [sh, -c, 'n=0; while :; do n=$((n+1)); echo $n; \
    sleep 0.1; done']}]\n";
/// How much is copied in both directions by `exec`.
const COPIED: usize = 8 * 1024 * 1024;

pub(super) async fn kubernetes_clients_work_unchanged(tunnel: &Tunnel<'_>) -> Result<()> {
    the_user_is_the_user(tunnel)?;
    manifests_are_applied(tunnel)?;
    commands_run_in_pods(tunnel)?;
    logs_are_followed(tunnel)?;
    ports_are_forwarded(tunnel)?;
    files_are_copied(tunnel)?;
    helm_installs_upgrades_and_rolls_back(tunnel)?;
    a_client_library_lists_and_watches(tunnel).await
}

fn the_user_is_the_user(tunnel: &Tunnel<'_>) -> Result<()> {
    let name = "--output=jsonpath={.status.userInfo.username}";
    let name = tunnel.kubectl(&["auth", "whoami", name])?;
    ensure!(name == tunnel.user(), "{name}");
    let may = tunnel.kubectl(&["auth", "can-i", "create", "pods"])?;
    ensure!(may.trim() == "yes", "{may}");
    let refused = tunnel.kubectl(&["get", "nodes"]).err();
    let refused = format!(
        "{:#}",
        refused.context("a user without rights reads nodes")?
    );
    let expected = format!("User \"{}\" cannot list resource \"nodes\"", tunnel.user());
    ensure!(refused.contains(&expected), "{refused}");
    Ok(())
}

fn manifests_are_applied(tunnel: &Tunnel<'_>) -> Result<()> {
    for manifests in [include_str!("../../../fixtures/web.yaml"), COUNTER] {
        let mut apply = tunnel.kubectl_command()?;
        let mut apply = apply
            .args(["apply", "--filename=-"])
            .stdin(Stdio::piped())
            .spawn()?;
        apply
            .stdin
            .take()
            .context("no input")?
            .write_all(manifests.as_bytes())?;
        ensure!(apply.wait()?.success(), "the manifests are not applied");
    }
    // It watches until all pods are ready.
    tunnel.kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"])?;
    tunnel.kubectl(&[
        "wait",
        "--for=condition=Ready",
        "pod/counter",
        "--timeout=120s",
    ])?;
    Ok(())
}

fn commands_run_in_pods(tunnel: &Tunnel<'_>) -> Result<()> {
    let sent: Vec<u8> = (0..COPIED).map(|index| (index * 31 % 251) as u8).collect();
    let mut exec = tunnel.kubectl_command()?;
    exec.args(["exec", "--stdin", "counter", "--", "cat"]);
    ensure!(
        exchange(&mut exec, &sent)? == sent,
        "the bytes have changed"
    );
    let failed = tunnel
        .kubectl(&["exec", "counter", "--", "sh", "-c", "exit 7"])
        .err();
    let failed = format!("{:#}", failed.context("the exit code is lost")?);
    ensure!(failed.contains("exit code 7"), "{failed}");
    let mut attach = tunnel.kubectl_command()?;
    attach.args([
        "run",
        "echo",
        "--image=registry.lab/tools:1",
        "--restart=Never",
        "--stdin",
        "--rm",
        "--quiet",
    ]);
    attach.args([
        "--command",
        "--",
        "sh",
        "-c",
        "read line; echo \"got $line\"",
    ]);
    let output = String::from_utf8(exchange(&mut attach, b"a line\n")?)?;
    ensure!(output.contains("got a line"), "{output}");
    Ok(())
}

/// Sends the input while it reads the output.
fn exchange(command: &mut Command, input: &[u8]) -> Result<Vec<u8>> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut stdin = child.stdin.take().context("no input")?;
    let mut stdout = child.stdout.take().context("no output")?;
    let mut output = Vec::new();
    std::thread::scope(|scope| -> Result<()> {
        let writing = scope.spawn(move || stdin.write_all(input));
        stdout.read_to_end(&mut output)?;
        writing
            .join()
            .map_err(|_| anyhow::anyhow!("writing panicked"))??;
        Ok(())
    })?;
    ensure!(child.wait()?.success(), "{command:?} failed");
    Ok(output)
}

/// A command that is killed when this is dropped.
pub(super) struct Running {
    child: Child,
    pub(super) lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Running {
    pub(super) fn start(command: &mut Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().context("no output")?;
        let lines = BufReader::new(stdout).lines();
        Ok(Self { child, lines })
    }

    pub(super) fn line(&mut self) -> Result<String> {
        Ok(self.lines.next().context("the output has ended")??)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn logs_are_followed(tunnel: &Tunnel<'_>) -> Result<()> {
    let mut logs = tunnel.kubectl_command()?;
    let mut logs = Running::start(logs.args(["logs", "--follow", "counter"]))?;
    for expected in 1..=30 {
        let line = logs.line()?;
        ensure!(line == expected.to_string(), "{line} instead of {expected}");
    }
    Ok(())
}

fn ports_are_forwarded(tunnel: &Tunnel<'_>) -> Result<()> {
    let mut forward = tunnel.kubectl_command()?;
    let mut forward = Running::start(forward.args(["port-forward", "service/web", ":80"]))?;
    let line = forward.line()?;
    let port = line
        .split(" -> ")
        .next()
        .and_then(|address| address.rsplit(':').next());
    let port: u16 = port
        .and_then(|port| port.parse().ok())
        .with_context(|| line.clone())?;
    for _ in 0..3 {
        let mut connection = TcpStream::connect(("127.0.0.1", port))?;
        connection.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        let mut response = String::new();
        connection.read_to_string(&mut response)?;
        ensure!(
            response.contains("200 OK") && response.contains("web-"),
            "{response}"
        );
    }
    Ok(())
}

fn files_are_copied(tunnel: &Tunnel<'_>) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (there, back) = (folder.path().join("there"), folder.path().join("back"));
    fs::write(&there, vec![b'x'; 300_000])?;
    tunnel.kubectl(&["cp", &there.display().to_string(), "counter:/tmp/copied"])?;
    tunnel.kubectl(&["cp", "counter:/tmp/copied", &back.display().to_string()])?;
    ensure!(fs::read(there)? == fs::read(back)?, "the file has changed");
    Ok(())
}

fn helm_installs_upgrades_and_rolls_back(tunnel: &Tunnel<'_>) -> Result<()> {
    let chart = tempfile::tempdir()?;
    fs::create_dir(chart.path().join("templates"))?;
    let metadata = "apiVersion: v2\nname: sample\nversion: 1.0.0\n";
    fs::write(chart.path().join("Chart.yaml"), metadata)?;
    let config_map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: sample}\ndata: {color: '{{ .Values.color }}'}\n";
    fs::write(chart.path().join("templates/map.yaml"), config_map)?;
    let path = chart.path().display().to_string();
    let color = || {
        tunnel.kubectl(&[
            "get",
            "configmap",
            "sample",
            "--output=jsonpath={.data.color}",
        ])
    };
    tunnel.user_helm(&["install", "sample", &path, "--set=color=red", "--wait"])?;
    ensure!(color()? == "red");
    tunnel.user_helm(&["upgrade", "sample", &path, "--set=color=blue", "--wait"])?;
    ensure!(color()? == "blue");
    tunnel.user_helm(&["rollback", "sample", "1", "--wait"])?;
    ensure!(color()? == "red");
    tunnel.user_helm(&["uninstall", "sample", "--wait"])?;
    Ok(())
}

/// The client library in Rust. kubectl and helm have that in Go.
async fn a_client_library_lists_and_watches(tunnel: &Tunnel<'_>) -> Result<()> {
    let mut kubeconfig = Kubeconfig::read_from(tunnel.kubeconfig())?;
    // The plugin runs in the environment of this process, which is not the user's.
    for user in &mut kubeconfig.auth_infos {
        let plugin = user.auth_info.as_mut().and_then(|info| info.exec.as_mut());
        let plugin = plugin.context("the kubeconfig has no credential plugin")?;
        plugin.command = Some(programs()?.standin().get_program().display().to_string());
        let home = HashMap::from([
            ("name".to_owned(), "HOME".to_owned()),
            ("value".to_owned(), tunnel.home().display().to_string()),
        ]);
        plugin.env.get_or_insert_default().push(home);
    }
    let options = KubeConfigOptions {
        context: Some(tunnel.context()?),
        ..KubeConfigOptions::default()
    };
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    config.proxy_url = None;
    let client = kube::Client::try_from(config)?;
    let pods: Api<Pod> = Api::namespaced(client, &tunnel.agent.name);
    let web = pods.list(&ListParams::default().labels("app=web")).await?;
    ensure!(web.items.len() == 2, "{} pods", web.items.len());
    kube::runtime::wait::await_condition(
        pods,
        "counter",
        kube::runtime::wait::conditions::is_pod_running(),
    )
    .await?;
    Ok(())
}

/// The rows are in the hub's API, with the user's name.
pub(super) async fn requests_are_audited(tunnel: &Tunnel<'_>) -> Result<()> {
    until("the requests in the audit log", async || {
        let rows = audit(tunnel)?;
        let has = |verb: &str, resource: &str, subresource: Option<&str>, outcome: &str| {
            rows.iter().any(|row| {
                row["verb"] == verb
                    && row["resource"] == resource
                    && row["subresource"].as_str() == subresource
                    && row["outcome"] == outcome
            })
        };
        let found = has("list", "nodes", None, "denied")
            && has("create", "pods", Some("exec"), "success")
                | has("get", "pods", Some("exec"), "success")
            && has("get", "pods", Some("log"), "success")
            && has("create", "secrets", None, "success");
        Ok(found.then_some(()))
    })
    .await?;
    for row in audit(tunnel)? {
        let is_complete = row["actor"]["sub"] == tunnel.user()
            && row["cluster"] == CLUSTER
            && row["clusterBackend"] == "agent";
        ensure!(is_complete, "{row}");
    }
    Ok(())
}

fn audit(tunnel: &Tunnel<'_>) -> Result<Vec<Value>> {
    let text = tunnel.get(&format!("/api/audit?cluster={CLUSTER}&limit=1000"))?;
    let list: Value = serde_json::from_str(&text)?;
    Ok(list["rows"].as_array().cloned().unwrap_or_default())
}

/// `standin exec` without an operator, with the user's own rights.
pub(super) async fn a_session_runs_through_the_tunnel(tunnel: &Tunnel<'_>) -> Result<()> {
    let context = tunnel.context()?;
    let output = lab::output_of(
        tunnel
            .standin_command()?
            .env("STANDIN_AGENT_IMAGE", standind::REFERENCE)
            .args([
                "exec",
                "--context",
                &context,
                "--namespace",
                &tunnel.agent.name,
            ])
            .args(["--target", "deployment/web", "--", "sh", "-c"])
            .arg("hostname; grep -c listening /web/web.py; getent hosts web"),
    )?;
    let is_there = output.contains("web-") && output.contains("\n1\n") && output.contains(" web");
    ensure!(is_there, "{output}");
    Ok(())
}
