//! Sessions in a cluster, with the user's own rights and nothing installed.

mod ending;
mod rights;
mod seeing;

use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use e2e::machine::Ended;
use e2e::{LaterWorld, Needs, Stage, tell};
use k8s_openapi::api::core::v1::{EphemeralContainer, Pod};
use kube::api::ListParams;
use libtest_mimic::Trial;

pub(crate) fn stories(world: &Arc<LaterWorld>) -> Vec<Trial> {
    let clusters = Needs::Clusters;
    vec![
        tell(
            world,
            "cluster_sessions_see_what_the_target_sees",
            clusters,
            seeing::a_program_sees_what_the_target_sees,
        ),
        tell(
            world,
            "cluster_sessions_without_a_target_need_no_privileges",
            clusters,
            seeing::a_session_without_a_target_needs_no_privileges,
        ),
        tell(
            world,
            "cluster_targets_of_every_kind_are_found",
            clusters,
            seeing::targets_of_every_kind_are_found,
        ),
        tell(
            world,
            "cluster_agents_have_few_rights_and_one_client",
            clusters,
            rights::agents_have_few_rights_and_one_client,
        ),
        tell(
            world,
            "cluster_sessions_name_the_rights_that_are_missing",
            clusters,
            rights::missing_rights_are_named,
        ),
        tell(
            world,
            "cluster_sessions_explain_what_pod_security_forbids",
            clusters,
            rights::pod_security_is_explained,
        ),
        tell(
            world,
            "cluster_sessions_go_on_when_their_pod_is_deleted",
            clusters,
            ending::a_session_goes_on_when_its_pod_is_deleted,
        ),
        tell(
            world,
            "cluster_sessions_that_are_killed_leave_nothing",
            clusters,
            ending::killed_sessions_leave_nothing,
        ),
    ]
}

/// The stories that break what all share.
pub(crate) fn stories_alone(world: &Arc<LaterWorld>) -> Vec<Trial> {
    vec![tell(
        world,
        "cluster_sessions_outlive_a_restart_of_the_api_server",
        Needs::Lab,
        ending::a_session_outlives_the_api_server,
    )]
}

/// Two pods of `checkout`.
pub(crate) fn start_checkout(stage: &Stage) -> Result<()> {
    stage.apply(include_str!("../../fixtures/checkout.yaml"))?;
    stage
        .kubectl(&["rollout", "status", "deployment/checkout", "--timeout=120s"])
        .map(drop)
}

/// Runs it to its end, which must be a good one.
pub(crate) fn succeed(command: &mut Command) -> Result<Ended> {
    let ended = Ended::of(command)?;
    ensure!(ended.code == Some(0), "{command:?} {ended}");
    Ok(ended)
}

/// The agents that are or were in pods of a stage, with the pod's name and whether each runs.
pub(crate) async fn ephemeral_agents(
    stage: &Stage,
) -> Result<Vec<(Pod, EphemeralContainer, bool)>> {
    let pods = stage.pods().list(&ListParams::default()).await?;
    let mut agents = Vec::new();
    for pod in pods {
        let containers = pod
            .spec
            .iter()
            .flat_map(|spec| spec.ephemeral_containers.clone())
            .flatten();
        for container in containers {
            let statuses = pod
                .status
                .iter()
                .flat_map(|status| status.ephemeral_container_statuses.iter().flatten());
            let ended = statuses
                .filter(|status| status.name == container.name)
                .filter_map(|status| status.state.as_ref())
                .any(|state| state.terminated.is_some());
            agents.push((pod.clone(), container, !ended));
        }
    }
    Ok(agents)
}

/// Pods of agents that are pods.
async fn agent_pods(stage: &Stage) -> Result<Vec<String>> {
    let agents = ListParams::default().labels("app.kubernetes.io/name=standin-agent");
    let pods = stage.pods().list(&agents).await?;
    Ok(pods.iter().map(kube::ResourceExt::name_any).collect())
}

/// A session that waits for lines, and ends with the story.
pub(super) struct Waiting(Child);

impl Waiting {
    /// Starts a shell that reads commands, in a session.
    pub(super) fn start(command: &mut Command) -> Result<Self> {
        let child = command
            .args(["--", "bash"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        Ok(Waiting(child))
    }

    /// Lets the shell do something that prints one line, and returns the line.
    pub(super) fn ask(&mut self, command: &str) -> Result<String> {
        use std::io::{Read as _, Write as _};
        let input = self.0.stdin.as_mut().context("no input")?;
        writeln!(input, "{command}")?;
        let output = self.0.stdout.as_mut().context("no output")?;
        let mut line = Vec::new();
        let mut byte = [0];
        while output.read(&mut byte)? == 1 && byte != *b"\n" {
            line.extend(byte);
        }
        Ok(String::from_utf8_lossy(&line).into_owned())
    }

    /// Closes the input, and waits for the end.
    pub(super) fn end(mut self) -> Result<Ended> {
        use std::io::Read as _;
        drop(self.0.stdin.take());
        let mut errors = String::new();
        if let Some(mut stderr) = self.0.stderr.take() {
            stderr.read_to_string(&mut errors)?;
        }
        let status = self.0.wait()?;
        Ok(Ended::new(String::new(), errors, status))
    }

    /// Ends it as nobody should.
    fn kill(&mut self) -> Result<()> {
        self.0.kill()?;
        self.0.wait().map(drop).context("waiting")
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
