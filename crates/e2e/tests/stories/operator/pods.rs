//! Agents that are pods on the nodes of targets, in the operator's namespace.

use anyhow::{Result, ensure};
use e2e::machine::Ended;
use e2e::{Story, until};

use super::Operator;
use crate::stories::surroundings::exec_for;

pub(super) async fn agents_are_pods(story: &Story<'_>) -> Result<()> {
    let operator = Operator::install_with(story, 0, "operator.agent.mode=pod").await?;
    let shop = story.stage_in(0).await?;
    shop.web().await?;
    let mut session = exec_for(story, &shop, "deployment/web")?;
    session.env_remove("STANDIN_AGENT_IMAGE");
    let ended = Ended::of(session.args(["--", "sh", "-c", "echo \"<$HOSTNAME>\""]))?;
    ensure!(ended.stdout.contains("<web-"), "{ended}");
    // The operator may start nothing in the pods themselves.
    let account = format!(
        "--as=system:serviceaccount:{}:mirrord-operator",
        operator.stage.namespace
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
            .stage
            .kubectl(&["get", "pods,jobs", selector, "--output=name"])?;
        Ok(left.trim().is_empty().then_some(()))
    })
    .await?;
    operator.uninstall()
}
