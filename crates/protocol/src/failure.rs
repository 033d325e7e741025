//! Failures: one message for all errors, and its two encodings.
//!
//! A gRPC call fails with a status whose details are the [`Failure`]; a raw stream carries it in [`HEADER`], as a header or
//! a trailer. An errno is sent by name, and by the agent's number for names that this side does not know.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use prost::Message as _;
use tonic::{Code, Status};

pub use crate::rpc::{Errno, Failure, Reason};

/// Carries a [`Failure`] in the headers or trailers of a raw stream.
pub const HEADER: HeaderName = HeaderName::from_static("standin-failure-bin");

impl Failure {
    /// A system call failed with this Linux error number.
    #[must_use]
    pub fn from_errno(number: i32, detail: impl Into<String>) -> Self {
        Self {
            reason: Reason::Errno.into(),
            errno: Errno::try_from(number).unwrap_or_default().into(),
            errno_number: number,
            detail: detail.into(),
        }
    }

    #[must_use]
    pub fn new(reason: Reason, detail: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            detail: detail.into(),
            ..Self::default()
        }
    }

    /// The error number to return to an application, if the operation itself failed.
    #[must_use]
    pub fn number(&self) -> Option<i32> {
        if self.reason() != Reason::Errno {
            return None;
        }
        match self.errno() {
            Errno::Unspecified => Some(self.errno_number).filter(|number| *number > 0),
            // The numbers of the names are those of the architectures that Standin supports.
            named => Some(named.into()),
        }
    }

    #[must_use]
    pub fn to_status(&self) -> Status {
        let code = match self.reason() {
            Reason::Unspecified => Code::Unknown,
            Reason::Errno => match self.errno() {
                Errno::Enoent => Code::NotFound,
                Errno::Eperm | Errno::Eacces => Code::PermissionDenied,
                Errno::Eexist => Code::AlreadyExists,
                _ => Code::Unknown,
            },
            Reason::TargetGone => Code::DataLoss,
            Reason::WrongToken | Reason::NoHello => Code::Unauthenticated,
            Reason::WrongVersion => Code::FailedPrecondition,
            Reason::BadRequest => Code::InvalidArgument,
            Reason::Agent => Code::Internal,
        };
        Status::with_details(code, &self.detail, Bytes::from(self.encode_to_vec()))
    }

    /// The failure inside a status, or `None` if the status has another origin, such as a lost connection.
    #[must_use]
    pub fn from_status(status: &Status) -> Option<Self> {
        let details = status.details();
        if details.is_empty() {
            return None;
        }
        Self::decode(details).ok()
    }

    /// The status line of a raw stream that failed before its body.
    #[must_use]
    pub fn http_status(&self) -> StatusCode {
        match self.reason() {
            Reason::Unspecified | Reason::Agent => StatusCode::INTERNAL_SERVER_ERROR,
            Reason::Errno => StatusCode::BAD_GATEWAY,
            Reason::TargetGone => StatusCode::GONE,
            Reason::WrongToken | Reason::NoHello => StatusCode::UNAUTHORIZED,
            Reason::WrongVersion => StatusCode::PRECONDITION_FAILED,
            Reason::BadRequest => StatusCode::BAD_REQUEST,
        }
    }

    #[must_use]
    pub fn to_headers(&self) -> HeaderMap {
        let text = STANDARD_NO_PAD.encode(self.encode_to_vec());
        let mut headers = HeaderMap::with_capacity(1);
        // Base64 is always a valid value.
        if let Ok(value) = HeaderValue::try_from(text) {
            headers.insert(HEADER, value);
        }
        headers
    }

    /// The failure in headers or trailers, if there is one.
    #[must_use]
    pub fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let text = headers.get(HEADER)?;
        let Ok(encoded) = STANDARD_NO_PAD.decode(text) else {
            return Some(Self::new(Reason::Unspecified, "an unreadable failure"));
        };
        Self::decode(encoded.as_slice())
            .ok()
            .or_else(|| Some(Self::new(Reason::Unspecified, "an unreadable failure")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_errno_survives_both_encodings() {
        let check = |number: i32| {
            let failure = Failure::from_errno(number, "open /etc/café");
            let by_status = Failure::from_status(&failure.to_status());
            let by_headers = Failure::from_headers(&failure.to_headers());
            assert_eq!(by_status.as_ref(), Some(&failure));
            assert_eq!(by_headers.as_ref(), Some(&failure));
            assert_eq!(failure.number(), Some(number));
        };
        // Known by name, and known only by number.
        check(2);
        check(111);
        check(133);
    }

    #[test]
    fn a_name_wins_over_a_number() {
        let foreign = Failure {
            reason: Reason::Errno.into(),
            errno: Errno::Econnrefused.into(),
            errno_number: 61,
            detail: String::new(),
        };
        assert_eq!(foreign.number(), Some(111));
    }

    #[test]
    fn other_reasons_have_no_number() {
        let gone = Failure::new(Reason::TargetGone, "gone");
        assert_eq!(gone.number(), None);
        assert_eq!(gone.http_status(), StatusCode::GONE);
        let newer = Failure {
            reason: 99,
            ..Failure::default()
        };
        assert_eq!(newer.number(), None);
        assert_eq!(newer.to_status().code(), Code::Unknown);
    }

    #[test]
    fn garbage_is_a_failure_and_absence_is_none() {
        assert_eq!(Failure::from_headers(&HeaderMap::new()), None);
        let mut headers = HeaderMap::new();
        headers.insert(HEADER, HeaderValue::from_static("%%%"));
        assert!(Failure::from_headers(&headers).is_some());
        assert_eq!(Failure::from_status(&Status::unavailable("lost")), None);
    }
}
