//! Privileges of agents, access to them, and errors for users who may not start one.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use e2e::machine::ProgramOutput;
use e2e::{Scenario, TestNamespace};
use k8s_openapi::api::core::v1::SecurityContext;

use super::super::support::exec_for;
use super::discovery::restrict;
use super::{ShellSession, agent_pods, ephemeral_agents, start_checkout, succeed};

pub(crate) async fn agents_have_few_privileges_and_one_client(
    scenario: &Scenario<'_>,
) -> Result<()> {
    let namespace = scenario.namespace().await?;
    start_checkout(&namespace)?;
    let mut session =
        ShellSession::start(&mut exec_for(scenario, &namespace, "deployment/checkout")?)?;
    session.run("echo $GREETING")?;
    let agents = ephemeral_agents(&namespace).await?;
    let [(pod, agent, true)] = agents.as_slice() else {
        anyhow::bail!("one agent should run: {agents:?}");
    };
    let context = agent.security_context.clone().unwrap_or_default();
    let few = ["NET_ADMIN", "SYS_PTRACE", "SETUID", "SETGID"];
    check_privileges(&context, &few)?;
    ensure!(agent.env.is_none(), "the agent has variables");
    let arguments = agent.args.clone().unwrap_or_default();
    let port = arguments
        .iter()
        .find_map(|argument| argument.strip_prefix("--listen=[::]:"))
        .context("the agent has no --listen argument with a port")?;
    let pod_name = pod.metadata.name.clone().unwrap_or_default();
    check_agent_uses_the_pod_network(&namespace, &pod_name, port.parse()?).await?;
    // A client in the pod network can reach the agent and may know the pod's manifest, but is rejected.
    let status = pod.status.clone().unwrap_or_default();
    let address = status.pod_ip.context("no address")?;
    let address = format!("https://{address}:{port}/");
    let unauthenticated = [
        "curl",
        "--silent",
        "--show-error",
        "--insecure",
        "--max-time",
        "5",
        &address,
    ];
    namespace.client_pod("outsider").await?;
    for from in [pod_name.as_str(), "outsider"] {
        let rejected = namespace.exec(from, &unauthenticated, None).await?;
        ensure!(
            rejected.code != 0 && rejected.stderr.contains("certificate required"),
            "{from}: {rejected:?}"
        );
    }
    ensure!(session.run("echo $GREETING")? == "from the pod");
    ensure!(session.end()?.code == Some(0));

    let mut in_own_pod = exec_for(scenario, &namespace, "deployment/checkout")?;
    in_own_pod.arg("--no-ephemeral-container");
    let mut session = ShellSession::start(&mut in_own_pod)?;
    session.run("echo $GREETING")?;
    let agents = agent_pods(&namespace).await?;
    let [agent] = agents.as_slice() else {
        anyhow::bail!("one agent should run: {agents:?}");
    };
    let agent = namespace.pods().get(agent).await?.spec.unwrap_or_default();
    let more = ["NET_ADMIN", "SYS_PTRACE", "SETUID", "SETGID", "SYS_ADMIN"];
    let container = agent.containers.first().context("no container")?;
    check_privileges(
        &container.security_context.clone().unwrap_or_default(),
        &more,
    )?;
    ensure!(agent.host_network.is_none() && agent.host_pid == Some(true));
    ensure!(agent.volumes.unwrap_or_default().is_empty(), "volumes");
    ensure!(session.end()?.code == Some(0));
    Ok(())
}

/// Checks that connections to the agent come from the API server, and not from the pod's localhost, as with port-forward.
async fn check_agent_uses_the_pod_network(
    namespace: &TestNamespace,
    pod: &str,
    port: u16,
) -> Result<()> {
    let tables = ["cat", "/proc/net/tcp", "/proc/net/tcp6"];
    let connections = namespace.run(pod, &tables).await?;
    let ours = connections.lines().filter_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, remote, state) = (fields.next()?, fields.next()?, fields.next()?);
        let is_open = local.ends_with(&format!(":{port:04X}")) && state == "01";
        is_open.then_some(remote)
    });
    let ours: Vec<&str> = ours.collect();
    // 127.0.0.1, its IPv4-mapped form, and ::1.
    let is_localhost = |remote: &&str| {
        remote.contains("0100007F:") || remote.starts_with("00000000000000000000000001000000:")
    };
    ensure!(
        !ours.is_empty() && !ours.iter().all(is_localhost),
        "{connections}"
    );
    Ok(())
}

fn check_privileges(context: &SecurityContext, capabilities: &[&str]) -> Result<()> {
    let own = context.capabilities.clone().unwrap_or_default();
    ensure!(own.drop == Some(vec!["ALL".to_owned()]), "{own:?}");
    ensure!(own.add.unwrap_or_default() == capabilities, "{context:?}");
    ensure!(context.privileged != Some(true), "{context:?}");
    ensure!(
        context.read_only_root_filesystem == Some(true),
        "{context:?}"
    );
    Ok(())
}

/// After the permissions that the message lists are granted, the session works.
pub(crate) async fn missing_permissions_are_reported(scenario: &Scenario<'_>) -> Result<()> {
    let namespace = scenario.namespace().await?;
    start_checkout(&namespace)?;
    let developer = Developer::new(&namespace)?;
    let session = |target: &str| -> Result<ProgramOutput> {
        let mut session = exec_for(scenario, &namespace, target)?;
        session
            .arg("--kubeconfig")
            .arg(&developer.kubeconfig)
            .args(["--", "printenv", "GREETING"]);
        ProgramOutput::of(&mut session)
    };
    let refused = session("deployment/checkout")?;
    ensure!(refused.code == Some(125), "{refused}");
    developer.grant(&namespace, &refused, "first")?;
    let output = session("deployment/checkout")?;
    ensure!(output.code == Some(0), "{output}");
    ensure!(output.stdout.trim() == "from the pod", "{output}");
    // Another kind of target needs one more permission.
    let refused = session("service/checkout")?;
    ensure!(
        refused.stderr.contains("resources: [services]") && !refused.stderr.contains("[pods]"),
        "{refused}"
    );
    Ok(())
}

/// A user with an account and without permissions.
struct Developer {
    _folder: tempfile::TempDir,
    kubeconfig: std::path::PathBuf,
}

impl Developer {
    fn new(namespace: &TestNamespace) -> Result<Self> {
        namespace.kubectl(&["create", "serviceaccount", "developer"])?;
        let token = namespace.kubectl(&["create", "token", "developer"])?;
        let context = namespace.cluster.client.name();
        let view = [
            "config",
            "view",
            "--raw",
            "--minify",
            "--flatten",
            "--output=json",
        ];
        let view = namespace.kubectl(&[view.as_slice(), &["--context", context]].concat())?;
        let mut config: serde_json::Value = serde_json::from_str(&view)?;
        config["users"][0]["user"] = serde_json::json!({ "token": token.trim() });
        let folder = tempfile::tempdir()?;
        let kubeconfig = folder.path().join("kubeconfig");
        fs::write(&kubeconfig, config.to_string())?;
        Ok(Developer {
            _folder: folder,
            kubeconfig,
        })
    }

    /// Grants exactly the permissions that the error message lists.
    fn grant(&self, namespace: &TestNamespace, refusal: &ProgramOutput, name: &str) -> Result<()> {
        let role = refusal
            .stderr
            .find("apiVersion: rbac.authorization.k8s.io/v1")
            .map(|start| &refusal.stderr[start..])
            .with_context(|| format!("there is no rule in {refusal}"))?;
        namespace.apply(role)?;
        let account = format!("--serviceaccount={}:developer", namespace.name);
        namespace
            .kubectl(&["create", "rolebinding", name, "--role=standin", &account])
            .map(drop)
    }
}

pub(crate) async fn pod_security_is_explained(scenario: &Scenario<'_>) -> Result<()> {
    let (namespace, elsewhere) = (scenario.namespace().await?, scenario.namespace().await?);
    start_checkout(&namespace)?;
    restrict(&namespace)?;
    let mut session = exec_for(scenario, &namespace, "deployment/checkout")?;
    let refused = ProgramOutput::of(session.args(["--", "true"]))?;
    ensure!(refused.code == Some(125), "{refused}");
    for expected in [
        "`restricted`",
        "securityContext.capabilities.add",
        "hostPID",
        "agent.namespace",
    ] {
        ensure!(refused.stderr.contains(expected), "{expected}: {refused}");
    }
    let jobs = namespace.kubectl(&["get", "jobs", "--output=name"])?;
    ensure!(jobs.is_empty(), "left behind: {jobs}");
    // The remedy that the message suggests.
    let mut session = exec_for(scenario, &namespace, "deployment/checkout")?;
    session
        .env("STANDIN_AGENT_NAMESPACE", &elsewhere.name)
        .args(["--", "printenv", "GREETING"]);
    let output = succeed(&mut session)?;
    ensure!(output.stdout.trim() == "from the pod", "{output}");
    Ok(())
}
