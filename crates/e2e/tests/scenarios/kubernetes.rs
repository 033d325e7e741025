//! Pods, Services, DNS names, exec, logs, port-forward, ephemeral containers, capabilities and limits.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use e2e::{LazyEnvironment, Needs, Scenario, scenario, until};
use futures_util::AsyncBufReadExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{LogParams, Patch, PatchParams};
use libtest_mimic::Trial;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

pub(crate) fn scenarios(environment: &Arc<LazyEnvironment>) -> Vec<Trial> {
    vec![
        scenario(
            environment,
            "a_pod_runs_and_its_output_is_kept",
            Needs::Clusters,
            a_pod_runs_and_its_output_is_kept,
        ),
        scenario(
            environment,
            "a_service_reaches_every_pod_by_name",
            Needs::Clusters,
            a_service_reaches_every_pod_by_name,
        ),
        scenario(
            environment,
            "pods_of_two_nodes_reach_each_other",
            Needs::Lab,
            pods_of_two_nodes_reach_each_other,
        ),
        scenario(
            environment,
            "service_names_resolve",
            Needs::Clusters,
            service_names_resolve,
        ),
        scenario(
            environment,
            "exec_passes_input_output_and_exit_code",
            Needs::Clusters,
            exec_passes_input_output_and_exit_code,
        ),
        scenario(
            environment,
            "logs_can_be_followed",
            Needs::Clusters,
            logs_can_be_followed,
        ),
        scenario(
            environment,
            "a_port_can_be_forwarded",
            Needs::Clusters,
            a_port_can_be_forwarded,
        ),
        scenario(
            environment,
            "an_ephemeral_container_joins_a_pod",
            Needs::Clusters,
            an_ephemeral_container_joins_a_pod,
        ),
        scenario(
            environment,
            "capabilities_are_added_and_dropped",
            Needs::Clusters,
            capabilities_are_added_and_dropped,
        ),
        scenario(
            environment,
            "a_memory_limit_is_enforced",
            Needs::Clusters,
            a_memory_limit_is_enforced,
        ),
        scenario(
            environment,
            "pod_security_levels_are_enforced",
            Needs::Clusters,
            pod_security_levels_are_enforced,
        ),
    ]
}

async fn a_pod_runs_and_its_output_is_kept(scenario: &Scenario<'_>) -> Result<()> {
    let namespace = scenario.namespace().await?;
    namespace.apply(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: once}\nspec:\n  restartPolicy: Never\n  containers:\n  - {name: \
         c, image: 'registry.lab/tools:1', command: [sh, -c, 'echo from $NAME; exit 0'], env: [{name: NAME, value: \
         inside}]}\n",
    )?;
    ensure!(
        namespace.wait_until_ended("once").await? == "Succeeded",
        "the pod failed"
    );
    let log = namespace.pods().logs("once", &LogParams::default()).await?;
    ensure!(log == "from inside\n", "the log is {log:?}");
    Ok(())
}

async fn a_service_reaches_every_pod_by_name(scenario: &Scenario<'_>) -> Result<()> {
    let namespace = scenario.namespace().await?;
    namespace.web().await?;
    namespace.client_pod("client").await?;
    let responded = parking_lot::Mutex::new(BTreeSet::new());
    until("both pods to respond", async || {
        let name = namespace
            .run("client", &["curl", "-sS", "--max-time", "5", "http://web/"])
            .await?;
        let mut responded = responded.lock();
        responded.insert(name);
        Ok((responded.len() == 2).then_some(()))
    })
    .await
}

async fn pods_of_two_nodes_reach_each_other(scenario: &Scenario<'_>) -> Result<()> {
    let namespace = scenario.namespace().await?;
    for node in &scenario.lab()?.cluster("east")?.plan().nodes {
        namespace.apply(&format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: on-{node}}}\nspec:\n  nodeName: {node}\n  \
             terminationGracePeriodSeconds: 0\n  containers: [{{name: c, image: 'registry.lab/python:1', command: \
             [python3, -m, http.server, '8080']}}]\n",
            node = node.name
        ))?;
    }
    for node in ["on-east-1", "on-east-2"] {
        namespace.wait_until_ready(node).await?;
    }
    let address = pod_address(&namespace.pods().get("on-east-2").await?)?;
    namespace.client_pod("client").await?;
    until("the pod on the other node to respond", async || {
        let output = namespace
            .exec(
                "client",
                &["curl", "-sS", &format!("http://{address}:8080/")],
                None,
            )
            .await?;
        Ok((output.code == 0).then_some(()))
    })
    .await?;
    let script = format!(
        "import urllib.request as u; print(u.urlopen('http://{address}:8080/', timeout=5).status)"
    );
    let status = namespace
        .run("on-east-1", &["python3", "-c", &script])
        .await?;
    ensure!(status.trim() == "200", "{status}");
    Ok(())
}

async fn service_names_resolve(scenario: &Scenario<'_>) -> Result<()> {
    let namespace = scenario.namespace().await?;
    namespace.web().await?;
    namespace.client_pod("client").await?;
    let address = namespace.kubectl(&[
        "get",
        "service",
        "web",
        "--output=jsonpath={.spec.clusterIP}",
    ])?;
    let suffix = &namespace.name;
    for name in [
        "web".to_owned(),
        format!("web.{suffix}"),
        format!("web.{suffix}.svc.cluster.local"),
    ] {
        until(&format!("{name} to resolve"), async || {
            let found = namespace
                .run("client", &["getent", "ahostsv4", &name])
                .await?;
            Ok(found.contains(&address).then_some(()))
        })
        .await?;
    }
    let missing = namespace
        .exec("client", &["getent", "hosts", "no-such-service"], None)
        .await?;
    ensure!(
        missing.code == 2,
        "a name without a Service gave {missing:?}"
    );
    Ok(())
}

async fn exec_passes_input_output_and_exit_code(scenario: &Scenario<'_>) -> Result<()> {
    let namespace = scenario.namespace().await?;
    namespace.client_pod("client").await?;
    let output = namespace
        .exec(
            "client",
            &["sh", "-c", "cat; echo problem >&2; exit 7"],
            Some("input"),
        )
        .await?;
    ensure!(
        output.stdout == "input" && output.stderr == "problem\n" && output.code == 7,
        "{output:?}"
    );
    Ok(())
}

async fn logs_can_be_followed(scenario: &Scenario<'_>) -> Result<()> {
    let namespace = scenario.namespace().await?;
    namespace.apply(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: printer}\nspec:\n  terminationGracePeriodSeconds: 0\n  \
         containers: [{name: c, image: 'registry.lab/tools:1', command: [sh, -c, 'mkfifo /tmp/lines; while :; do cat \
         /tmp/lines; done']}]\n",
    )?;
    namespace.wait_until_ready("printer").await?;
    let mut lines = namespace
        .pods()
        .log_stream(
            "printer",
            &LogParams {
                follow: true,
                ..LogParams::default()
            },
        )
        .await?;
    for line in ["one", "two"] {
        // The line is printed only after the log is followed, so it must come through the open stream.
        namespace
            .run(
                "printer",
                &["sh", "-c", &format!("echo {line} > /tmp/lines")],
            )
            .await?;
        let mut text = String::new();
        lines.read_line(&mut text).await?;
        ensure!(text.trim() == line, "received {text:?} instead of {line}");
    }
    Ok(())
}

async fn a_port_can_be_forwarded(scenario: &Scenario<'_>) -> Result<()> {
    let namespace = scenario.namespace().await?;
    namespace.web().await?;
    let pods = namespace.pods();
    let names = namespace.kubectl(&["get", "pods", "--selector=app=web", "--output=name"])?;
    let name = names
        .lines()
        .next()
        .context("no pod")?
        .trim_start_matches("pod/");
    let mut forwarder = pods.portforward(name, &[8080]).await?;
    let mut stream = forwarder.take_stream(8080).context("no stream")?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    ensure!(
        response.contains("200 OK") && response.contains(name),
        "{response}"
    );
    Ok(())
}

async fn an_ephemeral_container_joins_a_pod(scenario: &Scenario<'_>) -> Result<()> {
    let namespace = scenario.namespace().await?;
    namespace.web().await?;
    let names = namespace.kubectl(&["get", "pods", "--selector=app=web", "--output=name"])?;
    let name = names
        .lines()
        .next()
        .context("no pod")?
        .trim_start_matches("pod/");
    let script = "curl -sS --retry 5 --retry-connrefused http://127.0.0.1:8080/; cat /proc/1/cmdline | tr '\\0' ' '";
    let patch = json!({ "spec": { "ephemeralContainers": [{
        "name": "debugger",
        "image": "registry.lab/tools:1",
        "targetContainerName": "web",
        "command": ["sh", "-c", script],
    }] } });
    namespace
        .pods()
        .patch_ephemeral_containers(name, &PatchParams::default(), &Patch::Strategic(patch))
        .await?;
    let pods = namespace.pods();
    until("the ephemeral container to end", async || {
        let status = pods.get(name).await?.status.unwrap_or_default();
        let terminated = status
            .ephemeral_container_statuses
            .unwrap_or_default()
            .into_iter()
            .find_map(|container| container.state?.terminated);
        Ok(terminated)
    })
    .await?;
    let parameters = LogParams {
        container: Some("debugger".to_owned()),
        ..LogParams::default()
    };
    let log = pods.logs(name, &parameters).await?;
    ensure!(
        log.contains(name),
        "it did not reach the pod's own address: {log}"
    );
    ensure!(
        log.contains("web.py"),
        "it does not see the target's processes: {log}"
    );
    Ok(())
}

async fn capabilities_are_added_and_dropped(scenario: &Scenario<'_>) -> Result<()> {
    let namespace = scenario.namespace().await?;
    let command = "nft add table inet t && nft add chain inet t c && nft list ruleset";
    for (name, capabilities) in [("with", "add: [NET_ADMIN]"), ("without", "drop: [ALL]")] {
        namespace.apply(&format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  restartPolicy: Never\n  containers: \
             [{{name: c, image: 'registry.lab/tools:1', command: [sh, -c, '{command}'], securityContext: \
             {{capabilities: {{{capabilities}}}}}}}]\n"
        ))?;
    }
    let with = namespace.wait_until_ended("with").await?;
    ensure!(
        with == "Succeeded",
        "a pod with NET_ADMIN could not write a rule"
    );
    let log = namespace.pods().logs("with", &LogParams::default()).await?;
    ensure!(log.contains("table inet t"), "{log}");
    let without = namespace.wait_until_ended("without").await?;
    ensure!(without == "Failed", "a pod without NET_ADMIN wrote a rule");
    Ok(())
}

async fn a_memory_limit_is_enforced(scenario: &Scenario<'_>) -> Result<()> {
    let namespace = scenario.namespace().await?;
    namespace.apply(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: greedy}\nspec:\n  restartPolicy: Never\n  containers: [{name: c, \
         image: 'registry.lab/tools:1', command: [tail, /dev/zero], resources: {limits: {memory: 32Mi}}}]\n",
    )?;
    namespace.wait_until_ended("greedy").await?;
    let pod = namespace.pods().get("greedy").await?;
    let reason = pod
        .status
        .and_then(|status| {
            status
                .container_statuses?
                .into_iter()
                .next()?
                .state?
                .terminated?
                .reason
        })
        .context("no reason")?;
    ensure!(reason == "OOMKilled", "it ended with {reason}");
    Ok(())
}

async fn pod_security_levels_are_enforced(scenario: &Scenario<'_>) -> Result<()> {
    let namespace = scenario.namespace().await?;
    namespace.kubectl(&[
        "label",
        "namespace",
        &namespace.name,
        "pod-security.kubernetes.io/enforce=restricted",
    ])?;
    let refused = namespace
        .apply(
            "apiVersion: v1\nkind: Pod\nmetadata: {name: root}\nspec:\n  containers: [{name: c, image: \
             'registry.lab/tools:1', securityContext: {privileged: true}}]\n",
        )
        .err()
        .context("a privileged pod was accepted")?;
    ensure!(
        refused.to_string().contains("violates PodSecurity"),
        "{refused}"
    );
    Ok(())
}

fn pod_address(pod: &Pod) -> Result<String> {
    pod.status
        .as_ref()
        .and_then(|status| status.pod_ip.clone())
        .context("the pod has no address")
}
