//! Errors when there is no operator, when it is down or disabled, and when permissions are missing; and what the operator
//! refuses while sessions run.

use anyhow::{Result, ensure};
use e2e::machine::ProgramOutput;
use e2e::{Scenario, TestNamespace, until};

use super::super::cluster_sessions::{start_checkout, succeed};
use super::super::operator::Operator;
use super::super::support::{exec_for, standin_for};
use super::shared_service::a_service_gives_no_right_to_its_pods;
use super::unconfirmed::an_agent_that_does_not_confirm_gets_no_traffic;
use super::{
    Shell, User, run_operator_command, session_for, wait_until_nothing_is_left,
    with_operator_values,
};

pub(super) async fn errors_are_reported(scenario: &Scenario<'_>) -> Result<()> {
    let shop = scenario.namespace_in(0).await?;
    start_checkout(&shop)?;
    without_an_operator(scenario, &shop)?;
    similar_targets_are_suggested(scenario, &shop)?;
    // The session with a target that does not exist is kept for the TTL.
    let values = "operator.agent.mode=ephemeral,operator.session.ttlSecs=15,operator.session.rightsReviewSecs=1,\
                  operator.session.policyConfirmationSecs=2";
    with_operator_values(scenario, values, async |operator| {
        let user = permissions_are_checked_by_the_operator(scenario, &shop)?;
        a_removed_permission_ends_the_session(scenario, &shop, &user).await?;
        a_service_gives_no_right_to_its_pods(scenario, &shop).await?;
        an_agent_that_does_not_confirm_gets_no_traffic(scenario, &shop, operator).await?;
        the_operator_can_be_disabled(scenario, &shop)?;
        wait_until_nothing_is_left(&shop).await?;
        an_operator_that_is_down_is_reported(scenario, &shop, operator).await
    })
    .await
}

const GREETING: [&str; 3] = ["--", "printenv", "GREETING"];

fn without_an_operator(scenario: &Scenario<'_>, shop: &TestNamespace) -> Result<()> {
    for refused in [
        ProgramOutput::of(
            session_for(scenario, shop, "deployment/checkout")?
                .arg("--operator")
                .args(GREETING),
        )?,
        run_operator_command(scenario, shop, &["status"])?,
        run_operator_command(scenario, shop, &["session", "list"])?,
    ] {
        ensure!(refused.code == Some(125), "{refused}");
        ensure!(
            refused
                .stderr
                .contains("there is no operator in this cluster"),
            "{refused}"
        );
    }
    let output = succeed(exec_for(scenario, shop, "deployment/checkout")?.args(GREETING))?;
    ensure!(output.stdout.trim() == "from the pod", "{output}");
    ensure!(!output.stderr.contains("operator"), "{output}");
    Ok(())
}

/// For a target that does not exist, the error suggests a similar one or reports what is missing.
fn similar_targets_are_suggested(scenario: &Scenario<'_>, shop: &TestNamespace) -> Result<()> {
    let cases: [(&str, &[&str], &str); 3] = [
        (
            "deployment/chekout",
            &[],
            "Did you mean deployment/checkout?",
        ),
        (
            "statefulset/checkout",
            &[],
            "Did you mean deployment/checkout?",
        ),
        (
            "deployment/checkout",
            &["-n", "nowhere"],
            "There is no such namespace",
        ),
    ];
    for (target, flags, expected) in cases {
        let mut session = exec_for(scenario, shop, target)?;
        let refused = fail(session.args(flags).args(GREETING))?;
        ensure!(refused.stderr.contains(expected), "{expected}: {refused}");
    }
    let mut listing = standin_for(scenario, shop)?;
    let listed = succeed(listing.args(["ls", "-n", "nowhere"]))?;
    ensure!(
        listed.stderr.contains("there is no namespace nowhere"),
        "{listed}"
    );
    Ok(())
}

/// After the permission that the message lists is granted, the session works with that permission alone.
fn permissions_are_checked_by_the_operator(
    scenario: &Scenario<'_>,
    shop: &TestNamespace,
) -> Result<User> {
    let user = User::new(shop, "anna")?;
    let session = |target: &str, more: &[&str]| -> Result<ProgramOutput> {
        let mut session = user.session(scenario, shop, target)?;
        ProgramOutput::of(session.args(more).args(GREETING))
    };
    let refused = session("deployment/checkout", &[])?;
    ensure!(refused.code == Some(125), "{refused}");
    user.grant(shop, &refused)?;
    let output = session("deployment/checkout", &[])?;
    ensure!(output.code == Some(0), "{output}");
    ensure!(output.stdout.trim() == "from the pod", "{output}");
    // Another target needs another permission, and the user has none in the cluster itself.
    let refused = session("pod/other", &[])?;
    ensure!(
        refused.stderr.contains("resourceNames: [pod.other]"),
        "{refused}"
    );
    let refused = session(
        "deployment/checkout",
        &["--no-operator", "--agent-image=registry.lab/standind:1"],
    )?;
    ensure!(refused.stderr.contains("pods/portforward"), "{refused}");
    let mut listing = standin_for(scenario, shop)?;
    let refused = ProgramOutput::of(
        listing
            .args(["operator", "session", "list", "--kubeconfig"])
            .arg(&user.kubeconfig),
    )?;
    for expected in [
        "kind: ClusterRole",
        "resources: [sessions]",
        "verbs: [list]",
    ] {
        ensure!(refused.stderr.contains(expected), "{refused}");
    }
    // The operator reports that the target does not exist.
    let refused = fail(session_for(scenario, shop, "deployment/missing")?.args(GREETING))?;
    ensure!(refused.stderr.contains("deployment/missing"), "{refused}");
    Ok(user)
}

/// The session ends although its client stays connected, and the user sees why.
async fn a_removed_permission_ends_the_session(
    scenario: &Scenario<'_>,
    shop: &TestNamespace,
    user: &User,
) -> Result<()> {
    let mut session = Shell::start(user.session(scenario, shop, "deployment/checkout")?)?;
    ensure!(session.run("echo $GREETING").await? == "from the pod");
    shop.kubectl(&["delete", "rolebinding", user.name])?;
    session
        .wait_for_message("the right to it was removed: ")
        .await?;
    let message = session.stderr()?;
    ensure!(
        message.contains("may not have a session with deployment/checkout"),
        "{message}"
    );
    session.kill()?;
    wait_until_nothing_is_left(shop).await
}

/// Runs a command that must fail before the program starts.
fn fail(command: &mut std::process::Command) -> Result<ProgramOutput> {
    let output = ProgramOutput::of(command)?;
    ensure!(output.code == Some(125), "{output}");
    Ok(output)
}

fn the_operator_can_be_disabled(scenario: &Scenario<'_>, shop: &TestNamespace) -> Result<()> {
    let mut session = exec_for(scenario, shop, "deployment/checkout")?;
    session.env("STANDIN_OPERATOR", "false").args(GREETING);
    let output = succeed(&mut session)?;
    ensure!(!output.stderr.contains("through the operator"), "{output}");
    let mut session = session_for(scenario, shop, "deployment/checkout")?;
    session.env("STANDIN_OPERATOR", "true").args(GREETING);
    let output = succeed(&mut session)?;
    ensure!(output.stderr.contains("through the operator"), "{output}");
    Ok(())
}

async fn an_operator_that_is_down_is_reported(
    scenario: &Scenario<'_>,
    shop: &TestNamespace,
    operator: &Operator,
) -> Result<()> {
    let scale = ["scale", "deployment/mirrord-operator", "--replicas=0"];
    operator.namespace.kubectl(&scale)?;
    let available = "--output=jsonpath={.status.conditions[?(@.type==\"Available\")].status}";
    until("the API to be unavailable", async || {
        let service = ["get", "apiservice", "v1.operator.metalbear.co", available];
        Ok((shop.kubectl(&service)? == "False").then_some(()))
    })
    .await?;
    for refused in [
        fail(exec_for(scenario, shop, "deployment/checkout")?.args(GREETING))?,
        run_operator_command(scenario, shop, &["status"])?,
    ] {
        for expected in [
            "does not respond",
            "--no-operator",
            "kubectl get apiservice",
        ] {
            ensure!(refused.stderr.contains(expected), "{expected}: {refused}");
        }
    }
    let listed = succeed(standin_for(scenario, shop)?.arg("ls"))?;
    ensure!(listed.stdout.contains("deployment/checkout"), "{listed}");
    ensure!(listed.stderr.contains("with your own rights"), "{listed}");
    let mut session = exec_for(scenario, shop, "deployment/checkout")?;
    let output = succeed(session.arg("--no-operator").args(GREETING))?;
    ensure!(output.stdout.trim() == "from the pod", "{output}");
    Ok(())
}
