//! The clusters of a session over several: which they are, before and after its start, and events about them.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fmt;
use std::time::Duration;

use anyhow::{Result, bail};
use api::connect::{AgentEndpoints, ClusterEndpoints};
use api::session::{SessionCluster, SessionId};
use api::{Feature, MirrordOperator};
use cluster::Cluster;
use proxy::{Event, EventSink};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::exec::progress::Progress;

/// Shorter outages of a cluster are not reported: a Primary that was restarted has to reconnect.
const REPORT_DELAY: Duration = Duration::from_secs(2);

/// How often the operator is polled for the readiness of the clusters of a session.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The clusters that a session covers, for display. Empty with a single cluster.
#[derive(Debug, Default)]
pub(crate) struct ClusterSummary(Vec<ClusterEndpoints>);

impl ClusterSummary {
    pub(crate) fn of(clusters: Vec<ClusterEndpoints>) -> Self {
        Self(clusters)
    }
}

impl fmt::Display for ClusterSummary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        let named = self.0.iter().map(|cluster| {
            let default = if cluster.is_default { " (Default)" } else { "" };
            let state = match cluster.error {
                Some(_) => " (not ready yet)",
                None => "",
            };
            format!("{}{default}{state}", cluster.name)
        });
        let named: Vec<String> = named.collect();
        let clusters = if named.len() == 1 {
            "cluster"
        } else {
            "clusters"
        };
        write!(formatter, " in the {clusters} {}", named.join(", "))
    }
}

/// Fails if the settings demand several clusters and the operator coordinates none. Otherwise the user would only notice
/// missing traffic.
pub(super) async fn ensure_primary(cluster: &Cluster) -> Result<()> {
    let operator = cluster::get_operator(cluster).await?;
    if !is_primary(&operator) {
        bail!(
            "the settings say `multi_cluster: true`, and the operator of this cluster coordinates no others. Leave the \
             setting out, or use the context of the Primary"
        );
    }
    Ok(())
}

/// Shows in which clusters a session is being created and which of them are ready, if the operator is a Primary and the user
/// may read that. It never completes, and runs beside the start of the session: the operator decides whether there are
/// several clusters.
pub(super) async fn announce(cluster: &Cluster, id: SessionId, progress: &Progress) -> Infallible {
    match cluster::get_operator(cluster).await {
        Ok(operator) if is_primary(&operator) => {
            let names = workload_clusters(&operator).join(", ");
            progress.startup_step(format!("creating the session in {names}"));
            for error in cluster_errors(&operator) {
                progress.warn(&error);
            }
            show_readiness(cluster, id, progress).await;
        }
        Ok(_) => {}
        Err(error) => tracing::debug!(%error, "operator not readable"),
    }
    std::future::pending().await
}

/// Runs until it is cancelled. Returns early if the user may not read sessions.
async fn show_readiness(cluster: &Cluster, id: SessionId, progress: &Progress) {
    loop {
        sleep(POLL_INTERVAL).await;
        match cluster::get_session(cluster, id).await {
            Ok(session) => {
                if let Some(text) = readiness(&session.spec.clusters) {
                    progress.rename(text);
                }
            }
            // The session does not exist yet, or the operator is busy.
            Err(cluster::Error::OperatorRefused(_) | cluster::Error::OperatorBusy(_)) => {}
            Err(error) => {
                tracing::debug!(%error, "session not readable");
                return;
            }
        }
    }
}

fn readiness(clusters: &[SessionCluster]) -> Option<String> {
    let named = clusters
        .iter()
        .map(|cluster| match (cluster.ready, &cluster.error) {
            (true, _) => format!("{} (ready)", cluster.name),
            (false, Some(error)) => format!("{} ({error})", cluster.name),
            (false, None) => cluster.name.clone(),
        });
    let named: Vec<String> = named.collect();
    (!named.is_empty()).then(|| format!("creating the session in {}", named.join(", ")))
}

fn is_primary(operator: &MirrordOperator) -> bool {
    let mut features = operator.spec.supported_features.iter();
    features.any(|feature| feature == Feature::MultiClusterPrimary.as_str())
}

/// The clusters of a Primary's sessions. `None` if the operator is for a single cluster.
pub(crate) fn coordinated_clusters(operator: &MirrordOperator) -> Option<Vec<String>> {
    is_primary(operator).then(|| workload_clusters(operator))
}

fn workload_clusters(operator: &MirrordOperator) -> Vec<String> {
    let roles = operator.spec.multi_cluster.as_ref();
    let primary = roles.filter(|roles| !roles.management_only);
    let primary = primary.map(|roles| roles.cluster_name.clone());
    let members = operator.status.connected_clusters.iter();
    let members = members.map(|cluster| cluster.name.clone());
    primary.into_iter().chain(members).collect()
}

/// The errors of member clusters, which may keep a session from starting.
fn cluster_errors(operator: &MirrordOperator) -> Vec<String> {
    let clusters = operator.status.connected_clusters.iter();
    let errors = clusters.filter_map(|cluster| {
        let error = cluster.error.as_ref()?;
        let name = &cluster.name;
        Some(format!(
            "the operator cannot reach the cluster {name}: {error}"
        ))
    });
    errors.collect()
}

/// Whether a cluster, or a pod in one, is not ready yet, while the Default is reachable.
pub(super) fn are_pending(now: &AgentEndpoints) -> bool {
    let endpoints_of = |cluster: &ClusterEndpoints| {
        let name = cluster.name.clone();
        let endpoints = now.endpoints.iter();
        endpoints.filter(move |endpoint| endpoint.cluster.as_ref() == Some(&name))
    };
    let is_ready = |cluster: &ClusterEndpoints| {
        cluster.error.is_none() && endpoints_of(cluster).any(|endpoint| endpoint.ready)
    };
    let is_complete = |cluster: &ClusterEndpoints| {
        let mut endpoints = endpoints_of(cluster);
        is_ready(cluster) && endpoints.all(|endpoint| endpoint.ready || endpoint.error.is_some())
    };
    let mut defaults = now.clusters.iter().filter(|cluster| cluster.is_default);
    defaults.any(is_ready) && !now.clusters.iter().all(is_complete)
}

/// Emits events about clusters that become unreachable and reachable again, as long as the session runs.
pub(super) async fn watch(mut endpoints: watch::Receiver<AgentEndpoints>, events: EventSink) {
    let mut unreachable = BTreeSet::new();
    endpoints.mark_changed();
    while endpoints.changed().await.is_ok() {
        sleep(REPORT_DELAY).await;
        let now = endpoints.borrow_and_update().clusters.clone();
        for event in changes(&mut unreachable, &now) {
            events(&event);
        }
    }
}

fn changes(unreachable: &mut BTreeSet<String>, now: &[ClusterEndpoints]) -> Vec<Event> {
    let mut events = Vec::new();
    for cluster in now {
        let name = cluster.name.clone();
        match &cluster.error {
            Some(reason) => {
                if unreachable.insert(name.clone()) {
                    events.push(Event::ClusterUnreachable {
                        cluster: name,
                        is_default: cluster.is_default,
                        reason: reason.clone(),
                    });
                }
            }
            None => {
                if unreachable.remove(&name) {
                    events.push(Event::ClusterRestored(name));
                }
            }
        }
    }
    events
}

#[cfg(test)]
mod tests {
    use api::connect::AgentEndpoint;
    use api::operator::{
        ConnectedCluster, MirrordOperatorSpec, MirrordOperatorStatus, MultiClusterRoles,
    };

    use super::*;

    fn cluster(name: &str, is_default: bool, error: Option<&str>) -> ClusterEndpoints {
        ClusterEndpoints {
            name: name.to_owned(),
            is_default,
            error: error.map(str::to_owned),
            handovers: 0,
        }
    }

    #[test]
    fn a_session_starts_with_all_clusters_or_without_those_that_are_late() {
        let endpoint = |cluster: &str, ready| AgentEndpoint {
            cluster: Some(cluster.to_owned()),
            ready,
            ..AgentEndpoint::default()
        };
        let check =
            |east: Option<&str>, west: Option<&str>, endpoints: &[&AgentEndpoint], expected| {
                let now = AgentEndpoints {
                    endpoints: endpoints.iter().copied().cloned().collect(),
                    clusters: vec![cluster("east", true, east), cluster("west", false, west)],
                    ..AgentEndpoints::default()
                };
                assert_eq!(are_pending(&now), expected, "{now:?}");
            };
        let (east, west) = (endpoint("east", true), endpoint("west", true));
        let unreachable = Some("it is being connected");
        check(None, None, &[&east, &west], false);
        check(None, unreachable, &[&east], true);
        // Without the Default, the session cannot start.
        check(unreachable, None, &[&west], false);
        check(None, unreachable, &[&east, &west], true);
        // The start waits for a starting pod, but not for a failed one.
        let mut other = endpoint("west", false);
        check(None, None, &[&east, &other], true);
        check(None, None, &[&east, &west, &other], true);
        other.error = Some("it cannot start".to_owned());
        check(None, None, &[&east, &west, &other], false);
        let one = AgentEndpoints {
            endpoints: vec![east],
            ..AgentEndpoints::default()
        };
        assert!(!are_pending(&one));
    }

    #[test]
    fn unreachable_and_recovered_clusters_are_reported() {
        let mut unreachable = BTreeSet::new();
        let mut check = |error: Option<&str>, expected: &[&str]| {
            let now = [cluster("east", true, None), cluster("west", false, error)];
            let events = changes(&mut unreachable, &now);
            let events: Vec<String> = events.iter().map(ToString::to_string).collect();
            assert_eq!(events, expected);
        };
        check(None, &[]);
        check(
            Some("timed out"),
            &[
                "cluster west cannot be reached (timed out): its traffic does not arrive, and the session continues without it",
            ],
        );
        check(Some("connection refused"), &[]);
        check(None, &["cluster west is reachable again"]);
        check(None, &[]);
    }

    #[test]
    fn clusters_are_named_with_the_default() {
        let clusters = ClusterSummary::of(vec![
            cluster("hub", false, None),
            cluster("east", true, None),
            cluster("west", false, Some("why")),
        ]);
        assert_eq!(
            clusters.to_string(),
            " in the clusters hub, east (Default), west (not ready yet)"
        );
        assert_eq!(ClusterSummary::default().to_string(), "");
    }

    #[test]
    fn readiness_names_the_ready_clusters_and_the_errors_of_others() {
        let part = |name: &str, ready| SessionCluster {
            name: name.to_owned(),
            ready,
            ..SessionCluster::default()
        };
        assert_eq!(
            readiness(&[part("east", true), part("west", false)]).unwrap(),
            "creating the session in east (ready), west"
        );
        let mut refused = part("west", false);
        refused.error = Some("its session cannot be created there: forbidden".to_owned());
        assert_eq!(
            readiness(&[part("east", true), refused]).unwrap(),
            "creating the session in east (ready), west (its session cannot be created there: forbidden)"
        );
        assert_eq!(readiness(&[]), None);
    }

    #[test]
    fn a_primary_reports_its_clusters() {
        let roles = |management_only| MultiClusterRoles {
            cluster_name: "hub".to_owned(),
            default_cluster: "east".to_owned(),
            management_only,
        };
        let member = |name: &str, error: Option<&str>| ConnectedCluster {
            name: name.to_owned(),
            error: error.map(str::to_owned),
            ..ConnectedCluster::default()
        };
        let operator = |management_only| {
            let spec = MirrordOperatorSpec {
                supported_features: vec!["ProxyApi".to_owned(), "MultiClusterPrimary".to_owned()],
                multi_cluster: Some(roles(management_only)),
                ..MirrordOperatorSpec::default()
            };
            let status = MirrordOperatorStatus {
                connected_clusters: vec![member("east", None), member("west", Some("no Secret"))],
                ..MirrordOperatorStatus::default()
            };
            MirrordOperator::new(spec, status)
        };
        assert!(is_primary(&operator(true)));
        let clusters = |operator| coordinated_clusters(&operator).unwrap();
        assert_eq!(clusters(operator(true)), ["east", "west"]);
        assert_eq!(clusters(operator(false)), ["hub", "east", "west"]);
        assert_eq!(
            cluster_errors(&operator(false)),
            ["the operator cannot reach the cluster west: no Secret"]
        );
        let single = MirrordOperator::new(
            MirrordOperatorSpec::default(),
            MirrordOperatorStatus::default(),
        );
        assert!(!is_primary(&single));
        assert_eq!(coordinated_clusters(&single), None);
    }
}
