//! What a program sees in a session, and of which targets.

use anyhow::{Context as _, Result, ensure};
use cluster::{Cluster, Kind, Replicas, Workload};
use e2e::fixture::{Program, Recipe};
use e2e::{Stage, Story, until};

use super::super::surroundings::{cache, exec_for, standin_for};
use super::{agent_pods, ephemeral_agents, start_checkout, succeed};

pub(crate) async fn a_program_sees_what_the_target_sees(story: &Story<'_>) -> Result<()> {
    let stage = story.stage().await?;
    start_checkout(&stage)?;
    stage.web().await?;
    let address = stage.kubectl(&[
        "get",
        "service",
        "web",
        "--output=jsonpath={.spec.clusterIP}",
    ])?;
    let visit = Program::compiled(Recipe::VISIT, &cache())?;
    for mode in ["--ephemeral-container", "--no-ephemeral-container"] {
        let mut session = exec_for(story, &stage, "deployment/checkout")?;
        session.args([mode, "--"]).args(&visit.command);
        let ended = succeed(visit.prepare(&mut session))?;
        for (key, expected) in [
            ("env", "from the pod"),
            ("file", "color=blue"),
            ("dns", address.as_str()),
        ] {
            ensure!(ended.value(key) == Some(expected), "{mode}: {key}: {ended}");
        }
        let begins = |key: &str, with: &str| {
            ended
                .value(key)
                .is_some_and(|value| value.starts_with(with))
        };
        ensure!(begins("hostname", "checkout-"), "{mode}: {ended}");
        ensure!(begins("http", "web-"), "{mode}: {ended}");
    }
    ensure!(
        !ephemeral_agents(&stage).await?.is_empty(),
        "one of the sessions was to have an ephemeral container"
    );
    until("the agent's pod to be removed", async || {
        Ok(agent_pods(&stage).await?.is_empty().then_some(()))
    })
    .await
}

pub(crate) async fn a_session_without_a_target_needs_no_privileges(
    story: &Story<'_>,
) -> Result<()> {
    let stage = story.stage().await?;
    stage.web().await?;
    restrict(&stage)?;
    let mut session = exec_for(story, &stage, "targetless")?;
    session.args(["--", "curl", "--silent", "http://web/"]);
    let ended = succeed(&mut session)?;
    ensure!(ended.stdout.starts_with("web-"), "{ended}");
    let mut session = standin_for(story, &stage)?;
    session.args(["exec", "--", "sh", "-c", "cat /etc/resolv.conf"]);
    let ended = succeed(&mut session)?;
    ensure!(ended.stdout.contains(&stage.namespace), "{ended}");
    until("the agents' pods to be removed", async || {
        Ok(agent_pods(&stage).await?.is_empty().then_some(()))
    })
    .await
}

pub(super) fn restrict(stage: &Stage) -> Result<()> {
    let label = "pod-security.kubernetes.io/enforce=restricted";
    stage
        .kubectl(&["label", "namespace", &stage.namespace, label])
        .map(drop)
}

pub(crate) async fn targets_of_every_kind_are_found(story: &Story<'_>) -> Result<()> {
    let stage = story.stage().await?;
    stage.apply(include_str!("../../../fixtures/workloads.yaml"))?;
    stage.kubectl(&["create", "job", "now", "--from=cronjob/nightly"])?;
    stage.client_pod("alone").await?;
    let cluster = Cluster::new(stage.cluster.kube.clone(), &stage.namespace);
    for (kind, name, container, pod) in [
        (Kind::Deployment, "deployed", None, "deployed-"),
        (Kind::Deployment, "deployed", Some("helper"), "deployed-"),
        (Kind::StatefulSet, "stateful", None, "stateful-0"),
        (Kind::DaemonSet, "daemon", None, "daemon-"),
        (Kind::ReplicaSet, "replicated", None, "replicated-"),
        (Kind::Job, "now", None, "now-"),
        (Kind::CronJob, "nightly", None, "now-"),
        (Kind::Service, "served", None, "deployed-"),
        (
            Kind::Selector,
            "app in (stateful, none)",
            None,
            "stateful-0",
        ),
        (Kind::Pod, "alone", None, "alone"),
    ] {
        let target = Workload {
            namespace: stage.namespace.clone(),
            kind,
            name: name.to_owned(),
            container: container.map(str::to_owned),
        };
        let replicas = Replicas::follow(&cluster, &target).await?;
        replicas.until(|known| !known.replicas.is_empty()).await;
        let best = replicas.best()?;
        ensure!(best.pod.starts_with(pod), "{target}: {best:?}");
        let expected = match (container, kind) {
            (Some(container), _) => container,
            (None, Kind::Pod) => "tools",
            (None, _) => "app",
        };
        ensure!(best.container == expected, "{target}: {best:?}");
        ensure!(!best.container_id.is_empty(), "{target}: {best:?}");
    }
    pods_come_and_go(&stage, &cluster).await?;
    everything_is_listed(story, &stage)
}

async fn pods_come_and_go(stage: &Stage, cluster: &Cluster) -> Result<()> {
    let target = Workload {
        namespace: stage.namespace.clone(),
        kind: Kind::Deployment,
        name: "deployed".to_owned(),
        container: None,
    };
    let replicas = Replicas::follow(cluster, &target).await?;
    let before = replicas.best()?;
    stage.kubectl(&["scale", "deployment/deployed", "--replicas=3"])?;
    replicas.until(|known| known.replicas.len() == 3).await;
    // The oldest is the likeliest to stay.
    ensure!(replicas.best()? == before, "{:?}", replicas.now());
    stage.kubectl(&["delete", "pod", &before.pod, "--wait=false"])?;
    replicas.another_than(Some(&before)).await;
    replicas
        .until(|known| {
            !known
                .replicas
                .iter()
                .any(|replica| replica.uid == before.uid)
        })
        .await;
    ensure!(replicas.best()?.pod != before.pod, "{:?}", replicas.now());
    Ok(())
}

fn everything_is_listed(story: &Story<'_>, stage: &Stage) -> Result<()> {
    let listed = succeed(standin_for(story, stage)?.args(["ls", "--json"]))?;
    let listed: serde_json::Value = serde_json::from_str(&listed.stdout)?;
    let targets = listed.as_array().context("no list")?;
    for expected in [
        "deployment/deployed",
        "statefulset/stateful",
        "daemonset/daemon",
        "replicaset/replicated",
        "cronjob/nightly",
        "job/now",
        "service/served",
        "pod/alone",
    ] {
        let found = targets.iter().find(|target| target["target"] == expected);
        let found = found.with_context(|| format!("{expected} is not in {listed}"))?;
        ensure!(
            found["namespace"] == stage.namespace.as_str(),
            "{expected}: {found}"
        );
        ensure!(
            found["containers"]
                .as_array()
                .is_some_and(|containers| !containers.is_empty()),
            "{expected}: {found}"
        );
    }
    let table = succeed(standin_for(story, stage)?.arg("ls"))?;
    ensure!(
        table.stdout.contains("deployment/deployed") && table.stdout.contains("app, helper"),
        "{table}"
    );
    Ok(())
}
