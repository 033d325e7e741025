//! What an agent may do, who may use it, and what a user is told who may not start one.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use e2e::machine::Ended;
use e2e::{Stage, Story};
use k8s_openapi::api::core::v1::SecurityContext;

use super::super::surroundings::exec_for;
use super::seeing::restrict;
use super::{Waiting, agent_pods, ephemeral_agents, start_checkout, succeed};

pub(crate) async fn agents_have_few_rights_and_one_client(story: &Story<'_>) -> Result<()> {
    let stage = story.stage().await?;
    start_checkout(&stage)?;
    let mut session = Waiting::start(&mut exec_for(story, &stage, "deployment/checkout")?)?;
    session.ask("echo $GREETING")?;
    let agents = ephemeral_agents(&stage).await?;
    let [(pod, agent, true)] = agents.as_slice() else {
        anyhow::bail!("one agent was to run: {agents:?}");
    };
    let context = agent.security_context.clone().unwrap_or_default();
    let few = ["NET_ADMIN", "SYS_PTRACE", "SETUID", "SETGID"];
    check_rights(&context, &few)?;
    ensure!(agent.env.is_none(), "the agent has variables");
    let arguments = agent.args.clone().unwrap_or_default();
    let port = arguments
        .iter()
        .find_map(|argument| argument.strip_prefix("--listen=[::]:"))
        .context("the agent listens elsewhere")?;
    let pod_name = pod.metadata.name.clone().unwrap_or_default();
    goes_over_the_pods_network(&stage, &pod_name, port.parse()?).await?;
    // Whoever is in the pods' network reaches the agent, knows everything that is in the pod's manifest, and is sent away.
    let status = pod.status.clone().unwrap_or_default();
    let address = status.pod_ip.context("no address")?;
    let address = format!("https://{address}:{port}/");
    let stranger = [
        "curl",
        "--silent",
        "--show-error",
        "--insecure",
        "--max-time",
        "5",
        &address,
    ];
    stage.client_pod("stranger").await?;
    for from in [pod_name.as_str(), "stranger"] {
        let sent_away = stage.exec(from, &stranger, None).await?;
        ensure!(
            sent_away.code != 0 && sent_away.stderr.contains("certificate required"),
            "{from}: {sent_away:?}"
        );
    }
    ensure!(session.ask("echo $GREETING")? == "from the pod");
    ensure!(session.end()?.code == Some(0));

    let mut on_the_node = exec_for(story, &stage, "deployment/checkout")?;
    on_the_node.arg("--no-ephemeral-container");
    let mut session = Waiting::start(&mut on_the_node)?;
    session.ask("echo $GREETING")?;
    let agents = agent_pods(&stage).await?;
    let [agent] = agents.as_slice() else {
        anyhow::bail!("one agent was to run: {agents:?}");
    };
    let agent = stage.pods().get(agent).await?.spec.unwrap_or_default();
    let more = ["NET_ADMIN", "SYS_PTRACE", "SETUID", "SETGID", "SYS_ADMIN"];
    let container = agent.containers.first().context("no container")?;
    check_rights(
        &container.security_context.clone().unwrap_or_default(),
        &more,
    )?;
    ensure!(agent.host_network.is_none() && agent.host_pid == Some(true));
    ensure!(agent.volumes.unwrap_or_default().is_empty(), "volumes");
    ensure!(session.end()?.code == Some(0));
    Ok(())
}

/// The connection to an agent comes from the API server, and not from the pod's own localhost as a port-forward does.
async fn goes_over_the_pods_network(stage: &Stage, pod: &str, port: u16) -> Result<()> {
    let tables = ["cat", "/proc/net/tcp", "/proc/net/tcp6"];
    let connections = stage.run(pod, &tables).await?;
    let ours = connections.lines().filter_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, remote, state) = (fields.next()?, fields.next()?, fields.next()?);
        let is_open = local.ends_with(&format!(":{port:04X}")) && state == "01";
        is_open.then_some(remote)
    });
    let ours: Vec<&str> = ours.collect();
    // 127.0.0.1 alone and mapped, and ::1.
    let is_localhost = |remote: &&str| {
        remote.contains("0100007F:") || remote.starts_with("00000000000000000000000001000000:")
    };
    ensure!(
        !ours.is_empty() && !ours.iter().all(is_localhost),
        "{connections}"
    );
    Ok(())
}

fn check_rights(context: &SecurityContext, capabilities: &[&str]) -> Result<()> {
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

/// What is said to be missing is granted, and then the session works.
pub(crate) async fn missing_rights_are_named(story: &Story<'_>) -> Result<()> {
    let stage = story.stage().await?;
    start_checkout(&stage)?;
    let developer = Developer::new(&stage)?;
    let session = |target: &str| -> Result<Ended> {
        let mut session = exec_for(story, &stage, target)?;
        session
            .arg("--kubeconfig")
            .arg(&developer.kubeconfig)
            .args(["--", "printenv", "GREETING"]);
        Ended::of(&mut session)
    };
    let refused = session("deployment/checkout")?;
    ensure!(refused.code == Some(125), "{refused}");
    developer.grant(&stage, &refused, "first")?;
    let ended = session("deployment/checkout")?;
    ensure!(ended.code == Some(0), "{ended}");
    ensure!(ended.stdout.trim() == "from the pod", "{ended}");
    // Another kind of target needs one more.
    let refused = session("service/checkout")?;
    ensure!(
        refused.stderr.contains("resources: [services]") && !refused.stderr.contains("[pods]"),
        "{refused}"
    );
    Ok(())
}

/// Somebody with an account and without rights.
struct Developer {
    _folder: tempfile::TempDir,
    kubeconfig: std::path::PathBuf,
}

impl Developer {
    fn new(stage: &Stage) -> Result<Self> {
        stage.kubectl(&["create", "serviceaccount", "developer"])?;
        let token = stage.kubectl(&["create", "token", "developer"])?;
        let context = stage.cluster.client.name();
        let view = [
            "config",
            "view",
            "--raw",
            "--minify",
            "--flatten",
            "--output=json",
        ];
        let view = stage.kubectl(&[view.as_slice(), &["--context", context]].concat())?;
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

    /// Grants exactly what a refusal asks for.
    fn grant(&self, stage: &Stage, refusal: &Ended, name: &str) -> Result<()> {
        let role = refusal
            .stderr
            .find("apiVersion: rbac.authorization.k8s.io/v1")
            .map(|start| &refusal.stderr[start..])
            .with_context(|| format!("there is no rule in {refusal}"))?;
        stage.apply(role)?;
        let account = format!("--serviceaccount={}:developer", stage.namespace);
        stage
            .kubectl(&["create", "rolebinding", name, "--role=standin", &account])
            .map(drop)
    }
}

pub(crate) async fn pod_security_is_explained(story: &Story<'_>) -> Result<()> {
    let (stage, elsewhere) = (story.stage().await?, story.stage().await?);
    start_checkout(&stage)?;
    restrict(&stage)?;
    let mut session = exec_for(story, &stage, "deployment/checkout")?;
    let refused = Ended::of(session.args(["--", "true"]))?;
    ensure!(refused.code == Some(125), "{refused}");
    for expected in [
        "`restricted`",
        "securityContext.capabilities.add",
        "hostPID",
        "agent.namespace",
    ] {
        ensure!(refused.stderr.contains(expected), "{expected}: {refused}");
    }
    let jobs = stage.kubectl(&["get", "jobs", "--output=name"])?;
    ensure!(jobs.is_empty(), "left behind: {jobs}");
    // The way out that it names.
    let mut session = exec_for(story, &stage, "deployment/checkout")?;
    session
        .env("STANDIN_AGENT_NAMESPACE", &elsewhere.namespace)
        .args(["--", "printenv", "GREETING"]);
    let ended = succeed(&mut session)?;
    ensure!(ended.stdout.trim() == "from the pod", "{ended}");
    Ok(())
}
