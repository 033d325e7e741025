//! The body of a response: one that is complete, or one that is streamed.

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// A body of any kind.
pub(crate) type Body = UnsyncBoxBody<Bytes, BoxError>;

/// A body that is complete.
pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}
