//! The bodies of a forwarded request and of its response. Trailers end here: API servers send none, and would have to be
//! checked like headers.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use error_chain::error_chain;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt as _;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::audit::AuditEntry;
use crate::body::{Body, BoxError};

/// Whether the body of a request has failed, which is the client's failure and not the agent's.
#[derive(Clone, Debug, Default)]
pub(super) struct BodyFailure(Arc<AtomicBool>);

impl BodyFailure {
    pub(super) fn has_failed(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// The body of a request.
pub(super) struct RequestBody {
    inner: Body,
    failure: BodyFailure,
}

impl RequestBody {
    pub(super) fn boxed<B>(inner: B, failure: BodyFailure) -> Body
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let inner = inner.map_err(Into::into).boxed_unsync();
        Self { inner, failure }.boxed_unsync()
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(poll_data(&mut self.inner, context));
        if let Some(Err(_)) = &frame {
            self.failure.0.store(true, Ordering::Release);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// The body of a response. The audit row is written when it is dropped.
pub(super) struct ResponseBody {
    inner: Body,
    entry: AuditEntry,
    is_ended: bool,
}

impl ResponseBody {
    pub(super) fn boxed(inner: Body, entry: AuditEntry) -> Body {
        let body = Self {
            is_ended: inner.is_end_stream(),
            inner,
            entry,
        };
        body.boxed_unsync()
    }
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(poll_data(&mut self.inner, context));
        if let Some(Err(error)) = &frame {
            let error = error_chain(error.as_ref());
            self.entry.set_failed(&error);
        }
        self.is_ended |= !matches!(frame, Some(Ok(_)));
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.is_ended || self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        if !self.is_end_stream() {
            self.entry.set_reason("the client closed the connection");
        }
    }
}

/// The body of a watch. It ends early when this replica shuts down, and between two events.
pub(crate) struct WatchBody {
    inner: Body,
    until: Pin<Box<WaitForCancellationFutureOwned>>,
    is_between_events: bool,
    is_ended: bool,
}

impl WatchBody {
    pub(crate) fn boxed(inner: Body, until: CancellationToken) -> Body {
        let body = Self {
            inner,
            until: Box::pin(until.cancelled_owned()),
            is_between_events: true,
            is_ended: false,
        };
        body.boxed_unsync()
    }
}

impl HttpBody for WatchBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.is_between_events && self.until.as_mut().poll(context).is_ready() {
            self.is_ended = true;
        }
        if self.is_ended {
            return Poll::Ready(None);
        }
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(context));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            self.is_between_events = ends_event(self.is_between_events, data);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.is_ended || self.inner.is_end_stream()
    }
}

/// Whether an event ends with this part. An event in JSON is one line. One in another format is one part, as a rule.
fn ends_event(begins_event: bool, part: &[u8]) -> bool {
    let is_json = !begins_event || part.first() == Some(&b'{');
    !is_json || part.last() == Some(&b'\n')
}

/// The next part of a body that has data.
fn poll_data(
    body: &mut Body,
    context: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
    loop {
        match ready!(Pin::new(&mut *body).poll_frame(context)) {
            Some(Ok(frame)) if !frame.is_data() => {}
            other => return Poll::Ready(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_an_event_is_seen() {
        let cases: [(&[&[u8]], bool); 5] = [
            (&[b"{}\n"], true),
            (&[b"{\"a\""], false),
            (&[b"{\"a\"", b": 1"], false),
            (&[b"{\"a\"", b": 1", b"}\n"], true),
            // Protobuf
            (&[b"\0\0\0\x05k8s", b"\0\0\0\x05k8s"], true),
        ];
        for (parts, expected) in cases {
            let ended = parts
                .iter()
                .fold(true, |ended, part| ends_event(ended, part));
            assert_eq!(ended, expected, "{parts:?}");
        }
    }
}
