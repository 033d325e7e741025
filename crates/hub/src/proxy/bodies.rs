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
    pub(super) fn new<B>(inner: B, failure: BodyFailure) -> Body
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
    /// For a watch: it ends early, and between two events.
    until: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    is_ended: bool,
    is_between_events: bool,
}

impl ResponseBody {
    pub(super) fn new(inner: Body, entry: AuditEntry, until: Option<CancellationToken>) -> Body {
        let body = Self {
            is_ended: inner.is_end_stream(),
            inner,
            entry,
            until: until.map(|token| Box::pin(token.cancelled_owned())),
            is_between_events: true,
        };
        body.boxed_unsync()
    }

    /// Whether the watch has to end here.
    fn poll_until(&mut self, context: &mut Context<'_>) -> bool {
        self.is_between_events
            && self
                .until
                .as_mut()
                .is_some_and(|until| until.as_mut().poll(context).is_ready())
    }
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.is_ended || self.poll_until(context) {
            self.is_ended = true;
            return Poll::Ready(None);
        }
        let frame = ready!(poll_data(&mut self.inner, context));
        match &frame {
            Some(Ok(frame)) => {
                // An event in JSON is one line. An event in another format is one part of the body, as a rule.
                let last = frame.data_ref().and_then(|data| data.last().copied());
                let first = frame.data_ref().and_then(|data| data.first().copied());
                self.is_between_events = first != Some(b'{') || last == Some(b'\n');
            }
            Some(Err(error)) => {
                let error = error_chain(error.as_ref());
                self.entry.set_failed(&error);
                self.is_ended = true;
            }
            None => self.is_ended = true,
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.is_ended || self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        // A watch has no length, so one that ends early breaks no promise.
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
