//! The bodies of requests and responses.

use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// A body of any kind.
pub(crate) type Body = UnsyncBoxBody<Bytes, BoxError>;

pub(crate) fn of<B>(body: B) -> Body
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    body.map_err(Into::into).boxed_unsync()
}

/// A body with a value that is dropped with it.
pub(crate) struct Guarded<B, G> {
    pub(crate) body: B,
    pub(crate) _guard: G,
}

impl<B, G> HttpBody for Guarded<B, G>
where
    B: HttpBody + Unpin,
    G: Unpin,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
