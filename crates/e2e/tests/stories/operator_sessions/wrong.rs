//! What is said when there is no operator, when it is down, when it is not wanted, and when rights are missing.

use anyhow::{Result, ensure};
use e2e::machine::Ended;
use e2e::{Stage, Story, until};

use super::super::cluster_sessions::{start_checkout, succeed};
use super::super::operator::Operator;
use super::super::surroundings::{exec_for, standin_for};
use super::{User, ask_operator, nothing_is_left, session_for, with_operator};

pub(super) async fn what_is_wrong_is_said(story: &Story<'_>) -> Result<()> {
    let shop = story.stage_in(0).await?;
    start_checkout(&shop)?;
    without_an_operator(story, &shop)?;
    near_misses_are_named(story, &shop)?;
    with_operator(story, async |operator| {
        rights_are_those_at_the_operator(story, &shop)?;
        an_operator_can_be_left_out(story, &shop)?;
        nothing_is_left(&shop).await?;
        an_operator_that_is_down_is_no_reason_to_guess(story, &shop, operator).await
    })
    .await
}

const GREETING: [&str; 3] = ["--", "printenv", "GREETING"];

fn without_an_operator(story: &Story<'_>, shop: &Stage) -> Result<()> {
    for refused in [
        Ended::of(
            session_for(story, shop, "deployment/checkout")?
                .arg("--operator")
                .args(GREETING),
        )?,
        ask_operator(story, shop, &["status"])?,
        ask_operator(story, shop, &["session", "list"])?,
    ] {
        ensure!(refused.code == Some(125), "{refused}");
        ensure!(
            refused
                .stderr
                .contains("there is no operator in this cluster"),
            "{refused}"
        );
    }
    let ended = succeed(exec_for(story, shop, "deployment/checkout")?.args(GREETING))?;
    ensure!(ended.stdout.trim() == "from the pod", "{ended}");
    ensure!(!ended.stderr.contains("operator"), "{ended}");
    Ok(())
}

/// Whoever names what is not there is told what is like it, or what is missing.
fn near_misses_are_named(story: &Story<'_>, shop: &Stage) -> Result<()> {
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
        let mut session = exec_for(story, shop, target)?;
        let refused = succeed_not(session.args(flags).args(GREETING))?;
        ensure!(refused.stderr.contains(expected), "{expected}: {refused}");
    }
    let mut listing = standin_for(story, shop)?;
    let listed = succeed(listing.args(["ls", "-n", "nowhere"]))?;
    ensure!(
        listed.stderr.contains("there is no namespace nowhere"),
        "{listed}"
    );
    Ok(())
}

/// What is asked for is granted, and then the session works, with this right and no other.
fn rights_are_those_at_the_operator(story: &Story<'_>, shop: &Stage) -> Result<()> {
    let user = User::new(shop, "anna")?;
    let session = |target: &str, more: &[&str]| -> Result<Ended> {
        let mut session = user.session(story, shop, target)?;
        Ended::of(session.args(more).args(GREETING))
    };
    let refused = session("deployment/checkout", &[])?;
    ensure!(refused.code == Some(125), "{refused}");
    user.grant(shop, &refused)?;
    let ended = session("deployment/checkout", &[])?;
    ensure!(ended.code == Some(0), "{ended}");
    ensure!(ended.stdout.trim() == "from the pod", "{ended}");
    // Another target is another right, and the user's own rights are none.
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
    let mut listing = standin_for(story, shop)?;
    let refused = Ended::of(
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
    // The target is not there: the operator's own words.
    let refused = succeed_not(session_for(story, shop, "deployment/nobody")?.args(GREETING))?;
    ensure!(refused.stderr.contains("deployment/nobody"), "{refused}");
    Ok(())
}

fn succeed_not(command: &mut std::process::Command) -> Result<Ended> {
    let ended = Ended::of(command)?;
    ensure!(ended.code == Some(125), "{ended}");
    Ok(ended)
}

fn an_operator_can_be_left_out(story: &Story<'_>, shop: &Stage) -> Result<()> {
    let mut session = exec_for(story, shop, "deployment/checkout")?;
    session.env("STANDIN_OPERATOR", "false").args(GREETING);
    let ended = succeed(&mut session)?;
    ensure!(!ended.stderr.contains("through the operator"), "{ended}");
    let mut session = session_for(story, shop, "deployment/checkout")?;
    session.env("STANDIN_OPERATOR", "true").args(GREETING);
    let ended = succeed(&mut session)?;
    ensure!(ended.stderr.contains("through the operator"), "{ended}");
    Ok(())
}

async fn an_operator_that_is_down_is_no_reason_to_guess(
    story: &Story<'_>,
    shop: &Stage,
    operator: &Operator,
) -> Result<()> {
    let scale = ["scale", "deployment/mirrord-operator", "--replicas=0"];
    operator.stage.kubectl(&scale)?;
    let available = "--output=jsonpath={.status.conditions[?(@.type==\"Available\")].status}";
    until("the API to be unavailable", async || {
        let service = ["get", "apiservice", "v1.operator.metalbear.co", available];
        Ok((shop.kubectl(&service)? == "False").then_some(()))
    })
    .await?;
    for refused in [
        succeed_not(exec_for(story, shop, "deployment/checkout")?.args(GREETING))?,
        ask_operator(story, shop, &["status"])?,
    ] {
        for expected in ["does not answer", "--no-operator", "kubectl get apiservice"] {
            ensure!(refused.stderr.contains(expected), "{expected}: {refused}");
        }
    }
    let listed = succeed(standin_for(story, shop)?.arg("ls"))?;
    ensure!(listed.stdout.contains("deployment/checkout"), "{listed}");
    ensure!(listed.stderr.contains("with your own rights"), "{listed}");
    let mut session = exec_for(story, shop, "deployment/checkout")?;
    let ended = succeed(session.arg("--no-operator").args(GREETING))?;
    ensure!(ended.stdout.trim() == "from the pod", "{ended}");
    Ok(())
}
