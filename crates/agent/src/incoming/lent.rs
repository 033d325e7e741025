//! A request's body that is given to somebody, and taken back if he goes before he has read any of it.
//!
//! As long as nothing has come of it, its session has taken nothing: if it cannot be reached any more, the body breaks, so
//! that somebody else gets what was offered.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::Frame;
use hyper::body::Incoming;

use super::reachable::Reachable;
use crate::{Error, Result};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

type Shared = Arc<Mutex<Option<Incoming>>>;

/// Whose body it is.
pub(super) struct Lender(Shared);

/// Who reads it.
pub(super) struct Lent {
    body: Shared,
    /// Until something has come.
    lost: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Lender {
    pub(super) fn new(body: Incoming) -> Self {
        Self(Arc::new(Mutex::new(Some(body))))
    }

    pub(super) fn lend(&self, reachable: &Reachable) -> Lent {
        Lent {
            body: Arc::clone(&self.0),
            lost: Some(Box::pin(reachable.clone().lost())),
        }
    }

    /// Whoever has it gets no more of it.
    pub(super) fn take(self) -> Result<Incoming> {
        let body = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        body.ok_or(Error::SubscriptionEnded)
    }
}

impl http_body::Body for Lent {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if let Some(lost) = &mut this.lost
            && lost.as_mut().poll(context).is_ready()
        {
            this.lost = None;
            return Poll::Ready(Some(Err("the session is out of reach".into())));
        }
        let mut body = this.body.lock().unwrap_or_else(PoisonError::into_inner);
        let frame = match body.as_mut() {
            Some(body) => ready!(Pin::new(body).poll_frame(context)),
            None => None,
        };
        this.lost = None;
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        let body = self.body.lock().unwrap_or_else(PoisonError::into_inner);
        body.as_ref().is_none_or(http_body::Body::is_end_stream)
    }
}
