//! Errors as Kubernetes clients read them: objects of the kind `Status`.

use http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode};
use serde_json::json;

use crate::body::{Body, full};

/// An error of a request to a cluster. The message says what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Status {
    pub(crate) code: StatusCode,
    reason: &'static str,
    pub(crate) message: String,
    /// Kubernetes clients repeat a request with any method after this time, so it is only set for requests that had no effect.
    retry_after_seconds: Option<u32>,
}

impl Status {
    fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            retry_after_seconds: None,
        }
    }

    /// The client may repeat the request after this time.
    pub(crate) fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_seconds = Some(seconds);
        self
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    pub(crate) fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", message)
    }

    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFound", message)
    }

    pub(crate) fn method_not_allowed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message)
    }

    pub(crate) fn too_many_requests(message: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message).retry_after(1)
    }

    pub(crate) fn bad_gateway(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, "InternalError", message)
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "ServiceUnavailable",
            message,
        )
    }

    pub(crate) fn timed_out(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message)
    }

    pub(crate) fn response(&self) -> Response<Body> {
        let mut status = json!({
            "apiVersion": "v1",
            "kind": "Status",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code.as_u16(),
        });
        if let Some(seconds) = self.retry_after_seconds {
            status["details"] = json!({ "retryAfterSeconds": seconds });
        }
        let mut response = Response::new(full(status.to_string()));
        *response.status_mut() = self.code;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after_seconds {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        if self.code == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use serde_json::Value;

    use super::*;

    #[tokio::test]
    async fn an_error_is_a_status_object() {
        let cases = [
            (Status::unauthorized("m"), 401, "Unauthorized", None),
            (Status::forbidden("m"), 403, "Forbidden", None),
            (Status::not_found("m"), 404, "NotFound", None),
            (
                Status::too_many_requests("m"),
                429,
                "TooManyRequests",
                Some(1),
            ),
            (Status::unavailable("m"), 503, "ServiceUnavailable", None),
            (
                Status::unavailable("m").retry_after(2),
                503,
                "ServiceUnavailable",
                Some(2),
            ),
            (Status::timed_out("m"), 504, "Timeout", None),
        ];
        for (status, code, reason, retry_after) in cases {
            let response = status.response();
            assert_eq!(response.status().as_u16(), code);
            let header = response.headers().get(RETRY_AFTER);
            let header = header.map(|value| value.to_str().unwrap().parse::<u32>().unwrap());
            assert_eq!(header, retry_after, "{status:?}");
            let body = response.into_body().collect().await.unwrap().to_bytes();
            let body: Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(body["kind"], "Status");
            assert_eq!(body["code"], code);
            assert_eq!(body["reason"], reason);
            assert_eq!(
                body["details"]["retryAfterSeconds"].as_u64(),
                retry_after.map(u64::from)
            );
        }
    }
}
