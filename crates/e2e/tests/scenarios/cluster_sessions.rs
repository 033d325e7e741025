//! Sessions in a cluster with the user's own permissions, without an operator.

mod aws;
mod discovery;
mod recovery;
mod rights;

use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use e2e::machine::ProgramOutput;
use e2e::{LazyEnvironment, Needs, TestNamespace, scenario};
use k8s_openapi::api::core::v1::{EphemeralContainer, Pod};
use kube::api::ListParams;
use libtest_mimic::Trial;

pub(crate) fn scenarios(environment: &Arc<LazyEnvironment>) -> Vec<Trial> {
    let clusters = Needs::Clusters;
    vec![
        scenario(
            environment,
            "cluster_sessions_see_what_the_target_sees",
            clusters,
            discovery::a_program_sees_what_the_target_sees,
        ),
        scenario(
            environment,
            "cluster_sessions_without_a_target_need_no_privileges",
            clusters,
            discovery::a_session_without_a_target_needs_no_privileges,
        ),
        scenario(
            environment,
            "cluster_sessions_of_aws_tools_have_the_role_of_the_pod",
            Needs::Lab,
            aws::aws_tools_have_the_role_of_the_pod,
        ),
        scenario(
            environment,
            "cluster_targets_of_every_kind_are_found",
            clusters,
            discovery::targets_of_every_kind_are_found,
        ),
        scenario(
            environment,
            "cluster_agents_have_few_privileges_and_one_client",
            clusters,
            rights::agents_have_few_privileges_and_one_client,
        ),
        scenario(
            environment,
            "cluster_sessions_report_missing_permissions",
            clusters,
            rights::missing_permissions_are_reported,
        ),
        scenario(
            environment,
            "cluster_sessions_explain_what_pod_security_forbids",
            clusters,
            rights::pod_security_is_explained,
        ),
        scenario(
            environment,
            "cluster_sessions_continue_when_their_pod_is_deleted",
            clusters,
            recovery::a_session_continues_when_its_pod_is_deleted,
        ),
        scenario(
            environment,
            "cluster_sessions_that_are_killed_leave_nothing",
            clusters,
            recovery::killed_sessions_leave_nothing,
        ),
    ]
}

/// The scenarios that break shared parts of the cluster.
pub(crate) fn exclusive_scenarios(environment: &Arc<LazyEnvironment>) -> Vec<Trial> {
    vec![scenario(
        environment,
        "cluster_sessions_survive_a_restart_of_the_api_server",
        Needs::Lab,
        recovery::a_session_survives_an_api_server_restart,
    )]
}

/// Starts two pods of `checkout`.
pub(crate) fn start_checkout(namespace: &TestNamespace) -> Result<()> {
    namespace.apply(include_str!("../../fixtures/checkout.yaml"))?;
    namespace
        .kubectl(&["rollout", "status", "deployment/checkout", "--timeout=120s"])
        .map(drop)
}

/// Runs a command that must succeed.
pub(crate) fn succeed(command: &mut Command) -> Result<ProgramOutput> {
    let output = ProgramOutput::of(command)?;
    ensure!(output.code == Some(0), "{command:?} {output}");
    Ok(output)
}

/// All agents in ephemeral containers of a namespace: the pod, the container, and whether it is running.
pub(crate) async fn ephemeral_agents(
    namespace: &TestNamespace,
) -> Result<Vec<(Pod, EphemeralContainer, bool)>> {
    let pods = namespace.pods().list(&ListParams::default()).await?;
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
            let has_terminated = statuses
                .filter(|status| status.name == container.name)
                .filter_map(|status| status.state.as_ref())
                .any(|state| state.terminated.is_some());
            agents.push((pod.clone(), container, !has_terminated));
        }
    }
    Ok(agents)
}

/// The names of the pods of agents that run in their own pods.
async fn agent_pods(namespace: &TestNamespace) -> Result<Vec<String>> {
    let agents = ListParams::default().labels("app.kubernetes.io/name=standin-agent");
    let pods = namespace.pods().list(&agents).await?;
    Ok(pods.iter().map(kube::ResourceExt::name_any).collect())
}

/// A session with a shell that reads commands. It is killed when this value is dropped.
pub(super) struct ShellSession(Child);

impl ShellSession {
    /// Starts the shell in a session.
    pub(super) fn start(command: &mut Command) -> Result<Self> {
        let child = command
            .args(["--", "bash"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        Ok(ShellSession(child))
    }

    /// Runs a command that prints one line, and returns the line.
    pub(super) fn run(&mut self, command: &str) -> Result<String> {
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

    /// Closes the standard input and waits until the session ends.
    pub(super) fn end(mut self) -> Result<ProgramOutput> {
        use std::io::Read as _;
        drop(self.0.stdin.take());
        let mut errors = String::new();
        if let Some(mut stderr) = self.0.stderr.take() {
            stderr.read_to_string(&mut errors)?;
        }
        let status = self.0.wait()?;
        Ok(ProgramOutput::new(String::new(), errors, status))
    }

    /// Ends the session with SIGKILL.
    fn kill(&mut self) -> Result<()> {
        self.0.kill()?;
        self.0.wait().map(drop).context("waiting")
    }
}

impl Drop for ShellSession {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
