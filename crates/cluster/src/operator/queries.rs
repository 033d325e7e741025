//! Requests to the operator besides the own session: its status, the sessions of all users, and the targets.

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

use super::refusal::{ErrorResponse, RequestContext, explain_error};
use crate::access::Cluster;
use crate::error::{Error, Result, code};
use crate::list::{ListedTarget, Listing};

/// The name of the operator's Deployment in the chart.
const DEPLOYMENT: &str = "mirrord-operator";
const ACTION: &str = "ask the operator";

/// How many replicas an operator has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct OperatorReplicas {
    pub ready: i32,
    pub desired: i32,
}

#[derive(Deserialize)]
struct List<T> {
    items: Vec<T>,
}

/// The operator's own object.
pub async fn get_operator(cluster: &Cluster) -> Result<MirrordOperator> {
    let context = RequestContext::cluster_wide("see the operator", "mirrordoperators", "get");
    get(cluster, "mirrordoperators/operator", &context).await
}

/// How many replicas of an operator there are. `None` if the user may not read its Deployment.
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
    let desired = found.spec.and_then(|spec| spec.replicas).unwrap_or(1);
    let ready = found.status.and_then(|status| status.ready_replicas);
    Ok(Some(OperatorReplicas {
        ready: ready.unwrap_or(0),
        desired,
    }))
}

/// All sessions of the cluster, the oldest first.
pub async fn list_sessions(cluster: &Cluster) -> Result<Vec<Session>> {
    let context = RequestContext::cluster_wide("list sessions", "sessions", "list");
    let list: List<Session> = get(cluster, "sessions", &context).await?;
    let mut sessions = list.items;
    sessions.sort_by_key(|session| std::cmp::Reverse(session.spec.duration_secs));
    Ok(sessions)
}

pub async fn get_session(cluster: &Cluster, id: SessionId) -> Result<Session> {
    let context = RequestContext::cluster_wide("see sessions", "sessions", "get");
    get(cluster, &format!("sessions/{id}"), &context).await
}

/// Ends a session; its agents end with it.
pub async fn end_session(cluster: &Cluster, id: SessionId) -> Result<()> {
    let context = RequestContext::cluster_wide("end sessions", "sessions", "delete");
    let request = Request::delete(format!("/apis/{GROUP_VERSION}/sessions/{id}"));
    send::<serde_json::Value>(cluster, request, &context)
        .await
        .map(drop)
}

/// The targets of a namespace and the users of their sessions. An operator that coordinates member clusters lists the
/// targets of all of them, unless `multi_cluster` is false.
pub async fn list_through_operator(
    cluster: &Cluster,
    namespace: &str,
    multi_cluster: Option<bool>,
) -> Result<Listing> {
    let context = RequestContext::targets(namespace);
    let query = match multi_cluster {
        Some(false) => "?multi_cluster=false",
        _ => "",
    };
    let path = format!("/apis/{GROUP_VERSION}/namespaces/{namespace}/targets{query}");
    let request = Request::get(path).body(Body::empty());
    let request = request.map_err(|error| Error::api(ACTION, kube::Error::HttpError(error)))?;
    let response = cluster.client.send(request).await;
    let response = response.map_err(|error| cluster.first_error(ACTION, error))?;
    if !response.status().is_success() {
        return Err(ErrorResponse::read(response).await.explain(&context));
    }
    let warnings = warnings(response.headers());
    let body = response.into_body().collect().await;
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

/// The format of Kubernetes warnings: `299 - "text"`.
fn warnings(headers: &HeaderMap) -> Vec<String> {
    let values = headers.get_all(WARNING).iter();
    let texts = values.filter_map(|value| {
        let (_, text) = value.to_str().ok()?.split_once('"')?;
        Some(text.strip_suffix('"')?.to_owned())
    });
    texts.collect()
}

fn listed(target: Target) -> ListedTarget {
    let path = target.spec.target;
    let (kind, name) = path.split_once('/').unwrap_or((&path, ""));
    let sessions = target.status.sessions.into_iter();
    ListedTarget {
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

async fn get<T: DeserializeOwned>(
    cluster: &Cluster,
    path: &str,
    context: &RequestContext,
) -> Result<T> {
    let request = Request::get(format!("/apis/{GROUP_VERSION}/{path}"));
    send(cluster, request, context).await
}

async fn send<T: DeserializeOwned>(
    cluster: &Cluster,
    request: http::request::Builder,
    context: &RequestContext,
) -> Result<T> {
    let request = request.body(Vec::new());
    let request = request.map_err(|error| Error::api(ACTION, kube::Error::HttpError(error)))?;
    let response = cluster.client.request(request).await;
    explain_error(response, context, |error| {
        cluster.first_error(ACTION, error)
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn warnings_are_parsed() {
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

    /// A cluster whose operator sends this response for this path.
    fn cluster_with_response(path: &'static str, code: u16, body: &'static str) -> Cluster {
        let service = tower::service_fn(move |request: Request<Body>| async move {
            let found = request.uri().path_and_query().map(ToString::to_string);
            assert_eq!(found.as_deref(), Some(path));
            let response = http::Response::builder()
                .status(code)
                .header(WARNING, "299 - \"west is missing\"");
            response.body(Body::from(body.as_bytes().to_vec()))
        });
        Cluster::new(kube::Client::new(service, "default"), "shop")
    }

    #[tokio::test]
    async fn targets_of_several_clusters_are_listed_with_cluster_names() {
        const PATH: &str = "/apis/operator.metalbear.co/v1/namespaces/shop/targets";
        const SINGLE_CLUSTER_PATH: &str =
            "/apis/operator.metalbear.co/v1/namespaces/shop/targets?multi_cluster=false";
        const LIST: &str = r#"{"items": [{
            "apiVersion": "operator.metalbear.co/v1", "kind": "Target",
            "metadata": {"name": "deployment.web", "namespace": "shop"},
            "spec": {"target": "deployment/web", "containers": ["app"]},
            "status": {"replicas": 4, "clusters": ["east", "west"]}
        }]}"#;
        for (path, multi_cluster) in [
            (PATH, None),
            (PATH, Some(true)),
            (SINGLE_CLUSTER_PATH, Some(false)),
        ] {
            let cluster = cluster_with_response(path, 200, LIST);
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
        let cluster = cluster_with_response(PATH, 403, forbidden);
        let denied = list_through_operator(&cluster, "shop", None).await;
        assert!(
            matches!(denied, Err(Error::AccessDenied { .. })),
            "{denied:?}"
        );
        let cluster = cluster_with_response(PATH, 200, "<html>");
        let invalid = list_through_operator(&cluster, "shop", None).await;
        assert!(invalid.is_err(), "{invalid:?}");
    }
}
