//! Whether there is an operator.

use api::GROUP;
use http::{Request, StatusCode};
use kube::client::Body;

use super::refusal::Answered;
use crate::access::Cluster;
use crate::error::{Error, Result};

/// Whether the cluster has an operator. The API server knows by itself, so it is one short answer whatever the operator
/// does, and everybody who may log in gets it.
pub async fn has_operator(cluster: &Cluster) -> Result<bool> {
    let action = "say whether there is an operator";
    let request = Request::get(format!("/apis/{GROUP}")).body(Body::empty());
    let request = request.map_err(|error| Error::api(action, kube::Error::HttpError(error)))?;
    let answer = cluster.client.send(request).await;
    let answer = answer.map_err(|error| cluster.first_error(action, error))?;
    match answer.status() {
        code if code.is_success() => Ok(true),
        // Who may not even see which APIs there are has no operator to use.
        StatusCode::NOT_FOUND | StatusCode::FORBIDDEN => Ok(false),
        _ => Err(Answered::read(answer).await.into_error(action)),
    }
}
