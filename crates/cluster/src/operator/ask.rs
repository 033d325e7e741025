//! What the operator is asked beside sessions of one's own: what it is, who uses it, and what there is to stand in for.

use api::session::{Session, SessionId};
use api::{GROUP_VERSION, MirrordOperator, Target};
use http::header::WARNING;
use http::{HeaderMap, Request};
use http_body_util::BodyExt as _;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::client::Body;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::refusal::{Answered, Asked, explained};
use crate::access::Cluster;
use crate::error::{Error, Result, code};
use crate::list::{Listed, Listing};

/// The name that the chart gives it.
const DEPLOYMENT: &str = "mirrord-operator";
const ACTION: &str = "ask the operator";

/// How many replicas an operator has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct OperatorReplicas {
    pub ready: i32,
    pub wanted: i32,
}

#[derive(Deserialize)]
struct List<T> {
    items: Vec<T>,
}

/// The operator's own object.
pub async fn operator(cluster: &Cluster) -> Result<MirrordOperator> {
    let asked = Asked::everywhere("see the operator", "mirrordoperators", "get");
    get(cluster, "mirrordoperators/operator", &asked).await
}

/// How many replicas of an operator there are. Nothing, where the user may not see them.
pub async fn operator_replicas(
    cluster: &Cluster,
    operator: &MirrordOperator,
) -> Result<Option<OperatorReplicas>> {
    let namespace = &operator.spec.operator_namespace;
    let deployments: Api<Deployment> = Api::namespaced(cluster.client.clone(), namespace);
    let found = match deployments.get(DEPLOYMENT).await {
        Ok(found) => found,
        Err(error) if matches!(code(&error), Some(403 | 404)) => return Ok(None),
        Err(error) => return Err(Error::api("read the operator's deployment", error)),
    };
    let wanted = found.spec.and_then(|spec| spec.replicas).unwrap_or(1);
    let ready = found.status.and_then(|status| status.ready_replicas);
    Ok(Some(OperatorReplicas {
        ready: ready.unwrap_or(0),
        wanted,
    }))
}

/// All sessions of the cluster, the oldest first.
pub async fn sessions(cluster: &Cluster) -> Result<Vec<Session>> {
    let asked = Asked::everywhere("list sessions", "sessions", "list");
    let list: List<Session> = get(cluster, "sessions", &asked).await?;
    let mut sessions = list.items;
    sessions.sort_by_key(|session| std::cmp::Reverse(session.spec.duration_secs));
    Ok(sessions)
}

/// One session.
pub async fn session(cluster: &Cluster, id: SessionId) -> Result<Session> {
    let asked = Asked::everywhere("see sessions", "sessions", "get");
    get(cluster, &format!("sessions/{id}"), &asked).await
}

/// Ends a session; its agents end with it.
pub async fn end_session(cluster: &Cluster, id: SessionId) -> Result<()> {
    let asked = Asked::everywhere("end sessions", "sessions", "delete");
    let request = Request::delete(format!("/apis/{GROUP_VERSION}/sessions/{id}"));
    ask::<serde_json::Value>(cluster, request, &asked)
        .await
        .map(drop)
}

/// What there is to stand in for in a namespace, and who does. An operator that coordinates other clusters lists all of
/// them, unless `multi_cluster` is false.
pub async fn list_through_operator(
    cluster: &Cluster,
    namespace: &str,
    multi_cluster: Option<bool>,
) -> Result<Listing> {
    let asked = Asked::targets(namespace);
    let query = match multi_cluster {
        Some(false) => "?multi_cluster=false",
        _ => "",
    };
    let path = format!("/apis/{GROUP_VERSION}/namespaces/{namespace}/targets{query}");
    let request = Request::get(path).body(Body::empty());
    let request = request.map_err(|error| Error::api(ACTION, kube::Error::HttpError(error)))?;
    let answer = cluster.client.send(request).await;
    let answer = answer.map_err(|error| cluster.first_error(ACTION, error))?;
    if !answer.status().is_success() {
        return Err(Answered::read(answer).await.explain(&asked));
    }
    let warnings = warnings(answer.headers());
    let body = answer.into_body().collect().await;
    let body = body.map_err(|error| cluster.first_error(ACTION, error))?;
    let list: List<Target> = serde_json::from_slice(&body.to_bytes())
        .map_err(|error| cluster.first_error(ACTION, kube::Error::SerdeError(error)))?;
    let targets = list.items.into_iter().map(listed);
    Ok(Listing {
        targets: targets.collect(),
        forbidden: Vec::new(),
        warnings,
    })
}

/// As Kubernetes gives warnings: `299 - "text"`.
fn warnings(headers: &HeaderMap) -> Vec<String> {
    let values = headers.get_all(WARNING).iter();
    let texts = values.filter_map(|value| {
        let (_, text) = value.to_str().ok()?.split_once('"')?;
        Some(text.strip_suffix('"')?.to_owned())
    });
    texts.collect()
}

fn listed(target: Target) -> Listed {
    let path = target.spec.target;
    let (kind, name) = path.split_once('/').unwrap_or((&path, ""));
    let sessions = target.status.sessions.into_iter();
    Listed {
        kind: kind.to_owned(),
        name: name.to_owned(),
        namespace: target.metadata.namespace.unwrap_or_default(),
        containers: target.spec.containers,
        available: target
            .status
            .replicas
            .and_then(|replicas| usize::try_from(replicas).ok()),
        users: sessions.map(|session| session.user).collect(),
        clusters: target.status.clusters,
        target: path,
    }
}

async fn get<T: DeserializeOwned>(cluster: &Cluster, path: &str, asked: &Asked) -> Result<T> {
    let request = Request::get(format!("/apis/{GROUP_VERSION}/{path}"));
    ask(cluster, request, asked).await
}

async fn ask<T: DeserializeOwned>(
    cluster: &Cluster,
    request: http::request::Builder,
    asked: &Asked,
) -> Result<T> {
    let request = request.body(Vec::new());
    let request = request.map_err(|error| Error::api(ACTION, kube::Error::HttpError(error)))?;
    let answer = cluster.client.request(request).await;
    explained(answer, asked, |error| cluster.first_error(ACTION, error))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn what_an_operator_warns_of_is_read() {
        let mut headers = HeaderMap::new();
        for value in [
            "299 - \"targets of the cluster west are missing: no route\"",
            "299 - nothing",
            "299 - \"not ended",
        ] {
            headers.append(WARNING, HeaderValue::from_static(value));
        }
        assert_eq!(
            warnings(&headers),
            ["targets of the cluster west are missing: no route"]
        );
    }

    /// A cluster whose operator answers this, at this address.
    fn answering(path: &'static str, code: u16, body: &'static str) -> Cluster {
        let service = tower::service_fn(move |request: Request<Body>| async move {
            let found = request.uri().path_and_query().map(ToString::to_string);
            assert_eq!(found.as_deref(), Some(path));
            let answer = http::Response::builder()
                .status(code)
                .header(WARNING, "299 - \"west is missing\"");
            answer.body(Body::from(body.as_bytes().to_vec()))
        });
        Cluster::new(kube::Client::new(service, "default"), "shop")
    }

    #[tokio::test]
    async fn what_several_clusters_have_is_listed_with_their_names() {
        const PATH: &str = "/apis/operator.metalbear.co/v1/namespaces/shop/targets";
        const ALONE: &str =
            "/apis/operator.metalbear.co/v1/namespaces/shop/targets?multi_cluster=false";
        const LIST: &str = r#"{"items": [{
            "apiVersion": "operator.metalbear.co/v1", "kind": "Target",
            "metadata": {"name": "deployment.web", "namespace": "shop"},
            "spec": {"target": "deployment/web", "containers": ["app"]},
            "status": {"replicas": 4, "clusters": ["east", "west"]}
        }]}"#;
        for (path, multi_cluster) in [(PATH, None), (PATH, Some(true)), (ALONE, Some(false))] {
            let cluster = answering(path, 200, LIST);
            let listing = list_through_operator(&cluster, "shop", multi_cluster);
            let listing = listing.await.unwrap();
            assert_eq!(listing.warnings, ["west is missing"]);
            let [web] = listing.targets.as_slice() else {
                panic!("{listing:?}");
            };
            assert_eq!(
                (web.target.as_str(), web.available),
                ("deployment/web", Some(4))
            );
            assert_eq!(web.clusters, ["east", "west"]);
        }
        let forbidden = r#"{"kind": "Status", "reason": "Forbidden", "message": "targets is forbidden: User \"eve\""}"#;
        let refused = list_through_operator(&answering(PATH, 403, forbidden), "shop", None).await;
        assert!(matches!(refused, Err(Error::MayNot { .. })), "{refused:?}");
        let strange = list_through_operator(&answering(PATH, 200, "<html>"), "shop", None).await;
        assert!(strange.is_err(), "{strange:?}");
    }
}
