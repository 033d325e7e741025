//! A request's body that is given to somebody, and taken back if he goes before he has read any of it.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Frame;
use hyper::body::Incoming;

use crate::{Error, Result};

type Shared = Arc<Mutex<Option<Incoming>>>;

/// Whose body it is.
pub(super) struct Lender(Shared);

/// Who reads it.
pub(super) struct Lent(Shared);

impl Lender {
    pub(super) fn new(body: Incoming) -> Self {
        Self(Arc::new(Mutex::new(Some(body))))
    }

    pub(super) fn lend(&self) -> Lent {
        Lent(Arc::clone(&self.0))
    }

    /// Whoever has it gets no more of it.
    pub(super) fn take(self) -> Result<Incoming> {
        let body = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        body.ok_or(Error::SubscriptionEnded)
    }
}

impl http_body::Body for Lent {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let mut body = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match body.as_mut() {
            Some(body) => Pin::new(body).poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        let body = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        body.as_ref().is_none_or(http_body::Body::is_end_stream)
    }
}
