//! Redirects of managed clusters. All clusters share the hub's address, and a client follows a redirect with its credential: so
//! a cluster must not send its users to another cluster or to another host.

use http::header::{CONTENT_SECURITY_POLICY, HeaderValue, LOCATION, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, Response};

use crate::kubernetes_request::checked;
use crate::status::Status;

/// Changes the target of a redirect to the same path of this cluster. Other targets are refused. A browser does not run what a
/// cluster sends as if it were the hub's.
pub(super) fn confine<B>(response: &mut Response<B>, cluster: &str) -> Result<(), Status> {
    let is_redirect = response.status().is_redirection();
    let headers = response.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
    if !headers.contains_key(LOCATION) {
        return Ok(());
    }
    match confined(headers, cluster) {
        Some(location) => {
            headers.insert(LOCATION, location);
            Ok(())
        }
        // Not followed: it names what was created.
        None if !is_redirect => {
            headers.remove(LOCATION);
            Ok(())
        }
        None => Err(Status::bad_gateway(format!(
            "the API server of cluster {cluster:?} redirects to another address, which the hub does not allow"
        ))),
    }
}

fn confined(headers: &HeaderMap, cluster: &str) -> Option<HeaderValue> {
    let mut locations = headers.get_all(LOCATION).iter();
    let location = locations.next()?.to_str().ok()?;
    // Browsers take a backslash for a slash, and two of them begin the name of a host.
    let is_path =
        location.starts_with('/') && !location.starts_with("//") && !location.contains('\\');
    if locations.next().is_some() || !is_path {
        return None;
    }
    let (path, query) = match location.split_once('?') {
        Some((path, query)) => (path, format!("?{query}")),
        None => (location, String::new()),
    };
    let path = checked(path).ok()?;
    HeaderValue::from_str(&format!("/clusters/{cluster}{path}{query}")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The target after the check, or `None` if the response is refused.
    fn check(status: u16, location: &str, expected: Option<&str>) {
        let mut response = Response::builder()
            .status(status)
            .header(LOCATION, location)
            .body(())
            .unwrap();
        let confined = confine(&mut response, "prod");
        let found = response.headers().get(LOCATION);
        let found = found.filter(|_| confined.is_ok());
        let found = found.map(|value| value.to_str().unwrap());
        assert_eq!(found, expected, "{status} {location}");
    }

    #[test]
    fn a_redirect_stays_in_its_cluster() {
        let own = "/clusters/prod/api/v1/namespaces/shop/services/web/proxy/?a=b";
        check(
            301,
            "/api/v1/namespaces/shop/services/web/proxy/?a=b",
            Some(own),
        );
        check(
            307,
            "/clusters/other/api",
            Some("/clusters/prod/clusters/other/api"),
        );
        check(201, "/api/v1/pods/a", Some("/clusters/prod/api/v1/pods/a"));
        for location in [
            "https://evil.example/api",
            "//evil.example/api",
            "/\\evil.example",
            "/../other/api",
            "/%2e%2e/other/api",
            "api/v1",
            "",
        ] {
            check(307, location, None);
            check(302, location, None);
        }
    }

    #[test]
    fn two_targets_are_none() {
        let mut response = Response::builder()
            .status(302)
            .header(LOCATION, "/api")
            .header(LOCATION, "/clusters/other/api")
            .body(())
            .unwrap();
        assert_eq!(confine(&mut response, "prod").unwrap_err().code, 502);
    }

    #[test]
    fn what_a_cluster_sends_is_not_run_by_a_browser() {
        let mut response = Response::new(());
        confine(&mut response, "prod").unwrap();
        assert_eq!(response.headers()[CONTENT_SECURITY_POLICY], "sandbox");
        assert_eq!(response.headers()[X_CONTENT_TYPE_OPTIONS], "nosniff");
    }
}
