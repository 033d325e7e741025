//! What a program sees of its target, and which targets are found.

use anyhow::{Context as _, Result, ensure};
use cluster::{Cluster, Kind, Replicas, Workload};
use e2e::fixture::{Program, Recipe};
use e2e::{Scenario, TestNamespace, until};

use super::super::support::{cache, exec_for, standin_for};
use super::{agent_pods, ephemeral_agents, start_checkout, succeed};

pub(crate) async fn a_program_sees_what_the_target_sees(scenario: &Scenario<'_>) -> Result<()> {
    let namespace = scenario.namespace().await?;
    start_checkout(&namespace)?;
    namespace.web().await?;
    let address = namespace.kubectl(&[
        "get",
        "service",
        "web",
        "--output=jsonpath={.spec.clusterIP}",
    ])?;
    let visit = Program::compiled(Recipe::VISIT, &cache())?;
    for mode in ["--ephemeral-container", "--no-ephemeral-container"] {
        let mut session = exec_for(scenario, &namespace, "deployment/checkout")?;
        session.args([mode, "--"]).args(&visit.command);
        let output = succeed(visit.prepare(&mut session))?;
        for (key, expected) in [
            ("env", "from the pod"),
            ("file", "color=blue"),
            ("dns", address.as_str()),
        ] {
            ensure!(
                output.value(key) == Some(expected),
                "{mode}: {key}: {output}"
            );
        }
        let starts_with = |key: &str, prefix: &str| {
            output
                .value(key)
                .is_some_and(|value| value.starts_with(prefix))
        };
        ensure!(starts_with("hostname", "checkout-"), "{mode}: {output}");
        ensure!(starts_with("http", "web-"), "{mode}: {output}");
    }
    ensure!(
        ephemeral_agents(&namespace).await?.len() == 1,
        "exactly one session should have an agent, in one pod, because its program does not listen"
    );
    until("the agent's pod to be removed", async || {
        Ok(agent_pods(&namespace).await?.is_empty().then_some(()))
    })
    .await
}

pub(crate) async fn a_session_without_a_target_needs_no_privileges(
    scenario: &Scenario<'_>,
) -> Result<()> {
    let namespace = scenario.namespace().await?;
    namespace.web().await?;
    restrict(&namespace)?;
    let mut session = exec_for(scenario, &namespace, "targetless")?;
    session.args(["--", "curl", "--silent", "http://web/"]);
    let output = succeed(&mut session)?;
    ensure!(output.stdout.starts_with("web-"), "{output}");
    let mut session = standin_for(scenario, &namespace)?;
    // Files and variables are local, also those that magic would replace or remove for a target.
    let folder = tempfile::tempdir()?;
    std::fs::create_dir(folder.path().join(".aws"))?;
    std::fs::write(folder.path().join(".aws/config"), "mine\n")?;
    let script = "cat /etc/resolv.conf ~/.aws/config; echo \"<$AWS_PROFILE> <$ftp_proxy> <$KUBERNETES_PORT>\"";
    session
        .env("HOME", folder.path())
        .env("AWS_PROFILE", "work")
        .env("ftp_proxy", "http://10.1.2.3:3128");
    session.args(["exec", "--", "sh", "-c", script]);
    let output = succeed(&mut session)?;
    for expected in [
        &*namespace.name,
        "mine\n",
        "<work> <http://10.1.2.3:3128> <>",
    ] {
        ensure!(output.stdout.contains(expected), "{expected}: {output}");
    }
    until("the agents' pods to be removed", async || {
        Ok(agent_pods(&namespace).await?.is_empty().then_some(()))
    })
    .await
}

pub(super) fn restrict(namespace: &TestNamespace) -> Result<()> {
    let label = "pod-security.kubernetes.io/enforce=restricted";
    namespace
        .kubectl(&["label", "namespace", &namespace.name, label])
        .map(drop)
}

pub(crate) async fn targets_of_every_kind_are_found(scenario: &Scenario<'_>) -> Result<()> {
    let namespace = scenario.namespace().await?;
    namespace.apply(include_str!("../../../fixtures/workloads.yaml"))?;
    namespace.kubectl(&["create", "job", "now", "--from=cronjob/nightly"])?;
    namespace.client_pod("alone").await?;
    let cluster = Cluster::new(namespace.cluster.kube.clone(), &namespace.name);
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
            namespace: namespace.name.clone(),
            kind,
            name: name.to_owned(),
            container: container.map(str::to_owned),
        };
        let replicas = Replicas::watch(&cluster, &target).await?;
        replicas
            .wait_until(|observed| !observed.replicas.is_empty())
            .await;
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
    pods_are_added_and_removed(&namespace, &cluster).await?;
    everything_is_listed(scenario, &namespace)
}

async fn pods_are_added_and_removed(namespace: &TestNamespace, cluster: &Cluster) -> Result<()> {
    let target = Workload {
        namespace: namespace.name.clone(),
        kind: Kind::Deployment,
        name: "deployed".to_owned(),
        container: None,
    };
    let replicas = Replicas::watch(cluster, &target).await?;
    let before = replicas.best()?;
    namespace.kubectl(&["scale", "deployment/deployed", "--replicas=3"])?;
    replicas
        .wait_until(|observed| observed.replicas.len() == 3)
        .await;
    // The oldest pod is preferred, because it is the most likely to stay.
    ensure!(replicas.best()? == before, "{:?}", replicas.current());
    namespace.kubectl(&["delete", "pod", &before.pod, "--wait=false"])?;
    replicas.wait_for_other(Some(&before)).await;
    replicas
        .wait_until(|observed| {
            !observed
                .replicas
                .iter()
                .any(|replica| replica.uid == before.uid)
        })
        .await;
    ensure!(
        replicas.best()?.pod != before.pod,
        "{:?}",
        replicas.current()
    );
    Ok(())
}

fn everything_is_listed(scenario: &Scenario<'_>, namespace: &TestNamespace) -> Result<()> {
    let listed = succeed(standin_for(scenario, namespace)?.args(["ls", "--json"]))?;
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
            found["namespace"] == namespace.name.as_str(),
            "{expected}: {found}"
        );
        ensure!(
            found["containers"]
                .as_array()
                .is_some_and(|containers| !containers.is_empty()),
            "{expected}: {found}"
        );
    }
    let table = succeed(standin_for(scenario, namespace)?.arg("ls"))?;
    ensure!(
        table.stdout.contains("deployment/deployed") && table.stdout.contains("app, helper"),
        "{table}"
    );
    Ok(())
}
