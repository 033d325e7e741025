//! Where a request of the hub goes. Pure.
//!
//! There are two targets: the agent itself, for the messages between hub and agent, and the API server of this cluster.
//! A request that names any other server is refused, so a tunnel is not a way into the cluster's network.

use http::{Method, Uri};

use crate::refusal::Refusal;

/// The paths of the agent itself.
const OWN_PATHS: &str = "/.standin/";
/// The path of the messages between hub and agent.
const CONTROL: &str = "/.standin/control";

/// The API server's names in requests of the hub: the usual one, and what the tunnel writes where a request names no host.
const API_SERVER: [&str; 2] = ["kubernetes.default.svc", "link"];

/// Where a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Control,
    ApiServer,
}

/// Chooses the target of a request.
pub(crate) fn route(
    method: &Method,
    uri: &Uri,
    host: Option<&str>,
    cluster: &str,
) -> Result<Route, Refusal> {
    let path = uri.path();
    if path == CONTROL && method == Method::POST {
        return Ok(Route::Control);
    }
    if path.starts_with(OWN_PATHS) {
        let message = "this version of the tunnel agent does not have this path";
        return Err(Refusal::new(http::StatusCode::NOT_FOUND, message));
    }
    if method == Method::CONNECT || !path.starts_with('/') {
        let message = "the tunnel agent only forwards requests for paths of the API server";
        return Err(Refusal::new(http::StatusCode::METHOD_NOT_ALLOWED, message));
    }
    let named = [uri.host(), host];
    match named
        .into_iter()
        .flatten()
        .find(|name| !is_api_server(name, cluster))
    {
        None => Ok(Route::ApiServer),
        Some(name) => Err(Refusal::forbidden(&format!(
            "the tunnel agent does not connect to `{name}`: the only allowed target is the API server of its cluster"
        ))),
    }
}

/// Whether a host is the API server of this cluster: also `apiserver.CLUSTER.tunnel`, which is no DNS name.
fn is_api_server(name: &str, cluster: &str) -> bool {
    let name = name.strip_suffix(":443").unwrap_or(name);
    let is_sentinel = || {
        let middle = name.strip_prefix("apiserver.")?.strip_suffix(".tunnel")?;
        Some(middle == cluster)
    };
    API_SERVER.contains(&name) || is_sentinel().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(method: &str, uri: &str, host: Option<&str>) -> Result<Route, u16> {
        let method = method.parse().unwrap();
        let route = route(&method, &uri.parse().unwrap(), host, "prod-eu");
        route.map_err(|refusal| refusal.status.as_u16())
    }

    #[test]
    fn requests_go_to_the_api_server_or_to_the_agent() {
        for (method, uri, host, expected) in [
            ("GET", "/api/v1/pods?watch=1", None, Ok(Route::ApiServer)),
            ("POST", "/.standin/control", None, Ok(Route::Control)),
            ("GET", "/.standin/control", None, Err(404)),
            ("POST", "/.standin/other", None, Err(404)),
            ("POST", "/.standin/", None, Err(404)),
            ("GET", "/.standinother", None, Ok(Route::ApiServer)),
            ("OPTIONS", "*", None, Err(405)),
            ("CONNECT", "example.com:443", None, Err(405)),
            (
                "GET",
                "https://kubernetes.default.svc/api",
                None,
                Ok(Route::ApiServer),
            ),
            ("GET", "http://link/api", None, Ok(Route::ApiServer)),
            (
                "GET",
                "http://apiserver.prod-eu.tunnel/api",
                Some("apiserver.prod-eu.tunnel"),
                Ok(Route::ApiServer),
            ),
            ("GET", "http://apiserver.other.tunnel/api", None, Err(403)),
            ("GET", "http://169.254.169.254/latest", None, Err(403)),
            ("GET", "https://vault.vault.svc/v1", None, Err(403)),
            ("GET", "/api", Some("vault.vault.svc"), Err(403)),
            (
                "GET",
                "https://kubernetes.default.svc/api",
                Some("vault.vault.svc:443"),
                Err(403),
            ),
            (
                "GET",
                "https://kubernetes.default.svc.example.com/api",
                None,
                Err(403),
            ),
        ] {
            assert_eq!(
                check(method, uri, host),
                expected,
                "{method} {uri} {host:?}"
            );
        }
    }
}
