//! Bodies in the tunnel: received ones, which report what their reader takes, and sent ones, which wait for its reports.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use link::http2::{BoxBody, BoxError};

use crate::error::Error;
use crate::flow::{Receiving, Sending};

/// A body that was received through the tunnel.
pub struct Body(Option<Received>);

struct Received {
    incoming: Incoming,
    /// Not for peers without windows.
    window: Option<Receiving>,
    /// Explains the failure of the connection.
    explain: Arc<dyn Explain>,
    /// What lasts as long as the body, such as one of the streams that a tunnel may have.
    _guard: Option<Box<dyn Send + Sync>>,
}

/// Explains why a stream failed.
pub(crate) trait Explain: Send + Sync {
    fn explain(&self, error: hyper::Error) -> Error;
}

impl Body {
    /// A body without bytes.
    pub fn empty() -> Self {
        Self(None)
    }

    pub(crate) fn new(
        incoming: Incoming,
        window: Option<Receiving>,
        explain: Arc<dyn Explain>,
        guard: Option<Box<dyn Send + Sync>>,
    ) -> Self {
        Self(Some(Received {
            incoming,
            window,
            explain,
            _guard: guard,
        }))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let Some(body) = &mut self.0 else {
            return Poll::Ready(None);
        };
        match ready!(Pin::new(&mut body.incoming).poll_frame(context)) {
            Some(Ok(frame)) => {
                if let (Some(data), Some(window)) = (frame.data_ref(), &mut body.window) {
                    window.consume(data.len());
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(error)) => {
                let error = body.explain.explain(error);
                self.0 = None;
                Poll::Ready(Some(Err(error)))
            }
            None => {
                // Another stream may take its turn as soon as the body has ended, also if its reader keeps the body.
                self.0 = None;
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0
            .as_ref()
            .is_none_or(|body| body.incoming.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Some(body) => body.incoming.size_hint(),
            None => SizeHint::with_exact(0),
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Body").finish_non_exhaustive()
    }
}

/// A body that is sent through the tunnel, as far as its window allows.
pub(crate) struct WindowedBody {
    body: BoxBody,
    window: Option<Sending>,
    /// What was taken from the body, and has no room in the window yet.
    left: Bytes,
    /// What lasts as long as the body.
    _guard: Option<Box<dyn Send + Sync>>,
}

impl WindowedBody {
    pub(crate) fn new(
        body: BoxBody,
        window: Option<Sending>,
        guard: Option<Box<dyn Send + Sync>>,
    ) -> Self {
        // A body without bytes needs no window.
        let window = window.filter(|_| !http_body::Body::is_end_stream(&body));
        Self {
            body,
            window,
            left: Bytes::new(),
            _guard: guard,
        }
    }
}

impl http_body::Body for WindowedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let Some(window) = &mut this.window else {
            return Pin::new(&mut this.body).poll_frame(context);
        };
        let room = ready!(window.poll_room(context));
        if this.left.is_empty() {
            let frame = match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                other => return Poll::Ready(other),
            };
            match frame.into_data() {
                Ok(data) => this.left = data,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
        let part = this.left.split_to(this.left.remaining().min(room));
        window.sent(part.len());
        Poll::Ready(Some(Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = self.body.size_hint();
        let left = self.left.len() as u64;
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + left);
        }
        hint.set_lower(hint.lower() + left);
        hint
    }
}
