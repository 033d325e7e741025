//! Agents that are pods on the nodes of targets, in the operator's namespace.

use anyhow::{Context as _, Result, ensure};
use e2e::{Story, until};
use serde_json::{Value, json};

use super::Operator;
use crate::stories::operator_sessions::{Shell, session_for};

pub(super) async fn agents_are_pods(story: &Story<'_>) -> Result<()> {
    let values = "operator.agent.mode=pod,operator.agent.resources.limits.memory=256Mi";
    let operator = Operator::install_with(story, 0, values).await?;
    let shop = story.stage_in(0).await?;
    shop.web().await?;
    let mut session = Shell::start(session_for(story, &shop, "deployment/web")?)?;
    let answer = session.ask("echo \"<$HOSTNAME>\"").await?;
    ensure!(answer.starts_with("<web-"), "{answer}");
    agents_have_exactly_their_rights(&operator)?;
    let ended = session.end()?;
    ensure!(ended.code == Some(0), "{ended}");
    // The operator may start nothing in the pods themselves.
    let account = format!(
        "--as=system:serviceaccount:{}:mirrord-operator",
        operator.stage.namespace
    );
    let may = shop.kubectl(&[
        "auth",
        "can-i",
        "patch",
        "pods/ephemeralcontainers",
        &account,
    ]);
    ensure!(may.is_err(), "{may:?}");
    until("the agents' pods to be gone", async || {
        let selector = "--selector=operator.metalbear.co/session";
        let left = operator
            .stage
            .kubectl(&["get", "pods,jobs", selector, "--output=name"])?;
        Ok(left.trim().is_empty().then_some(()))
    })
    .await?;
    operator.uninstall()
}

/// As the cluster has them, with whatever it adds to pods by itself.
fn agents_have_exactly_their_rights(operator: &Operator) -> Result<()> {
    let selector = "--selector=operator.metalbear.co/session";
    let pods = operator
        .stage
        .kubectl(&["get", "pods", selector, "--output=json"])?;
    let pods: Value = serde_json::from_str(&pods)?;
    let pods = pods["items"].as_array().context("no pods")?;
    ensure!(pods.len() == 2, "one for each pod of the target: {pods:?}");
    for pod in pods {
        let spec = &pod["spec"];
        ensure!(spec["automountServiceAccountToken"] == false, "{spec}");
        ensure!(spec["hostPID"] == true, "{spec}");
        for absent in ["volumes", "initContainers", "hostNetwork", "hostIPC"] {
            ensure!(spec[absent].is_null(), "{absent}: {spec}");
        }
        let containers = spec["containers"].as_array().context("no containers")?;
        let [container] = containers.as_slice() else {
            anyhow::bail!("not one container: {spec}");
        };
        let expected = json!({
            "runAsUser": 0,
            "runAsGroup": 0,
            "runAsNonRoot": false,
            "privileged": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {
                "drop": ["ALL"],
                "add": ["NET_ADMIN", "SYS_PTRACE", "SETUID", "SETGID", "SYS_ADMIN"],
            },
        });
        ensure!(container["securityContext"] == expected, "{container}");
        ensure!(container["volumeMounts"].is_null(), "{container}");
        let limits = &container["resources"]["limits"];
        ensure!(*limits == json!({"memory": "256Mi"}), "{container}");
    }
    Ok(())
}
