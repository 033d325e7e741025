//! The targets of all clusters of a Primary. An unreachable cluster causes a warning.

use std::collections::BTreeMap;
use std::time::Duration;

use api::target::TargetStatus;
use api::{GROUP_VERSION, Target};
use error_chain::error_chain;
use futures_util::future::join_all;
use http::Request;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::Client;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use tokio::time::timeout;

use super::bounds;
use super::member_clusters::MemberClusters;
use crate::Shared;
use crate::response::Refusal;
use crate::targets::{TargetFilter, TargetList};
use crate::{sessions, targets};

/// The timeout of the list of a member. A user waits for it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The number of targets in one response.
const PAGE_SIZE: usize = 500;
/// The limits of the list of one member.
const MAX_TARGETS: usize = 20_000;
const MAX_LIST_BYTES: usize = 16 * 1024 * 1024;

pub(crate) async fn list(
    shared: &Shared,
    members: &MemberClusters,
    filter: &TargetFilter,
) -> Result<TargetList, Refusal> {
    let membership = members.membership();
    let clusters = &membership.clusters;
    let names = clusters.workload_clusters().into_iter();
    let results = names.map(async |cluster| {
        let found = match cluster == clusters.name {
            true => list_local(&shared.client, filter).await,
            false => match members.client_of(cluster) {
                Ok(client) => list_member(&client, filter).await,
                Err(why) => Err(why),
            },
        };
        (cluster, found)
    });
    merge(&clusters.default, join_all(results).await)
}

async fn list_local(client: &Client, filter: &TargetFilter) -> Result<Vec<Target>, String> {
    let listing = async {
        let sessions = sessions::list(client).await?;
        targets::list(client, filter, &sessions).await
    };
    listing.await.map_err(|error| error_chain(&error))
}

#[derive(Deserialize)]
struct TargetPage {
    items: Vec<Target>,
    #[serde(default)]
    metadata: ListMeta,
}

async fn list_member(client: &Client, filter: &TargetFilter) -> Result<Vec<Target>, String> {
    let pages = list_pages(client, filter);
    timeout(REQUEST_TIMEOUT, pages).await.unwrap_or_else(|_| {
        let seconds = REQUEST_TIMEOUT.as_secs();
        Err(format!("no response within {seconds} s"))
    })
}

/// Lists all pages. A member of an older version has one.
pub(super) async fn list_pages(
    client: &Client,
    filter: &TargetFilter,
) -> Result<Vec<Target>, String> {
    let (mut targets, mut bytes, mut next) = (Vec::new(), 0, None);
    loop {
        let request = Request::get(page_path(filter, next.as_deref())).body(Vec::new());
        let request = request.map_err(|error| error.to_string())?;
        let text = client.request_text(request).await;
        let text = text.map_err(|error| match error {
            kube::Error::Api(status) => bounds::text(&status.message),
            error => bounds::text(&error_chain(&error)),
        })?;
        bytes += text.len();
        let page: TargetPage = serde_json::from_str(&text)
            .map_err(|error| bounds::text(&format!("its list cannot be read: {error}")))?;
        targets.extend(page.items);
        if bytes > MAX_LIST_BYTES || targets.len() > MAX_TARGETS {
            return Err(format!(
                "it lists more than {MAX_TARGETS} targets, or {} MiB; list one namespace",
                MAX_LIST_BYTES / 1024 / 1024
            ));
        }
        next = page.metadata.continue_.filter(|token| !token.is_empty());
        if next.is_none() {
            return Ok(targets);
        }
    }
}

fn page_path(filter: &TargetFilter, next: Option<&str>) -> String {
    let next = next.map_or_else(String::new, |next| {
        format!("&continue={}", utf8_percent_encode(next, NON_ALPHANUMERIC))
    });
    format!("{}&limit={PAGE_SIZE}{next}", list_path(filter))
}

/// The path of the list request. A member may be the Primary of other clusters, whose targets are excluded.
fn list_path(filter: &TargetFilter) -> String {
    let namespace = match &filter.namespace {
        Some(namespace) => format!("namespaces/{namespace}/"),
        None => String::new(),
    };
    let labels = match &filter.labels {
        Some(labels) => format!(
            "&labelSelector={}",
            utf8_percent_encode(labels, NON_ALPHANUMERIC)
        ),
        None => String::new(),
    };
    format!("/apis/{GROUP_VERSION}/{namespace}targets?multi_cluster=false{labels}")
}

/// Merges the lists of all clusters. A target that several clusters have is listed once, with the spec of the Default.
fn merge(
    default: &str,
    results: Vec<(&str, Result<Vec<Target>, String>)>,
) -> Result<TargetList, Refusal> {
    let mut all: BTreeMap<(Option<String>, Option<String>), Target> = BTreeMap::new();
    let mut warnings = Vec::new();
    let mut has_result = results.is_empty();
    for (cluster, found) in results {
        let found = match found {
            Ok(found) => found,
            Err(why) => {
                warnings.push(format!(
                    "targets of the cluster {cluster} are missing: {why}"
                ));
                continue;
            }
        };
        has_result = true;
        for mut target in found {
            target.status.clusters = vec![cluster.to_owned()];
            let key = (
                target.metadata.namespace.clone(),
                target.metadata.name.clone(),
            );
            match all.remove(&key) {
                Some(existing) if cluster == default => {
                    let status = merge_status(existing.status, &target.status);
                    all.insert(key, Target { status, ..target });
                }
                Some(existing) => {
                    let status = merge_status(existing.status.clone(), &target.status);
                    all.insert(key, Target { status, ..existing });
                }
                None => drop(all.insert(key, target)),
            }
        }
    }
    if !has_result {
        return Err(Refusal::unavailable(warnings.join("; ")));
    }
    Ok(TargetList {
        targets: all.into_values().collect(),
        warnings,
    })
}

/// Merges the status of a target in two clusters. A session over several clusters is listed once.
fn merge_status(mut existing: TargetStatus, next: &TargetStatus) -> TargetStatus {
    existing.replicas = match (existing.replicas, next.replicas) {
        (Some(one), Some(other)) => Some(one.saturating_add(other)),
        (one, other) => one.or(other),
    };
    for session in &next.sessions {
        if !existing.sessions.iter().any(|other| other.id == session.id) {
            existing.sessions.push(session.clone());
        }
    }
    existing.clusters.extend(next.clusters.iter().cloned());
    existing
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

    /// Name, containers, clusters, replicas and sessions of each target.
    fn summary(found: &TargetList) -> Vec<String> {
        let lines = found.targets.iter().map(|target| {
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
        lines.collect()
    }

    #[test]
    fn targets_of_several_clusters_are_listed_once() {
        let east = vec![
            target("web", Some(2), "app", &["1f"]),
            target("only-east", None, "app", &[]),
        ];
        let west = vec![
            target("web", Some(3), "other", &["1f", "2a"]),
            target("only-west", Some(1), "app", &[]),
        ];
        // The order does not matter: the spec is that of the Default.
        for (default, container) in [("east", "app"), ("west", "other")] {
            let results = vec![("east", Ok(east.clone())), ("west", Ok(west.clone()))];
            let found = merge(default, results).unwrap();
            assert_eq!(
                summary(&found),
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
    fn unreachable_clusters_cause_a_warning() {
        let east = vec![target("web", Some(2), "app", &[])];
        let unreachable = || Err("no route".to_owned());
        let found = merge("west", vec![("east", Ok(east)), ("west", unreachable())]).unwrap();
        assert_eq!(summary(&found), ["deployment/web app east Some(2) "]);
        let expected = "targets of the cluster west are missing: no route";
        assert_eq!(found.warnings, [expected]);
        // An empty list would be wrong without a response of any cluster.
        let refusal = merge(
            "west",
            vec![("east", unreachable()), ("west", unreachable())],
        )
        .unwrap_err();
        assert_eq!(refusal.code, 503);
        assert!(refusal.message.contains(expected), "{}", refusal.message);
        assert!(merge("west", vec![("east", Ok(Vec::new()))]).is_ok());
    }

    #[test]
    fn members_list_their_own_targets_only() {
        let all = "/apis/operator.metalbear.co/v1/targets?multi_cluster=false";
        assert_eq!(list_path(&TargetFilter::default()), all);
        let filter = TargetFilter {
            namespace: Some("shop".to_owned()),
            labels: Some("app=web,tier!=db".to_owned()),
        };
        assert_eq!(
            list_path(&filter),
            "/apis/operator.metalbear.co/v1/namespaces/shop/targets?multi_cluster=false\
             &labelSelector=app%3Dweb%2Ctier%21%3Ddb"
        );
    }

    /// A member that serves pages of targets: those of the first `count` names, each with this many bytes of labels.
    fn member(count: usize, bytes: usize, endless: bool) -> Client {
        let label = "x".repeat(bytes);
        crate::multicluster::stub::client(move |path| {
            let query = path.split_once('?').unwrap().1;
            let names = (0..count).map(|number| {
                let mut target = target(&format!("web-{number:06}"), None, "app", &[]);
                let labels = [("team".to_owned(), label.clone())];
                target.metadata.labels = Some(labels.into());
                target
            });
            let page = crate::targets::TargetPage::requested(names.collect(), query);
            let next = page.next.or_else(|| endless.then(|| "shop".to_owned()));
            let list = serde_json::json!({
                "apiVersion": GROUP_VERSION, "kind": "TargetList",
                "metadata": {"continue": next.unwrap_or_default()}, "items": page.targets,
            });
            crate::multicluster::stub::json_response(http::StatusCode::OK, &list)
        })
    }

    #[tokio::test]
    async fn a_members_list_is_read_in_pages_and_limited() {
        let too_many = "it lists more than 20000 targets, or 16 MiB; list one namespace";
        // The targets, the bytes of each, whether there is always another page, and how many are found.
        let cases = [
            (0, 0, false, Ok(0)),
            (1, 0, false, Ok(1)),
            (500, 0, false, Ok(500)),
            (1201, 0, false, Ok(1201)),
            (1201, 20_000, false, Err(too_many)),
            (700, 0, true, Err(too_many)),
        ];
        for (count, bytes, endless, expected) in cases {
            let client = member(count, bytes, endless);
            let found = list_pages(&client, &TargetFilter::default()).await;
            let found = found.map(|targets| targets.len());
            assert_eq!(found, expected.map_err(str::to_owned), "{count} {bytes}");
        }
    }
}
