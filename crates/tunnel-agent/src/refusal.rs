//! Responses of the agent itself, in the form of the API server's: Kubernetes clients show their message to users.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use serde_json::json;

use crate::body::{self, Body};

/// A request that the agent does not forward, or that it could not forward.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
}

impl Refusal {
    pub(crate) fn forbidden(message: &impl ToString) -> Self {
        Self::new(StatusCode::FORBIDDEN, message.to_string())
    }

    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
        }
    }

    /// A Kubernetes `Status`.
    pub(crate) fn into_response(self) -> Response<Body> {
        let reason = match self.status {
            StatusCode::BAD_REQUEST => "BadRequest",
            StatusCode::FORBIDDEN => "Forbidden",
            StatusCode::NOT_FOUND => "NotFound",
            StatusCode::METHOD_NOT_ALLOWED => "MethodNotAllowed",
            _ => "ServiceUnavailable",
        };
        let status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": reason,
            "code": self.status.as_u16(),
        });
        let mut response = Response::new(body::of(Full::new(Bytes::from(status.to_string()))));
        *response.status_mut() = self.status;
        let json = HeaderValue::from_static("application/json");
        response.headers_mut().insert(header::CONTENT_TYPE, json);
        response
    }
}
