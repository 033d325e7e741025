//! Checks whether the cluster has an operator.

use api::{GROUP, VERSION};
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIGroup;
use kube::client::Body;

use super::refusal::ErrorResponse;
use crate::access::Cluster;
use crate::error::{Error, Result};

/// Whether the cluster has an operator. The API server responds by itself, so the request is short even if the operator is
/// down, and every authenticated user may send it.
pub async fn has_operator(cluster: &Cluster) -> Result<bool> {
    let action = "list its API groups";
    let request = Request::get(format!("/apis/{GROUP}")).body(Body::empty());
    let request = request.map_err(|error| Error::api(action, kube::Error::HttpError(error)))?;
    let response = cluster.client.send(request).await;
    let response = response.map_err(|error| cluster.first_error(action, error))?;
    match response.status() {
        code if code.is_success() => {
            let body = response.into_body().collect().await;
            Ok(body.is_ok_and(|body| is_served(&body.to_bytes())))
        }
        // A user who may not even list the APIs cannot use an operator.
        StatusCode::NOT_FOUND | StatusCode::FORBIDDEN => Ok(false),
        _ => Err(ErrorResponse::read(response).await.into_error(action)),
    }
}

/// Whether a group has the version that an operator serves. Other versions are custom resources, which may remain after an
/// operator was uninstalled.
fn is_served(group: &[u8]) -> bool {
    let group: APIGroup = serde_json::from_slice(group).unwrap_or_default();
    group
        .versions
        .iter()
        .any(|version| version.version == VERSION)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn custom_resources_alone_are_no_operator() {
        let group = |versions: &[&str]| {
            let versions = versions
                .iter()
                .map(|version| serde_json::json!({"groupVersion": format!("{GROUP}/{version}"), "version": version}));
            let versions: Vec<_> = versions.collect();
            serde_json::json!({"kind": "APIGroup", "name": GROUP, "versions": versions}).to_string()
        };
        for (versions, expected) in [
            (&["v1"][..], true),
            (&["v1alpha", "v1"], true),
            (&["v1alpha"], false),
            (&[], false),
        ] {
            assert_eq!(
                is_served(group(versions).as_bytes()),
                expected,
                "{versions:?}"
            );
        }
        assert!(!is_served(b"no group"));
    }
}
