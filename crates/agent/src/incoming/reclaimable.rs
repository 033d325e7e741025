//! A request body that is sent to another agent, and can be taken back if that agent ends before it has read any of it.
//!
//! The session sends the first byte of the body only when it accepts a connection. Until then nothing is lost if the
//! body is sent to another agent instead. If the session disconnects before it accepts, the body fails, so that the other
//! agent offers the connection to another destination.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::Frame;
use parking_lot::Mutex;

use super::reachability::ReachabilityWatch;
use crate::connection::RequestBody;
use crate::{Error, Result};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

type SharedBody = Arc<Mutex<Option<RequestBody>>>;

/// The owner of a request body.
pub(super) struct ReclaimableBody(SharedBody);

/// The same body for a request to another agent.
pub(super) struct BorrowedBody {
    body: SharedBody,
    /// Completes when the session disconnects. None after the first frame.
    disconnected: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl ReclaimableBody {
    pub(super) fn new(body: RequestBody) -> Self {
        Self(Arc::new(Mutex::new(Some(body))))
    }

    pub(super) fn borrow(&self, reachability: &ReachabilityWatch) -> BorrowedBody {
        BorrowedBody {
            body: Arc::clone(&self.0),
            disconnected: Some(Box::pin(reachability.clone().disconnected())),
        }
    }

    /// Takes the body back. Borrowers get no more of it.
    pub(super) fn reclaim(self) -> Result<RequestBody> {
        let body = self.0.lock().take();
        body.ok_or(Error::SubscriptionEnded)
    }
}

impl http_body::Body for BorrowedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if let Some(disconnected) = &mut this.disconnected
            && disconnected.as_mut().poll(context).is_ready()
        {
            this.disconnected = None;
            return Poll::Ready(Some(Err("the session is disconnected".into())));
        }
        let mut body = this.body.lock();
        let frame = match body.as_mut() {
            Some(body) => ready!(Pin::new(body).poll_frame(context)),
            None => None,
        };
        this.disconnected = None;
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        let body = self.body.lock();
        body.as_ref().is_none_or(http_body::Body::is_end_stream)
    }
}
