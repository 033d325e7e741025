//! Pods that come and go while a session is with them.

use anyhow::{Context as _, Result, ensure};
use e2e::{Stage, Story, until};
use kube::ResourceExt as _;

use super::super::cluster_sessions::{Waiting, ephemeral_agents};
use super::super::surroundings::exec_for;
use super::{HEADER, replicas, serve, start_menu, until_all_are_stolen, until_there_are};

pub(crate) async fn pods_join_and_leave(story: &Story<'_>) -> Result<()> {
    let stage = start_menu(story).await?;
    let session = serve(story, &stage, &HEADER, &[])?;
    session.says("port 8080 of 3 pods").await?;
    stage.kubectl(&["scale", "deployment/menu", "--replicas=4"])?;
    let all = until_there_are(&stage, 4).await?;
    until_all_are_stolen(&stage, &session, &all).await?;
    session.says("has joined the session").await?;
    stage.kubectl(&["scale", "deployment/menu", "--replicas=1"])?;
    let left = until("pods to leave the session", async || {
        let said = session.stderr()?;
        // One that was the first is said to be gone.
        let one_of = ["has left the session", "looking for another one"];
        Ok(one_of
            .iter()
            .any(|words| said.contains(words))
            .then_some(()))
    });
    left.await.with_context(|| session.report())?;
    until("one pod, and no other that is about to go", async || {
        let names = stage.kubectl(&["get", "pods", "--selector=app=menu", "--output=name"])?;
        Ok((names.lines().count() == 1).then_some(()))
    })
    .await?;
    let all = until_there_are(&stage, 1).await?;
    until_all_are_stolen(&stage, &session, &all).await?;
    // And up again, from the one that is left.
    stage.kubectl(&["scale", "deployment/menu", "--replicas=2"])?;
    let all = until_there_are(&stage, 2).await?;
    until_all_are_stolen(&stage, &session, &all).await
}

/// What is open at the first pod fails, and says so; everything that is opened later is another pod's.
pub(crate) async fn another_pod_takes_the_place_of_the_first(story: &Story<'_>) -> Result<()> {
    let stage = start_menu(story).await?;
    let mut command = exec_for(story, &stage, "deployment/menu")?;
    command.args(["--fs-mode", "write"]);
    let mut session = Waiting::start(&mut command)?;
    let first = session.ask("hostname")?;
    ensure!(first.starts_with("menu-"), "{first}");
    let opened = session.ask("exec 3>/data/note && echo first >&3 && echo opened")?;
    ensure!(opened == "opened", "{opened}");
    let pods = stage.pods();
    let pod = pods.get(&first).await?;
    ensure!(pod.name_any() == first);
    stage.kubectl(&["delete", "pod", &first, "--wait=false"])?;
    let failed = until("an error of the open file", async || {
        let said = session.ask("echo second >&3 && echo written || echo failed")?;
        Ok((said == "failed").then_some(()))
    });
    failed.await?;
    let again = session.ask("echo third >/data/note && cat /data/note || echo failed")?;
    ensure!(again == "third", "{again}");
    // Another pod has it.
    let mut found = Vec::new();
    for replica in replicas(&stage).await? {
        let note = ["sh", "-c", "cat /data/note 2>/dev/null || true"];
        if stage.run(&replica.name, &note).await? == "third\n" {
            found.push(replica.name);
        }
    }
    ensure!(found.len() == 1 && found != [first], "{found:?}");
    let ended = session.end()?;
    ensure!(
        ended
            .stderr
            .contains("goes on with another agent, in pod menu-"),
        "{ended}"
    );
    Ok(())
}

/// Requests of everybody else, one after the other, from a pod of the cluster through the service.
struct Load<'stage>(&'stage Stage);

impl<'stage> Load<'stage> {
    async fn start(stage: &'stage Stage) -> Result<Self> {
        let script = "rm -f /tmp/stop /tmp/codes; (while [ ! -e /tmp/stop ]; do curl -s -o /dev/null --max-time 10 -w \
                      '%{http_code}\\n' http://menu/menu || echo failed; done >/tmp/codes; touch /tmp/stopped) \
                      >/dev/null 2>&1 &";
        stage.run("client", &["sh", "-c", script]).await?;
        Ok(Self(stage))
    }

    async fn codes(&self) -> Result<Vec<String>> {
        let codes = self.0.run("client", &["cat", "/tmp/codes"]).await?;
        Ok(codes.lines().map(str::to_owned).collect())
    }

    /// Ends it, and returns how each request went.
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

/// Also with a session that takes some of the requests, nobody else notices a rollout.
pub(crate) async fn a_rollout_loses_no_request(story: &Story<'_>) -> Result<()> {
    let stage = start_menu(story).await?;
    let session = serve(story, &stage, &HEADER, &[])?;
    session.says("port 8080 of 3 pods").await?;
    let before = until_there_are(&stage, 3).await?;
    let load = Load::start(&stage).await?;
    until("some requests", async || {
        Ok((load.codes().await?.len() > 20).then_some(()))
    })
    .await?;
    stage.kubectl(&["rollout", "restart", "deployment/menu"])?;
    stage.kubectl(&["rollout", "status", "deployment/menu", "--timeout=180s"])?;
    let all = until("three new pods", async || {
        let now = replicas(&stage).await?;
        let is_old = |name: &str| before.iter().any(|replica| replica.name == name);
        let are_new = now.iter().all(|replica| !is_old(&replica.name));
        Ok((now.len() == 3 && are_new).then_some(now))
    })
    .await?;
    until_all_are_stolen(&stage, &session, &all).await?;
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

/// `standin` is killed while requests come: the pods answer again, and no agent is left.
pub(crate) async fn a_killed_session_leaves_nothing(story: &Story<'_>) -> Result<()> {
    let stage = start_menu(story).await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("standin.yaml");
    std::fs::write(
        &file,
        "agent: {communication_timeout: 2, ephemeral: true}\n",
    )?;
    let file = file.to_string_lossy();
    let arguments = ["--steal", "--config-file", &file];
    let session = serve(story, &stage, &[], &arguments)?;
    session.says("port 8080 of 3 pods: everything").await?;
    let all = until_there_are(&stage, 3).await?;
    let expected = super::answer_of_the_program(&stage).await?;
    let load = Load::start(&stage).await?;
    for replica in &all {
        let answer = replica.ask(&stage, &[]).await?;
        ensure!(answer == expected, "{replica:?}: {answer:?}");
    }
    until("some requests", async || {
        Ok((load.codes().await?.len() > 20).then_some(()))
    })
    .await?;
    session.kill()?;
    for replica in &all {
        until("the pod's own answer", async || {
            let answer = replica.ask(&stage, &[]).await?;
            Ok((answer == replica.original()).then_some(()))
        })
        .await?;
    }
    until("the agents to end", async || {
        let agents = ephemeral_agents(&stage).await?;
        let over = agents.len() == 3 && agents.iter().all(|(_, _, runs)| !runs);
        Ok(over.then_some(()))
    })
    .await?;
    for replica in &all {
        let answer = replica.ask(&stage, &[]).await?;
        ensure!(answer == replica.original(), "{answer:?}");
    }
    let codes = load.stop().await?;
    ensure!(codes.last().context("no requests")? == "200");
    Ok(())
}
