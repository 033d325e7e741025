//! The clusters of a session over several: which they are, before it begins and when it has, and what becomes of them.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fmt;
use std::time::Duration;

use anyhow::{Result, bail};
use api::connect::{PlaceCluster, Places};
use api::session::{SessionCluster, SessionId};
use api::{Feature, MirrordOperator};
use cluster::Cluster;
use proxy::{Event, Tell};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::exec::progress::Progress;

/// A cluster that is away for a shorter time is not worth a word: a Primary that was restarted connects anew.
const WORTH_A_WORD: Duration = Duration::from_secs(2);

/// How often the operator is asked how far the clusters of a session are.
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

/// The clusters that a session covers, as people read them. Empty, where there is one.
#[derive(Debug, Default)]
pub(crate) struct Clusters(Vec<PlaceCluster>);

impl Clusters {
    pub(crate) fn of(clusters: Vec<PlaceCluster>) -> Self {
        Self(clusters)
    }
}

impl fmt::Display for Clusters {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        let named = self.0.iter().map(|cluster| {
            let default = if cluster.is_default { " (Default)" } else { "" };
            let away = match cluster.error {
                Some(_) => " (not there yet)",
                None => "",
            };
            format!("{}{default}{away}", cluster.name)
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

/// Whoever wants several clusters is told that there are none, rather than that nothing comes from them.
pub(super) async fn ensure_primary(cluster: &Cluster) -> Result<()> {
    let operator = cluster::operator(cluster).await?;
    if !is_primary(&operator) {
        bail!(
            "the settings say `multi_cluster: true`, and the operator of this cluster coordinates no others. Leave the \
             setting out, or use the context of the Primary"
        );
    }
    Ok(())
}

/// Says which clusters a session is being made in, and which of them have come, where the operator is a Primary and the
/// user may know. It waits for nobody, and nobody waits for it: whether there are several is the operator's to decide.
pub(super) async fn announce(cluster: &Cluster, id: SessionId, progress: &Progress) -> Infallible {
    match cluster::operator(cluster).await {
        Ok(operator) if is_primary(&operator) => {
            let names = workload_clusters(&operator).join(", ");
            progress.begin(format!("making the session in {names}"));
            for trouble in troubles(&operator) {
                progress.say(&trouble);
            }
            watch_beginning(cluster, id, progress).await;
        }
        Ok(_) => {}
        Err(error) => tracing::debug!(%error, "whether there are several clusters is not known"),
    }
    std::future::pending().await
}

/// Until somebody stops it, or the user may not see sessions.
async fn watch_beginning(cluster: &Cluster, id: SessionId, progress: &Progress) {
    loop {
        sleep(BETWEEN_LOOKS).await;
        match cluster::session(cluster, id).await {
            Ok(session) => {
                if let Some(text) = beginning(&session.spec.clusters) {
                    progress.rename(text);
                }
            }
            // It is not there yet, or the operator is busy with it.
            Err(cluster::Error::OperatorRefused(_) | cluster::Error::OperatorBusy(_)) => {}
            Err(error) => {
                tracing::debug!(%error, "how far the clusters are is not known");
                return;
            }
        }
    }
}

fn beginning(clusters: &[SessionCluster]) -> Option<String> {
    let named = clusters.iter().map(|cluster| match cluster.ready {
        true => format!("{} (ready)", cluster.name),
        false => cluster.name.clone(),
    });
    let named: Vec<String> = named.collect();
    (!named.is_empty()).then(|| format!("making the session in {}", named.join(", ")))
}

fn is_primary(operator: &MirrordOperator) -> bool {
    let mut features = operator.spec.supported_features.iter();
    features.any(|feature| feature == Feature::MultiClusterPrimary.as_str())
}

/// The clusters in which a Primary's sessions are. Nothing, where the operator is for one cluster.
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

/// What may keep a session from beginning.
fn troubles(operator: &MirrordOperator) -> Vec<String> {
    let clusters = operator.status.connected_clusters.iter();
    let away = clusters.filter_map(|cluster| {
        let error = cluster.error.as_ref()?;
        let name = &cluster.name;
        Some(format!(
            "the operator cannot reach the cluster {name}: {error}"
        ))
    });
    away.collect()
}

/// Whether a cluster, or a pod in one, has not come yet, while the cluster that has the answers is there.
pub(super) fn are_awaited(now: &Places) -> bool {
    let places_of = |cluster: &PlaceCluster| {
        let name = cluster.name.clone();
        let places = now.places.iter();
        places.filter(move |place| place.cluster.as_ref() == Some(&name))
    };
    let is_there = |cluster: &PlaceCluster| {
        cluster.error.is_none() && places_of(cluster).any(|place| place.ready)
    };
    let is_complete = |cluster: &PlaceCluster| {
        let mut places = places_of(cluster);
        is_there(cluster) && places.all(|place| place.ready || place.error.is_some())
    };
    let mut defaults = now.clusters.iter().filter(|cluster| cluster.is_default);
    defaults.any(is_there) && !now.clusters.iter().all(is_complete)
}

/// Tells of clusters that are away and back, as long as the session goes on.
pub(super) async fn follow(mut places: watch::Receiver<Places>, tell: Tell) {
    let mut away = BTreeSet::new();
    places.mark_changed();
    while places.changed().await.is_ok() {
        sleep(WORTH_A_WORD).await;
        let now = places.borrow_and_update().clusters.clone();
        for event in news(&mut away, &now) {
            tell(&event);
        }
    }
}

fn news(away: &mut BTreeSet<String>, now: &[PlaceCluster]) -> Vec<Event> {
    let mut news = Vec::new();
    for cluster in now {
        let name = cluster.name.clone();
        match &cluster.error {
            Some(reason) => {
                if away.insert(name.clone()) {
                    news.push(Event::ClusterAway {
                        cluster: name,
                        is_default: cluster.is_default,
                        reason: reason.clone(),
                    });
                }
            }
            None => {
                if away.remove(&name) {
                    news.push(Event::ClusterBack(name));
                }
            }
        }
    }
    news
}

#[cfg(test)]
mod tests {
    use api::connect::Place;
    use api::operator::{
        ConnectedCluster, MirrordOperatorSpec, MirrordOperatorStatus, MultiClusterRoles,
    };

    use super::*;

    fn cluster(name: &str, is_default: bool, error: Option<&str>) -> PlaceCluster {
        PlaceCluster {
            name: name.to_owned(),
            is_default,
            error: error.map(str::to_owned),
            moves: 0,
        }
    }

    #[test]
    fn a_session_begins_with_all_clusters_or_without_those_that_are_late() {
        let place = |cluster: &str, ready| Place {
            cluster: Some(cluster.to_owned()),
            ready,
            ..Place::default()
        };
        let check = |east: Option<&str>, west: Option<&str>, places: &[&Place], expected| {
            let now = Places {
                places: places.iter().copied().cloned().collect(),
                clusters: vec![cluster("east", true, east), cluster("west", false, west)],
                ..Places::default()
            };
            assert_eq!(are_awaited(&now), expected, "{now:?}");
        };
        let (east, west) = (place("east", true), place("west", true));
        let away = Some("it is being connected");
        check(None, None, &[&east, &west], false);
        check(None, away, &[&east], true);
        // There is nothing to begin with.
        check(away, None, &[&west], false);
        check(None, away, &[&east, &west], true);
        // A pod that starts is waited for, one that failed is not.
        let mut other = place("west", false);
        check(None, None, &[&east, &other], true);
        check(None, None, &[&east, &west, &other], true);
        other.error = Some("it cannot start".to_owned());
        check(None, None, &[&east, &west, &other], false);
        let one = Places {
            places: vec![east],
            ..Places::default()
        };
        assert!(!are_awaited(&one));
    }

    #[test]
    fn clusters_are_told_of_when_they_go_and_come() {
        let mut away = BTreeSet::new();
        let mut check = |error: Option<&str>, expected: &[&str]| {
            let now = [cluster("east", true, None), cluster("west", false, error)];
            let told = news(&mut away, &now);
            let told: Vec<String> = told.iter().map(ToString::to_string).collect();
            assert_eq!(told, expected);
        };
        check(None, &[]);
        check(
            Some("timed out"),
            &[
                "cluster west cannot be reached (timed out): its traffic does not come, and the session goes on without it",
            ],
        );
        check(Some("connection refused"), &[]);
        check(None, &["cluster west is there again"]);
        check(None, &[]);
    }

    #[test]
    fn clusters_are_named_with_the_default() {
        let clusters = Clusters::of(vec![
            cluster("hub", false, None),
            cluster("east", true, None),
            cluster("west", false, Some("why")),
        ]);
        assert_eq!(
            clusters.to_string(),
            " in the clusters hub, east (Default), west (not there yet)"
        );
        assert_eq!(Clusters::default().to_string(), "");
    }

    #[test]
    fn a_session_that_begins_says_which_clusters_have_come() {
        let part = |name: &str, ready| SessionCluster {
            name: name.to_owned(),
            ready,
            ..SessionCluster::default()
        };
        assert_eq!(
            beginning(&[part("east", true), part("west", false)]).unwrap(),
            "making the session in east (ready), west"
        );
        assert_eq!(beginning(&[]), None);
    }

    #[test]
    fn a_primary_says_where_sessions_are() {
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
            troubles(&operator(false)),
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
