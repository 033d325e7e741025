//! A Primary operator and its member clusters: a hub without targets, and two members with targets.

mod chart;
mod credential;
mod demos;
mod faults;
mod membership;
mod operator;
mod sessions;

use std::sync::Arc;

use anyhow::Result;
use e2e::{LazyEnvironment, Needs, OwnClusters, Scenario, scenario};
use lab::Progress;
use libtest_mimic::Trial;
use serde_json::json;

use self::membership::{
    a_removed_credential_is_shown, hub_values, members_are_shown, members_change_without_a_restart,
    tokens_renew_themselves,
};
use self::operator::Operator;
use self::sessions::{a_refused_child_is_shown, a_session_covers_both};
use super::support::agent_image;

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/standin-operator");
/// The namespace of the targets. It is the same in all clusters, as a session over several clusters needs it.
const SHOP: &str = "shop";

pub(crate) fn scenarios(environment: &Arc<LazyEnvironment>) -> Vec<Trial> {
    vec![
        scenario(
            environment,
            "a_chart_of_members_refuses_invalid_values",
            Needs::Machine,
            chart::refuses_invalid_values,
        ),
        scenario(
            environment,
            "a_chart_of_members_grants_exactly_the_expected_permissions",
            Needs::Machine,
            chart::grants_exactly_the_expected_permissions,
        ),
        scenario(
            environment,
            "one_session_covers_all_members_of_a_hub",
            Needs::Machine,
            one_session_covers_the_members,
        ),
        scenario(
            environment,
            "one_process_stands_in_for_a_service_in_three_clusters",
            Needs::Machine,
            demos::one_process_for_three_clusters,
        ),
        scenario(
            environment,
            "faults_among_members_leave_nothing",
            Needs::Machine,
            faults::member_faults_leave_nothing,
        ),
    ]
}

async fn one_session_covers_the_members(scenario: &Scenario<'_>) -> Result<()> {
    let clusters = OwnClusters::start(&["hub", "east", "west"], &Progress::to_stderr()).await?;
    clusters.lab().load_image(&agent_image()?)?;
    let hub = Operator::new(scenario, &clusters, "hub").await?;
    let east = Operator::new(scenario, &clusters, "east").await?;
    let west = Operator::new(scenario, &clusters, "west").await?;
    let is_member = json!({"operator": {"multiClusterMember": true, "replicas": 1}});
    for member in [&east, &west] {
        member.helm("install", &is_member)?;
        member.namespace.kubectl(&["create", "namespace", SHOP])?;
        let cluster = &member.namespace.cluster;
        cluster
            .client
            .apply(SHOP, include_str!("../../fixtures/web.yaml"))?;
        member.kubectl_in(
            SHOP,
            &["rollout", "status", "deployment/web", "--timeout=180s"],
        )?;
    }
    // The first token expires soon: it lasts only until the hub has requested its own.
    let first = credential::old_token(&clusters, &east.namespace)?;
    let values = hub_values(&clusters, &first)?;
    hub.helm("install", &values)?;
    members_are_shown(&hub, &west, &clusters).await?;
    tokens_renew_themselves(&hub, &clusters, &first, &values).await?;
    a_session_covers_both(&hub, &east, &west).await?;
    a_refused_child_is_shown(&hub, &east, &west).await?;
    members_change_without_a_restart(&hub, &values).await?;
    a_removed_credential_is_shown(&hub, &west, &clusters).await?;
    hub.uninstall()?;
    east.uninstall()?;
    west.uninstall()
}
