//! Agents in their own pods on the targets' nodes, in the operator's namespace.

use anyhow::{Context as _, Result, ensure};
use e2e::{Scenario, until};
use serde_json::{Value, json};

use super::Operator;
use crate::scenarios::operator_sessions::{Shell, session_for};

pub(super) async fn agents_are_pods(scenario: &Scenario<'_>) -> Result<()> {
    let values = "operator.agent.mode=pod,operator.agent.resources.limits.memory=256Mi";
    let operator = Operator::install_with(scenario, 0, values).await?;
    let shop = scenario.namespace_in(0).await?;
    shop.web().await?;
    let mut session = Shell::start(session_for(scenario, &shop, "deployment/web")?)?;
    let response = session.run("echo \"<$HOSTNAME>\"").await?;
    ensure!(response.starts_with("<web-"), "{response}");
    agents_have_exactly_their_privileges(&operator)?;
    let output = session.end()?;
    ensure!(output.code == Some(0), "{output}");
    // The operator may not start anything in the target's pods.
    let account = format!(
        "--as=system:serviceaccount:{}:mirrord-operator",
        operator.namespace.name
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
            .namespace
            .kubectl(&["get", "pods,jobs", selector, "--output=name"])?;
        Ok(left.trim().is_empty().then_some(()))
    })
    .await?;
    operator.uninstall()
}

/// Checks the pods as the cluster stores them, including defaults that the cluster adds.
fn agents_have_exactly_their_privileges(operator: &Operator) -> Result<()> {
    let selector = "--selector=operator.metalbear.co/session";
    let pods = operator
        .namespace
        .kubectl(&["get", "pods", selector, "--output=json"])?;
    let pods: Value = serde_json::from_str(&pods)?;
    let pods = pods["items"].as_array().context("no pods")?;
    ensure!(
        pods.len() == 2,
        "expected one agent for each pod of the target: {pods:?}"
    );
    for pod in pods {
        let spec = &pod["spec"];
        ensure!(spec["automountServiceAccountToken"] == false, "{spec}");
        ensure!(spec["hostPID"] == true, "{spec}");
        for absent in ["volumes", "initContainers", "hostNetwork", "hostIPC"] {
            ensure!(spec[absent].is_null(), "{absent}: {spec}");
        }
        let containers = spec["containers"].as_array().context("no containers")?;
        let [container] = containers.as_slice() else {
            anyhow::bail!("expected one container: {spec}");
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
