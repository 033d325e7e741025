//! A session with a Service some of whose pods the user may not use: a user who may change a Service chooses its pods.

use anyhow::{Result, ensure};
use e2e::{Scenario, TestNamespace, until};

use super::super::cluster_sessions::ephemeral_agents;
use super::{Shell, User, wait_until_nothing_is_left};

/// The pods belong to different teams, and the Service selects both.
const PODS: &str = include_str!("../../../fixtures/shared-service.yaml");
const TARGETS: &str = "targets.operator.metalbear.co";

/// The session has the pods that the user may use, and others join when the user gets the right to them.
pub(super) async fn a_service_gives_no_right_to_its_pods(
    scenario: &Scenario<'_>,
    shop: &TestNamespace,
) -> Result<()> {
    shop.apply(PODS)?;
    for pod in ["mine", "theirs"] {
        shop.wait_until_ready(pod).await?;
    }
    let user = User::new(shop, "otto")?;
    allow(shop, &user, "ours", &["service.shared", "pod.mine"]).await?;
    let mut session = Shell::start(user.session(scenario, shop, "service/shared")?)?;
    ensure!(session.run("echo $TEAM").await? == "mine");
    let refusal = error_of(shop, "theirs")?;
    let expected = "may have a session with service/shared, and not with pod/theirs";
    ensure!(refusal.contains(expected), "{refusal}");
    ensure!(error_of(shop, "mine")?.is_empty());
    let agents = pods_with_agents(shop).await?;
    ensure!(agents == ["mine"], "{agents:?}");

    allow(shop, &user, "theirs", &["pod.theirs"]).await?;
    // A change of the pod is reconciled at once.
    shop.kubectl(&["annotate", "pod", "theirs", "reviewed=again"])?;
    until("the other pod to join", async || {
        let agents = pods_with_agents(shop).await?;
        Ok((agents == ["mine", "theirs"]).then_some(()))
    })
    .await?;
    let output = session.end()?;
    ensure!(output.code == Some(0), "{output}");
    wait_until_nothing_is_left(shop).await?;
    shop.kubectl(&["delete", "pod", "mine", "theirs"]).map(drop)
}

/// Gives a user the right to these targets, and waits until the API server knows it.
async fn allow(shop: &TestNamespace, user: &User, role: &str, targets: &[&str]) -> Result<()> {
    let resource = format!("--resource={TARGETS}");
    let names: Vec<String> = targets
        .iter()
        .map(|name| format!("--resource-name={name}"))
        .collect();
    let mut arguments = vec!["create", "role", role, "--verb=proxy", &resource];
    arguments.extend(names.iter().map(String::as_str));
    shop.kubectl(&arguments)?;
    let account = format!("{}:{}", shop.name, user.name);
    let (named, bound) = (
        format!("--role={role}"),
        format!("--serviceaccount={account}"),
    );
    shop.kubectl(&["create", "rolebinding", role, &named, &bound])?;
    let account = format!("--as=system:serviceaccount:{account}");
    for target in targets {
        let target = format!("{TARGETS}/{target}");
        until("a permission to take effect", async || {
            Ok(Some(
                shop.kubectl(&["auth", "can-i", "proxy", &target, &account])?,
            ))
        })
        .await?;
    }
    Ok(())
}

/// Why a pod is not part of the only session.
fn error_of(shop: &TestNamespace, pod: &str) -> Result<String> {
    let errors = format!("--output=jsonpath={{.items[*].status.pods[?(@.name==\"{pod}\")].error}}");
    shop.kubectl(&["get", "mirrordclustersessions", &errors])
}

async fn pods_with_agents(shop: &TestNamespace) -> Result<Vec<String>> {
    let agents = ephemeral_agents(shop).await?.into_iter();
    let mut pods: Vec<String> = agents
        .filter_map(|(pod, _, _)| pod.metadata.name)
        .filter(|pod| !pod.starts_with("checkout-"))
        .collect();
    pods.sort();
    Ok(pods)
}
