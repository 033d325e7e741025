//! Responses of the JSON API, and its requests' bodies.

use std::time::Duration;

use api::hub::ErrorBody;
use error_chain::error_chain;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Incoming;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::body::{Body, full};
use crate::error::Error;

/// No request of the API needs more.
const MAX_BODY: usize = 64 * 1024;
/// How long a client may take to send it.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) type ApiResponse = Response<Body>;

/// The reason why a request is refused, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: StatusCode,
    pub(crate) error: String,
    pub(crate) hint: Option<String>,
}

impl Failure {
    pub(crate) fn new(code: StatusCode, error: impl Into<String>) -> Self {
        Self {
            code,
            error: error.into(),
            hint: None,
        }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn bad_request(error: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, error)
    }

    pub(crate) fn not_found(error: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, error)
    }

    pub(crate) fn method_not_allowed() -> Self {
        let error = "this path does not have this method";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, error)
    }

    pub(crate) fn too_many_requests() -> Self {
        let error = "too many requests from this address";
        Self::new(StatusCode::TOO_MANY_REQUESTS, error).hint("try again in a few seconds")
    }

    pub(crate) fn unavailable(error: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, error).hint("try again")
    }

    pub(crate) fn response(self) -> ApiResponse {
        let code = self.code;
        let body = ErrorBody {
            error: self.error,
            hint: self.hint,
        };
        let mut response = json(code, &body);
        let headers = response.headers_mut();
        match code {
            StatusCode::UNAUTHORIZED => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("2"));
            }
            _ => {}
        }
        response
    }
}

/// A failure between the hub and its own API server is a server error, not the caller's.
impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match &error {
            Error::NotRegistered { .. } => Self::not_found(error.to_string()),
            Error::Revoked { .. } => Self::new(StatusCode::FORBIDDEN, error.to_string()),
            _ => {
                tracing::warn!(error = error_chain(&error), "request failed");
                Self::unavailable(error_chain(&error))
            }
        }
    }
}

pub(crate) fn json(code: StatusCode, value: &impl Serialize) -> ApiResponse {
    // Our own types can always be serialized.
    let text = serde_json::to_vec(value).unwrap_or_default();
    let mut response = Response::new(full(text));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    // Some of them have tokens and certificates.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

pub(crate) fn no_content() -> ApiResponse {
    let mut response = Response::new(full(""));
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

/// Reads a request's body, which has a limit of size and time.
pub(crate) async fn read_json<T: DeserializeOwned>(
    request: Request<Incoming>,
) -> Result<T, Failure> {
    let body = Limited::new(request.into_body(), MAX_BODY).collect();
    let Ok(read) = timeout(BODY_TIMEOUT, body).await else {
        let error = "the request's body did not arrive in time";
        return Err(Failure::new(StatusCode::REQUEST_TIMEOUT, error));
    };
    let bytes = read.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
        Some(_) => Failure::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the request's body has more than {MAX_BODY} bytes"),
        ),
        None => Failure::bad_request("the request's body could not be read"),
    })?;
    // The error of the parser can have a part of the body, which may be a token.
    serde_json::from_slice(&bytes.to_bytes()).map_err(|error| {
        let error = format!(
            "the request's body is not the JSON that this path needs: line {}, column {}",
            error.line(),
            error.column()
        );
        Failure::bad_request(error).hint("docs/tunnel.md has the fields of each request")
    })
}
