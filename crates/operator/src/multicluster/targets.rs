//! What there is to stand in for in all clusters of a Primary: each is asked for its own, and one that does not answer is
//! named instead.

use std::collections::BTreeMap;
use std::time::Duration;

use api::target::TargetStatus;
use api::{GROUP_VERSION, Target};
use futures_util::future::join_all;
use http::Request;
use kube::Client;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use tokio::time::timeout;

use super::envoy::Envoy;
use crate::Shared;
use crate::answer::Refusal;
use crate::error::chain;
use crate::targets::{Found, Wanted};
use crate::{sessions, targets};

/// Somebody waits for the list.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) async fn list(
    shared: &Shared,
    envoy: &Envoy,
    wanted: &Wanted,
) -> Result<Found, Refusal> {
    let clusters = envoy.clusters.workload_clusters().into_iter();
    let asked = clusters.map(async |cluster| {
        let found = match cluster == envoy.clusters.name {
            true => list_here(&shared.client, wanted).await,
            false => match envoy.client_of(cluster) {
                Ok(client) => list_there(&client, wanted).await,
                Err(why) => Err(why),
            },
        };
        (cluster, found)
    });
    merged(&envoy.clusters.default, join_all(asked).await)
}

async fn list_here(client: &Client, wanted: &Wanted) -> Result<Vec<Target>, String> {
    let listing = async {
        let sessions = sessions::list(client).await?;
        targets::list(client, wanted, &sessions).await
    };
    listing.await.map_err(|error| chain(&error))
}

#[derive(Deserialize)]
struct TargetList {
    items: Vec<Target>,
}

async fn list_there(client: &Client, wanted: &Wanted) -> Result<Vec<Target>, String> {
    let request = Request::get(address(wanted)).body(Vec::new());
    let request = request.map_err(|error| error.to_string())?;
    match timeout(PATIENCE, client.request::<TargetList>(request)).await {
        Ok(Ok(list)) => Ok(list.items),
        Ok(Err(kube::Error::Api(status))) => Err(status.message.clone()),
        Ok(Err(error)) => Err(chain(&error)),
        Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
    }
}

/// A member may be the Primary of others. These are not ours.
fn address(wanted: &Wanted) -> String {
    let namespace = match &wanted.namespace {
        Some(namespace) => format!("namespaces/{namespace}/"),
        None => String::new(),
    };
    let labels = match &wanted.labels {
        Some(labels) => format!(
            "&labelSelector={}",
            utf8_percent_encode(labels, NON_ALPHANUMERIC)
        ),
        None => String::new(),
    };
    format!("/apis/{GROUP_VERSION}/{namespace}targets?multi_cluster=false{labels}")
}

/// One list of all clusters' lists. A target that several have is one target, as it is one for a session; what it is made
/// of is the Default's to say.
fn merged(
    default: &str,
    asked: Vec<(&str, Result<Vec<Target>, String>)>,
) -> Result<Found, Refusal> {
    let mut all: BTreeMap<(Option<String>, Option<String>), Target> = BTreeMap::new();
    let mut warnings = Vec::new();
    let mut is_answered = asked.is_empty();
    for (cluster, found) in asked {
        let found = match found {
            Ok(found) => found,
            Err(why) => {
                warnings.push(format!(
                    "targets of the cluster {cluster} are missing: {why}"
                ));
                continue;
            }
        };
        is_answered = true;
        for mut target in found {
            target.status.clusters = vec![cluster.to_owned()];
            let key = (
                target.metadata.namespace.clone(),
                target.metadata.name.clone(),
            );
            match all.remove(&key) {
                Some(known) if cluster == default => {
                    let status = joined(known.status, &target.status);
                    all.insert(key, Target { status, ..target });
                }
                Some(known) => {
                    let status = joined(known.status.clone(), &target.status);
                    all.insert(key, Target { status, ..known });
                }
                None => drop(all.insert(key, target)),
            }
        }
    }
    if !is_answered {
        return Err(Refusal::unavailable(warnings.join("; ")));
    }
    Ok(Found {
        targets: all.into_values().collect(),
        warnings,
    })
}

/// A session over several clusters has a part in each, and is one session.
fn joined(mut known: TargetStatus, next: &TargetStatus) -> TargetStatus {
    known.replicas = match (known.replicas, next.replicas) {
        (Some(one), Some(other)) => Some(one.saturating_add(other)),
        (one, other) => one.or(other),
    };
    for session in &next.sessions {
        if !known.sessions.iter().any(|other| other.id == session.id) {
            known.sessions.push(session.clone());
        }
    }
    known.clusters.extend(next.clusters.iter().cloned());
    known
}

#[cfg(test)]
mod tests {
    use api::target::{TargetSession, TargetSpec};

    use super::*;

    fn target(name: &str, replicas: Option<i32>, container: &str, sessions: &[&str]) -> Target {
        let path = format!("deployment/{name}").parse().unwrap();
        let spec = TargetSpec {
            target: format!("deployment/{name}"),
            containers: vec![container.to_owned()],
            ports: Vec::new(),
        };
        let session = |id: &&str| TargetSession {
            id: (*id).to_owned(),
            user: "anna".to_owned(),
            ports: Vec::new(),
        };
        let status = TargetStatus {
            replicas,
            sessions: sessions.iter().map(session).collect(),
            clusters: Vec::new(),
        };
        Target::new("shop", &path, spec, status)
    }

    /// Name, containers, clusters, replicas and sessions.
    fn shown(found: &Found) -> Vec<String> {
        let shown = found.targets.iter().map(|target| {
            let status = &target.status;
            let sessions: Vec<_> = status.sessions.iter().map(|one| one.id.as_str()).collect();
            format!(
                "{} {} {} {:?} {}",
                target.spec.target,
                target.spec.containers.join(","),
                status.clusters.join(","),
                status.replicas,
                sessions.join(",")
            )
        });
        shown.collect()
    }

    #[test]
    fn what_several_clusters_have_is_listed_once_with_their_names() {
        let east = vec![
            target("web", Some(2), "app", &["1f"]),
            target("only-east", None, "app", &[]),
        ];
        let west = vec![
            target("web", Some(3), "other", &["1f", "2a"]),
            target("only-west", Some(1), "app", &[]),
        ];
        // Whichever comes first: it is the Default that says what a target is made of.
        for (default, container) in [("east", "app"), ("west", "other")] {
            let asked = vec![("east", Ok(east.clone())), ("west", Ok(west.clone()))];
            let found = merged(default, asked).unwrap();
            assert_eq!(
                shown(&found),
                [
                    "deployment/only-east app east None ".to_owned(),
                    "deployment/only-west app west Some(1) ".to_owned(),
                    format!("deployment/web {container} east,west Some(5) 1f,2a"),
                ]
            );
            assert_eq!(found.warnings, Vec::<String>::new());
        }
    }

    #[test]
    fn a_cluster_that_does_not_answer_is_named() {
        let east = vec![target("web", Some(2), "app", &[])];
        let cut = || Err("no route".to_owned());
        let found = merged("west", vec![("east", Ok(east)), ("west", cut())]).unwrap();
        assert_eq!(shown(&found), ["deployment/web app east Some(2) "]);
        let expected = "targets of the cluster west are missing: no route";
        assert_eq!(found.warnings, [expected]);
        // An empty list would say that there is nothing.
        let refusal = merged("west", vec![("east", cut()), ("west", cut())]).unwrap_err();
        assert_eq!(refusal.code, 503);
        assert!(refusal.message.contains(expected), "{}", refusal.message);
        assert!(merged("west", vec![("east", Ok(Vec::new()))]).is_ok());
    }

    #[test]
    fn members_are_asked_for_what_is_theirs_alone() {
        let all = "/apis/operator.metalbear.co/v1/targets?multi_cluster=false";
        assert_eq!(address(&Wanted::default()), all);
        let wanted = Wanted {
            namespace: Some("shop".to_owned()),
            labels: Some("app=web,tier!=db".to_owned()),
        };
        assert_eq!(
            address(&wanted),
            "/apis/operator.metalbear.co/v1/namespaces/shop/targets?multi_cluster=false\
             &labelSelector=app%3Dweb%2Ctier%21%3Ddb"
        );
    }
}
