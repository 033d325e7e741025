//! Pods that are added and removed during a session.

use anyhow::{Context as _, Result, ensure};
use e2e::{Scenario, TestNamespace, until};
use kube::ResourceExt as _;

use super::super::cluster_sessions::{ShellSession, ephemeral_agents};
use super::super::support::exec_for;
use super::{HEADER, replicas, serve, start_menu, wait_for_replicas, wait_until_all_are_stolen};

pub(crate) async fn pods_join_and_leave(scenario: &Scenario<'_>) -> Result<()> {
    let namespace = start_menu(scenario).await?;
    let session = serve(scenario, &namespace, &HEADER, &[]).await?;
    session.wait_for_message("port 8080 of 3 pods").await?;
    namespace.kubectl(&["scale", "deployment/menu", "--replicas=4"])?;
    let all = wait_for_replicas(&namespace, 4).await?;
    wait_until_all_are_stolen(&namespace, &session, &all).await?;
    session.wait_for_message("has joined the session").await?;
    namespace.kubectl(&["scale", "deployment/menu", "--replicas=1"])?;
    let left = until("pods to leave the session", async || {
        let output = session.stderr()?;
        // The message differs for the pod with the stateful agent.
        let one_of = ["has left the session", "connecting to another agent"];
        Ok(one_of
            .iter()
            .any(|text| output.contains(text))
            .then_some(()))
    });
    left.await.with_context(|| session.report())?;
    until("one pod, and none that is terminating", async || {
        let names = namespace.kubectl(&["get", "pods", "--selector=app=menu", "--output=name"])?;
        Ok((names.lines().count() == 1).then_some(()))
    })
    .await?;
    let all = wait_for_replicas(&namespace, 1).await?;
    wait_until_all_are_stolen(&namespace, &session, &all).await?;
    // Scale up again from the last pod.
    namespace.kubectl(&["scale", "deployment/menu", "--replicas=2"])?;
    let all = wait_for_replicas(&namespace, 2).await?;
    wait_until_all_are_stolen(&namespace, &session, &all).await
}

/// Files that are open at the first pod fail with an error; files that are opened later are those of another pod.
pub(crate) async fn another_pod_replaces_the_first(scenario: &Scenario<'_>) -> Result<()> {
    let namespace = start_menu(scenario).await?;
    let mut command = exec_for(scenario, &namespace, "deployment/menu")?;
    command.args(["--fs-mode", "write"]);
    let mut session = ShellSession::start(&mut command)?;
    let first = session.run("hostname")?;
    ensure!(first.starts_with("menu-"), "{first}");
    let opened = session.run("exec 3>/data/note && echo first >&3 && echo opened")?;
    ensure!(opened == "opened", "{opened}");
    let pods = namespace.pods();
    let pod = pods.get(&first).await?;
    ensure!(pod.name_any() == first);
    namespace.kubectl(&["delete", "pod", &first, "--wait=false"])?;
    let failed = until("an error of the open file", async || {
        let output = session.run("echo second >&3 && echo written || echo failed")?;
        Ok((output == "failed").then_some(()))
    });
    failed.await?;
    let content = session.run("echo third >/data/note && cat /data/note || echo failed")?;
    ensure!(content == "third", "{content}");
    // The file is in another pod.
    let mut found = Vec::new();
    for replica in replicas(&namespace).await? {
        let note = ["sh", "-c", "cat /data/note 2>/dev/null || true"];
        if namespace.run(&replica.name, &note).await? == "third\n" {
            found.push(replica.name);
        }
    }
    ensure!(found.len() == 1 && found != [first], "{found:?}");
    let output = session.end()?;
    ensure!(
        output
            .stderr
            .contains("continues with another agent, in pod menu-"),
        "{output}"
    );
    Ok(())
}

/// Requests without the header, one after the other, from a pod of the cluster through the service.
struct Load<'namespace>(&'namespace TestNamespace);

impl<'namespace> Load<'namespace> {
    async fn start(namespace: &'namespace TestNamespace) -> Result<Self> {
        let script = "rm -f /tmp/stop /tmp/codes; (while [ ! -e /tmp/stop ]; do curl -s -o /dev/null --max-time 10 -w \
                      '%{http_code}\\n' http://menu/menu || echo failed; done >/tmp/codes; touch /tmp/stopped) \
                      >/dev/null 2>&1 &";
        namespace.run("client", &["sh", "-c", script]).await?;
        Ok(Self(namespace))
    }

    async fn codes(&self) -> Result<Vec<String>> {
        let codes = self.0.run("client", &["cat", "/tmp/codes"]).await?;
        Ok(codes.lines().map(str::to_owned).collect())
    }

    /// Stops the load, and returns the status code of each request.
    async fn stop(self) -> Result<Vec<String>> {
        self.0.run("client", &["touch", "/tmp/stop"]).await?;
        until("the end of the load", async || {
            let stopped = self
                .0
                .exec("client", &["cat", "/tmp/stopped"], None)
                .await?;
            Ok((stopped.code == 0).then_some(()))
        })
        .await?;
        self.codes().await
    }
}

/// A rollout during a session that steals some requests loses none of the others.
pub(crate) async fn a_rollout_loses_no_request(scenario: &Scenario<'_>) -> Result<()> {
    let namespace = start_menu(scenario).await?;
    let session = serve(scenario, &namespace, &HEADER, &[]).await?;
    session.wait_for_message("port 8080 of 3 pods").await?;
    let before = wait_for_replicas(&namespace, 3).await?;
    let load = Load::start(&namespace).await?;
    until("some requests", async || {
        Ok((load.codes().await?.len() > 20).then_some(()))
    })
    .await?;
    namespace.kubectl(&["rollout", "restart", "deployment/menu"])?;
    namespace.kubectl(&["rollout", "status", "deployment/menu", "--timeout=180s"])?;
    let all = until("three new pods", async || {
        let now = replicas(&namespace).await?;
        let existed = |name: &str| before.iter().any(|replica| replica.name == name);
        let are_new = now.iter().all(|replica| !existed(&replica.name));
        Ok((now.len() == 3 && are_new).then_some(now))
    })
    .await?;
    wait_until_all_are_stolen(&namespace, &session, &all).await?;
    let codes = load.stop().await?;
    let lost: Vec<&String> = codes.iter().filter(|code| *code != "200").collect();
    ensure!(
        lost.is_empty(),
        "{} of {} requests were lost: {lost:?}\n{}",
        lost.len(),
        codes.len(),
        session.report()
    );
    Ok(())
}

/// `standin` is killed during requests: the pods respond again, and no agent is left.
pub(crate) async fn a_killed_session_leaves_nothing(scenario: &Scenario<'_>) -> Result<()> {
    let namespace = start_menu(scenario).await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("standin.yaml");
    std::fs::write(
        &file,
        "agent: {communication_timeout: 2, ephemeral: true}\n",
    )?;
    let file = file.to_string_lossy();
    let arguments = ["--steal", "--config-file", &file];
    let session = serve(scenario, &namespace, &[], &arguments).await?;
    session
        .wait_for_message("port 8080 of 3 pods: everything")
        .await?;
    let all = wait_for_replicas(&namespace, 3).await?;
    let expected = super::program_response(&namespace).await?;
    let load = Load::start(&namespace).await?;
    for replica in &all {
        let response = replica.request(&namespace, &[]).await?;
        ensure!(response == expected, "{replica:?}: {response:?}");
    }
    until("some requests", async || {
        Ok((load.codes().await?.len() > 20).then_some(()))
    })
    .await?;
    session.kill()?;
    for replica in &all {
        until("the pod's own response", async || {
            let response = replica.request(&namespace, &[]).await?;
            Ok((response == replica.original()).then_some(()))
        })
        .await?;
    }
    until("the agents to exit", async || {
        let agents = ephemeral_agents(&namespace).await?;
        let all_ended = agents.len() == 3 && agents.iter().all(|(_, _, is_running)| !is_running);
        Ok(all_ended.then_some(()))
    })
    .await?;
    for replica in &all {
        let response = replica.request(&namespace, &[]).await?;
        ensure!(response == replica.original(), "{response:?}");
    }
    let codes = load.stop().await?;
    ensure!(codes.last().context("no requests")? == "200");
    Ok(())
}
