//! The paths of the API.

use api::hub::path;
use http::{Method, Uri};
use percent_encoding::percent_decode_str;

use crate::audit::AuditQuery;
use crate::responses::Failure;

/// A request by its method and path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    CreateToken,
    Register,
    Hub,
    Clusters,
    AddCluster,
    Cluster(String),
    RemoveCluster(String),
    Revoke(String),
    Audit(AuditQuery),
    /// `rest` begins with `/`, and has no query.
    Proxy {
        cluster: String,
        rest: String,
    },
}

impl Route {
    pub(crate) fn parse(method: &Method, uri: &Uri) -> Result<Self, Failure> {
        let (get, post) = (method == Method::GET, method == Method::POST);
        let requested = uri.path();
        let found = match requested {
            path::TOKENS => post.then_some(Self::CreateToken),
            path::REGISTER => post.then_some(Self::Register),
            path::CONNECT => return Err(connect_at_wrong_port()),
            path::HUB => get.then_some(Self::Hub),
            path::CLUSTERS if post => Some(Self::AddCluster),
            path::CLUSTERS => get.then_some(Self::Clusters),
            path::AUDIT => get.then(|| Self::Audit(audit_query(uri.query().unwrap_or_default()))),
            _ => {
                if let Some(below) = requested.strip_prefix(path::PROXY) {
                    return proxy(below);
                }
                let below = requested.strip_prefix(path::CLUSTERS);
                let below = below.and_then(|below| below.strip_prefix('/'));
                match below.map(|below| below.split_once('/')) {
                    Some(Some((name, "revoke"))) => post.then(|| Self::Revoke(name.to_owned())),
                    Some(None) => match below {
                        Some(name) if get => Some(Self::Cluster(name.to_owned())),
                        Some(name) => {
                            (method == Method::DELETE).then(|| Self::RemoveCluster(name.to_owned()))
                        }
                        None => None,
                    },
                    _ => return Err(Failure::not_found("there is no such path")),
                }
            }
        };
        found.ok_or_else(Failure::method_not_allowed)
    }

    /// For metrics.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::CreateToken => "tokens",
            Self::Register => "register",
            Self::Hub => "hub",
            Self::Clusters | Self::AddCluster => "clusters",
            Self::Cluster(_) | Self::RemoveCluster(_) => "cluster",
            Self::Revoke(_) => "revoke",
            Self::Audit(_) => "audit",
            Self::Proxy { .. } => "proxy",
        }
    }
}

fn proxy(below: &str) -> Result<Route, Failure> {
    let (cluster, rest) = match below.find('/') {
        Some(end) => below.split_at(end),
        None => (below, "/"),
    };
    if cluster.is_empty() {
        return Err(Failure::not_found("the path has no name of a cluster"));
    }
    Ok(Route::Proxy {
        cluster: cluster.to_owned(),
        rest: rest.to_owned(),
    })
}

fn connect_at_wrong_port() -> Failure {
    let error = "agents connect to another port, where the hub itself terminates TLS";
    let hint = "set the agent's `agent.serverURL` to the hub's address for agents; the registration can stay here, as \
        `agent.registrationURL`";
    Failure::not_found(error).hint(hint)
}

fn audit_query(query: &str) -> AuditQuery {
    let mut found = AuditQuery::default();
    for pair in query.split('&') {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = value.replace('+', " ");
        let value = percent_decode_str(&value).decode_utf8_lossy().into_owned();
        match name {
            _ if value.is_empty() => {}
            "cluster" => found.cluster = Some(value),
            "user" => found.user = Some(value),
            "limit" => found.limit = value.parse().ok(),
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_methods() {
        let a = || "a".to_owned();
        let proxy = |rest: &str| Route::Proxy {
            cluster: a(),
            rest: rest.to_owned(),
        };
        let query = AuditQuery {
            cluster: Some(a()),
            user: Some("x@y z".to_owned()),
            limit: Some(5),
        };
        for (request, expected) in [
            ("POST /api/agents/tokens", Ok(Route::CreateToken)),
            ("GET /api/agents/tokens", Err(405)),
            ("POST /api/agents/register", Ok(Route::Register)),
            ("PUT /api/agents/register", Err(405)),
            ("GET /api/agents/connect", Err(404)),
            ("GET /api/hub", Ok(Route::Hub)),
            ("GET /api/clusters", Ok(Route::Clusters)),
            ("POST /api/clusters", Ok(Route::AddCluster)),
            ("DELETE /api/clusters", Err(405)),
            ("GET /api/clusters/a", Ok(Route::Cluster(a()))),
            ("DELETE /api/clusters/a", Ok(Route::RemoveCluster(a()))),
            ("POST /api/clusters/a", Err(405)),
            ("POST /api/clusters/a/revoke", Ok(Route::Revoke(a()))),
            ("GET /api/clusters/a/revoke", Err(405)),
            ("POST /api/clusters/a/other", Err(404)),
            ("GET /api/clustersa", Err(404)),
            (
                "GET /api/audit?cluster=a&user=x%40y+z&limit=5",
                Ok(Route::Audit(query)),
            ),
            ("GET /api/audit", Ok(Route::Audit(AuditQuery::default()))),
            ("GET /clusters/a", Ok(proxy("/"))),
            (
                "PATCH /clusters/a/api/v1/pods?watch=1",
                Ok(proxy("/api/v1/pods")),
            ),
            ("GET /clusters/", Err(404)),
            ("GET /other", Err(404)),
        ] {
            let (method, uri) = request.split_once(' ').unwrap();
            let parsed = Route::parse(&method.parse().unwrap(), &uri.parse().unwrap());
            let parsed = parsed.map_err(|failure| failure.code.as_u16());
            assert_eq!(parsed, expected, "{request}");
        }
    }
}
