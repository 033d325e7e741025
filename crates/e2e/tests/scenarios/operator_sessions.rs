//! Sessions through the operator: what a program sees and serves, permissions, recovery from faults, and error messages.
//! The settings and programs are the same as without an operator.

mod errors;
pub(crate) mod hostile;
mod info;
pub(crate) mod policies;
mod resuming;
pub(crate) mod secrets;
pub(crate) mod serving;
mod shared_service;
mod unconfirmed;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use e2e::machine::ProgramOutput;
use e2e::{LazyEnvironment, Needs, Scenario, TestNamespace, scenario, until};
use libtest_mimic::Trial;
use tempfile::TempDir;

use super::operator::Operator;
use super::support::{SessionProcess, exec_for, standin_for};

pub(crate) fn scenarios(environment: &Arc<LazyEnvironment>) -> Vec<Trial> {
    vec![
        scenario(
            environment,
            "through_the_operator_a_program_sees_and_serves",
            Needs::Lab,
            serving::a_program_sees_and_serves,
        ),
        scenario(
            environment,
            "through_the_operator_users_share_a_port_by_filters",
            Needs::Lab,
            serving::users_share_a_port_by_filters,
        ),
        scenario(
            environment,
            "through_the_operator_sessions_survive_cuts_and_restarts",
            Needs::Lab,
            resuming::sessions_survive_cuts_and_restarts,
        ),
        scenario(
            environment,
            "through_the_operator_errors_are_reported",
            Needs::Lab,
            errors::errors_are_reported,
        ),
    ]
}

/// `standin exec` as users of an operator run it, without an image of the agents.
pub(crate) fn session_for(
    scenario: &Scenario<'_>,
    namespace: &TestNamespace,
    target: &str,
) -> Result<Command> {
    let mut session = exec_for(scenario, namespace, target)?;
    session.env_remove("STANDIN_AGENT_IMAGE");
    Ok(session)
}

/// `standin operator …`.
fn run_operator_command(
    scenario: &Scenario<'_>,
    namespace: &TestNamespace,
    arguments: &[&str],
) -> Result<ProgramOutput> {
    let mut standin = standin_for(scenario, namespace)?;
    ProgramOutput::of(standin.arg("operator").args(arguments))
}

/// The sessions that the operator lists, with their ids and users.
pub(crate) fn listed_sessions(
    scenario: &Scenario<'_>,
    namespace: &TestNamespace,
) -> Result<Vec<serde_json::Value>> {
    let listed = run_operator_command(scenario, namespace, &["session", "list", "--json"])?;
    ensure!(listed.code == Some(0), "{listed}");
    Ok(serde_json::from_str(&listed.stdout)?)
}

/// Waits until the operator has no session, and no agent runs in the namespace's pods.
async fn wait_until_nothing_is_left(namespace: &TestNamespace) -> Result<()> {
    until("the session's object to be gone", async || {
        let left = namespace.kubectl(&["get", "mirrordclustersessions", "--output=name"])?;
        Ok(left.trim().is_empty().then_some(()))
    })
    .await?;
    until("the agents to exit", async || {
        let agents = super::cluster_sessions::ephemeral_agents(namespace).await?;
        Ok((!agents.iter().any(|(_, _, is_running)| *is_running)).then_some(()))
    })
    .await
}

/// Runs a part of a scenario with an operator, and uninstalls the operator afterwards, also after a failure: an API
/// without a server would block the deletion of namespaces.
async fn with_operator(
    scenario: &Scenario<'_>,
    run: impl AsyncFnOnce(&Operator) -> Result<()>,
) -> Result<()> {
    with_operator_values(scenario, "operator.agent.mode=ephemeral", run).await
}

/// The same, with values of the chart.
async fn with_operator_values(
    scenario: &Scenario<'_>,
    values: &str,
    run: impl AsyncFnOnce(&Operator) -> Result<()>,
) -> Result<()> {
    let operator = Operator::install_with(scenario, 0, values).await?;
    let result = run(&operator).await;
    result.and(operator.uninstall())
}

/// A session with a shell that reads commands. It is killed when this value is dropped.
pub(crate) struct Shell {
    session: SessionProcess,
    /// The number of commands, each of which prints one line.
    commands: usize,
}

impl Shell {
    pub(crate) fn start(mut session: Command) -> Result<Self> {
        session.args(["--", "bash"]).stdin(Stdio::piped());
        let session = SessionProcess::start(session, &[])?;
        Ok(Shell {
            session,
            commands: 0,
        })
    }

    /// Runs a command that prints one line, and returns the line.
    pub(crate) async fn run(&mut self, command: &str) -> Result<String> {
        self.session.send_line(command)?;
        self.commands += 1;
        let what = format!("the output of {command:?}");
        let output = until(&what, async || {
            let lines = self.session.stdout()?;
            let is_complete = lines.matches('\n').count() >= self.commands;
            let line = lines.lines().nth(self.commands - 1).map(str::to_owned);
            Ok(line.filter(|_| is_complete))
        });
        output.await.with_context(|| self.session.report())
    }

    /// The messages of `standin` so far.
    fn stderr(&self) -> Result<String> {
        self.session.stderr()
    }

    pub(crate) async fn wait_for_message(&self, text: &str) -> Result<()> {
        self.session.wait_for_message(text).await
    }

    /// Closes the standard input and waits until the session ends.
    pub(crate) fn end(self) -> Result<ProgramOutput> {
        self.session.end()
    }

    fn kill(self) -> Result<()> {
        self.session.kill()
    }
}

/// A user with an account and without permissions.
pub(crate) struct User {
    name: &'static str,
    _folder: TempDir,
    kubeconfig: PathBuf,
}

impl User {
    fn new(namespace: &TestNamespace, name: &'static str) -> Result<Self> {
        namespace.kubectl(&["create", "serviceaccount", name])?;
        let token = namespace.kubectl(&["create", "token", name])?;
        let context = namespace.cluster.client.name();
        let view = namespace.kubectl(&[
            "config",
            "view",
            "--raw",
            "--minify",
            "--flatten",
            "--output=json",
            "--context",
            context,
        ])?;
        let mut config: serde_json::Value = serde_json::from_str(&view)?;
        config["users"][0]["user"] = serde_json::json!({ "token": token.trim() });
        let folder = tempfile::tempdir()?;
        let kubeconfig = folder.path().join("kubeconfig");
        fs::write(&kubeconfig, config.to_string())?;
        Ok(User {
            name,
            _folder: folder,
            kubeconfig,
        })
    }

    fn token(&self) -> Result<String> {
        let config: serde_json::Value = serde_json::from_slice(&fs::read(&self.kubeconfig)?)?;
        let token = config["users"][0]["user"]["token"].as_str();
        Ok(token.context("no token")?.to_owned())
    }

    /// A session of this user.
    fn session(
        &self,
        scenario: &Scenario<'_>,
        namespace: &TestNamespace,
        target: &str,
    ) -> Result<Command> {
        let mut session = session_for(scenario, namespace, target)?;
        session
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .env("USER", self.name)
            .env_remove("SUDO_USER");
        Ok(session)
    }

    /// Grants exactly the permissions that the error message lists.
    fn grant(&self, namespace: &TestNamespace, refusal: &ProgramOutput) -> Result<()> {
        let role = refusal
            .stderr
            .find("apiVersion: rbac.authorization.k8s.io/v1")
            .map(|start| &refusal.stderr[start..])
            .with_context(|| format!("there is no rule in {refusal}"))?;
        namespace.apply(role)?;
        let account = format!("--serviceaccount={}:{}", namespace.name, self.name);
        let binding = [
            "create",
            "rolebinding",
            self.name,
            "--role=standin",
            &account,
        ];
        namespace.kubectl(&binding).map(drop)
    }
}
