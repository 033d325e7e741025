//! Pods, Services, names, exec, logs, port-forward, ephemeral containers, rights and limits.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use e2e::{LaterWorld, Needs, Story, tell, until};
use futures_util::AsyncBufReadExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{LogParams, Patch, PatchParams};
use libtest_mimic::Trial;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

pub(crate) fn stories(world: &Arc<LaterWorld>) -> Vec<Trial> {
    vec![
        tell(
            world,
            "a_pod_runs_and_its_output_is_kept",
            Needs::Clusters,
            a_pod_runs_and_its_output_is_kept,
        ),
        tell(
            world,
            "a_service_reaches_every_pod_by_name",
            Needs::Clusters,
            a_service_reaches_every_pod_by_name,
        ),
        tell(
            world,
            "pods_of_two_nodes_reach_each_other",
            Needs::Lab,
            pods_of_two_nodes_reach_each_other,
        ),
        tell(
            world,
            "names_resolve_as_they_should",
            Needs::Clusters,
            names_resolve_as_they_should,
        ),
        tell(
            world,
            "exec_passes_input_output_and_exit_code",
            Needs::Clusters,
            exec_passes_input_output_and_exit_code,
        ),
        tell(
            world,
            "logs_can_be_followed",
            Needs::Clusters,
            logs_can_be_followed,
        ),
        tell(
            world,
            "a_port_can_be_forwarded",
            Needs::Clusters,
            a_port_can_be_forwarded,
        ),
        tell(
            world,
            "an_ephemeral_container_joins_a_pod",
            Needs::Clusters,
            an_ephemeral_container_joins_a_pod,
        ),
        tell(
            world,
            "capabilities_are_given_and_withheld",
            Needs::Clusters,
            capabilities_are_given_and_withheld,
        ),
        tell(
            world,
            "a_memory_limit_is_enforced",
            Needs::Clusters,
            a_memory_limit_is_enforced,
        ),
        tell(
            world,
            "pod_security_levels_are_enforced",
            Needs::Clusters,
            pod_security_levels_are_enforced,
        ),
    ]
}

async fn a_pod_runs_and_its_output_is_kept(story: &Story<'_>) -> Result<()> {
    let stage = story.stage().await?;
    stage.apply(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: once}\nspec:\n  restartPolicy: Never\n  containers:\n  - {name: \
         c, image: 'registry.lab/tools:1', command: [sh, -c, 'echo from $NAME; exit 0'], env: [{name: NAME, value: \
         inside}]}\n",
    )?;
    ensure!(
        stage.wait_until_ended("once").await? == "Succeeded",
        "the pod failed"
    );
    let log = stage.pods().logs("once", &LogParams::default()).await?;
    ensure!(log == "from inside\n", "the log is {log:?}");
    Ok(())
}

async fn a_service_reaches_every_pod_by_name(story: &Story<'_>) -> Result<()> {
    let stage = story.stage().await?;
    stage.web().await?;
    stage.client_pod("client").await?;
    let answered = std::sync::Mutex::new(BTreeSet::new());
    until("both pods to answer", async || {
        let name = stage
            .run("client", &["curl", "-sS", "--max-time", "5", "http://web/"])
            .await?;
        let mut answered = answered.lock().map_err(|_| anyhow::anyhow!("poisoned"))?;
        answered.insert(name);
        Ok((answered.len() == 2).then_some(()))
    })
    .await
}

async fn pods_of_two_nodes_reach_each_other(story: &Story<'_>) -> Result<()> {
    let stage = story.stage().await?;
    for node in &story.lab()?.cluster("east")?.plan().nodes {
        stage.apply(&format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: on-{node}}}\nspec:\n  nodeName: {node}\n  \
             terminationGracePeriodSeconds: 0\n  containers: [{{name: c, image: 'registry.lab/python:1', command: \
             [python3, -m, http.server, '8080']}}]\n",
            node = node.name
        ))?;
    }
    for node in ["on-east-1", "on-east-2"] {
        stage.wait_until_ready(node).await?;
    }
    let address = pod_address(&stage.pods().get("on-east-2").await?)?;
    stage.client_pod("client").await?;
    until("the pod on the other node to answer", async || {
        let output = stage
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
    let seen = stage.run("on-east-1", &["python3", "-c", &script]).await?;
    ensure!(seen.trim() == "200", "{seen}");
    Ok(())
}

async fn names_resolve_as_they_should(story: &Story<'_>) -> Result<()> {
    let stage = story.stage().await?;
    stage.web().await?;
    stage.client_pod("client").await?;
    let address = stage.kubectl(&[
        "get",
        "service",
        "web",
        "--output=jsonpath={.spec.clusterIP}",
    ])?;
    let namespace = &stage.namespace;
    for name in [
        "web".to_owned(),
        format!("web.{namespace}"),
        format!("web.{namespace}.svc.cluster.local"),
    ] {
        until(&format!("{name} to resolve"), async || {
            let found = stage.run("client", &["getent", "ahostsv4", &name]).await?;
            Ok(found.contains(&address).then_some(()))
        })
        .await?;
    }
    let missing = stage
        .exec("client", &["getent", "hosts", "no-such-service"], None)
        .await?;
    ensure!(
        missing.code == 2,
        "a name that is nobody's gave {missing:?}"
    );
    Ok(())
}

async fn exec_passes_input_output_and_exit_code(story: &Story<'_>) -> Result<()> {
    let stage = story.stage().await?;
    stage.client_pod("client").await?;
    let output = stage
        .exec(
            "client",
            &["sh", "-c", "cat; echo problem >&2; exit 7"],
            Some("words"),
        )
        .await?;
    ensure!(
        output.stdout == "words" && output.stderr == "problem\n" && output.code == 7,
        "{output:?}"
    );
    Ok(())
}

async fn logs_can_be_followed(story: &Story<'_>) -> Result<()> {
    let stage = story.stage().await?;
    stage.apply(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: talker}\nspec:\n  terminationGracePeriodSeconds: 0\n  \
         containers: [{name: c, image: 'registry.lab/tools:1', command: [sh, -c, 'mkfifo /tmp/say; while :; do cat \
         /tmp/say; done']}]\n",
    )?;
    stage.wait_until_ready("talker").await?;
    let mut lines = stage
        .pods()
        .log_stream(
            "talker",
            &LogParams {
                follow: true,
                ..LogParams::default()
            },
        )
        .await?;
    for line in ["one", "two"] {
        // The line is said only after the log is followed, so it can only come through the open stream.
        stage
            .run("talker", &["sh", "-c", &format!("echo {line} > /tmp/say")])
            .await?;
        let mut text = String::new();
        lines.read_line(&mut text).await?;
        ensure!(text.trim() == line, "{text:?} came instead of {line}");
    }
    Ok(())
}

async fn a_port_can_be_forwarded(story: &Story<'_>) -> Result<()> {
    let stage = story.stage().await?;
    stage.web().await?;
    let pods = stage.pods();
    let names = stage.kubectl(&["get", "pods", "--selector=app=web", "--output=name"])?;
    let name = names
        .lines()
        .next()
        .context("no pod")?
        .trim_start_matches("pod/");
    let mut forwarder = pods.portforward(name, &[8080]).await?;
    let mut stream = forwarder.take_stream(8080).context("no stream")?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    ensure!(
        answer.contains("200 OK") && answer.contains(name),
        "{answer}"
    );
    Ok(())
}

async fn an_ephemeral_container_joins_a_pod(story: &Story<'_>) -> Result<()> {
    let stage = story.stage().await?;
    stage.web().await?;
    let names = stage.kubectl(&["get", "pods", "--selector=app=web", "--output=name"])?;
    let name = names
        .lines()
        .next()
        .context("no pod")?
        .trim_start_matches("pod/");
    let script = "curl -sS --retry 5 --retry-connrefused http://127.0.0.1:8080/; cat /proc/1/cmdline | tr '\\0' ' '";
    let patch = json!({ "spec": { "ephemeralContainers": [{
        "name": "guest",
        "image": "registry.lab/tools:1",
        "targetContainerName": "web",
        "command": ["sh", "-c", script],
    }] } });
    stage
        .pods()
        .patch_ephemeral_containers(name, &PatchParams::default(), &Patch::Strategic(patch))
        .await?;
    let pods = stage.pods();
    until("the ephemeral container to end", async || {
        let status = pods.get(name).await?.status.unwrap_or_default();
        let ended = status
            .ephemeral_container_statuses
            .unwrap_or_default()
            .into_iter()
            .find_map(|container| container.state?.terminated);
        Ok(ended)
    })
    .await?;
    let parameters = LogParams {
        container: Some("guest".to_owned()),
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

async fn capabilities_are_given_and_withheld(story: &Story<'_>) -> Result<()> {
    let stage = story.stage().await?;
    let command = "nft add table inet t && nft add chain inet t c && nft list ruleset";
    for (name, capabilities) in [("with", "add: [NET_ADMIN]"), ("without", "drop: [ALL]")] {
        stage.apply(&format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  restartPolicy: Never\n  containers: \
             [{{name: c, image: 'registry.lab/tools:1', command: [sh, -c, '{command}'], securityContext: \
             {{capabilities: {{{capabilities}}}}}}}]\n"
        ))?;
    }
    let with = stage.wait_until_ended("with").await?;
    ensure!(
        with == "Succeeded",
        "a pod with NET_ADMIN could not write a rule"
    );
    let log = stage.pods().logs("with", &LogParams::default()).await?;
    ensure!(log.contains("table inet t"), "{log}");
    let without = stage.wait_until_ended("without").await?;
    ensure!(without == "Failed", "a pod without NET_ADMIN wrote a rule");
    Ok(())
}

async fn a_memory_limit_is_enforced(story: &Story<'_>) -> Result<()> {
    let stage = story.stage().await?;
    stage.apply(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: greedy}\nspec:\n  restartPolicy: Never\n  containers: [{name: c, \
         image: 'registry.lab/tools:1', command: [tail, /dev/zero], resources: {limits: {memory: 32Mi}}}]\n",
    )?;
    stage.wait_until_ended("greedy").await?;
    let pod = stage.pods().get("greedy").await?;
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
    ensure!(reason == "OOMKilled", "it ended by {reason}");
    Ok(())
}

async fn pod_security_levels_are_enforced(story: &Story<'_>) -> Result<()> {
    let stage = story.stage().await?;
    let namespace = stage.namespace.clone();
    stage.kubectl(&[
        "label",
        "namespace",
        &namespace,
        "pod-security.kubernetes.io/enforce=restricted",
    ])?;
    let refused = stage
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
