//! Where a request for a cluster is sent: to a tunnel of this replica, or to another replica that has one.

use std::future::Future;
use std::pin::Pin;

use error_chain::error_chain;
use http::{Request, Response};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use tunnel::Session;

use super::errors::SendError;
use crate::body::{Body, full};

/// A response that is pending.
pub(crate) type Sending = Pin<Box<dyn Future<Output = Result<Response<Body>, SendError>> + Send>>;

/// Something that forwards requests to one cluster.
pub(crate) trait Upstream: Send + Sync {
    fn send(&self, request: Request<Body>) -> Sending;
}

/// Where requests for clusters are sent.
pub(crate) trait UpstreamSource: Send + Sync {
    fn upstream(&self, cluster: &str) -> Result<Box<dyn Upstream>, SendError>;
}

impl Upstream for Session {
    fn send(&self, request: Request<Body>) -> Sending {
        let session = self.clone();
        Box::pin(async move {
            let response = Session::send(&session, request).await?;
            Ok(response.map(|body| body.map_err(Into::into).boxed_unsync()))
        })
    }
}

/// Sends a request. If the tunnel was lost just now and nothing was sent, it is sent once more, over another tunnel. That is
/// only possible without a body, because the body is lost with the first attempt.
pub(super) async fn send(
    source: &dyn UpstreamSource,
    cluster: &str,
    request: Request<Body>,
    has_stream: bool,
) -> Result<Response<Body>, SendError> {
    let upstream = source.upstream(cluster)?;
    let again = (!has_stream && request.body().is_end_stream()).then(|| {
        let mut again = Request::new(full(bytes::Bytes::new()));
        *again.method_mut() = request.method().clone();
        *again.uri_mut() = request.uri().clone();
        *again.headers_mut() = request.headers().clone();
        again
    });
    match (upstream.send(request).await, again) {
        (Err(error), Some(again)) if error.is_lost() && error.is_unsent() => {
            let error = error_chain(&error);
            tracing::debug!(cluster, error, "sending the request again");
            source.upstream(cluster)?.send(again).await
        }
        (sent, _) => sent,
    }
}
