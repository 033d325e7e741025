//! A body whose parts are sent one after the other.
//!
//! There is one channel, and the end reason is read only when the channel is empty and closed. With a second channel for
//! the end reason, a reader could find the first channel empty, then receive the end reason, and miss a part that was sent
//! between the two.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::BoxError;

/// Why a body was aborted.
type AbortReason = Arc<Mutex<Option<BoxError>>>;

/// Creates a body whose bytes are sent one part after the other; up to `parts` of them are queued. Dropping the sender ends
/// the body; [`BodySender::abort`] ends it with an error.
pub fn body(parts: usize) -> (BodySender, StreamingBody) {
    let (sender, receiver) = mpsc::channel(parts);
    let reason = AbortReason::default();
    let sender = BodySender {
        parts: sender,
        reason: Arc::clone(&reason),
    };
    let body = StreamingBody {
        parts: receiver,
        reason,
    };
    (sender, body)
}

/// Sends the parts of a [`StreamingBody`].
#[derive(Debug)]
pub struct BodySender {
    parts: mpsc::Sender<Bytes>,
    reason: AbortReason,
}

/// The body was dropped, so its parts cannot be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the receiver of this body was dropped")]
pub struct BodyDropped;

impl BodySender {
    /// Sends a part. Waits while the queue is full.
    ///
    /// # Errors
    /// When the body was dropped.
    pub async fn send_data(&mut self, part: Bytes) -> Result<(), BodyDropped> {
        self.parts.send(part).await.map_err(|_| BodyDropped)
    }

    /// Ends the body with an error, after all parts that were sent.
    pub fn abort(self, reason: BoxError) {
        *self.reason.lock() = Some(reason);
    }
}

/// The body of a [`BodySender`].
#[derive(Debug)]
pub struct StreamingBody {
    parts: mpsc::Receiver<Bytes>,
    reason: AbortReason,
}

impl Body for StreamingBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(part) = ready!(self.parts.poll_recv(context)) {
            return Poll::Ready(Some(Ok(Frame::data(part))));
        }
        let mut reason = self.reason.lock();
        Poll::Ready(reason.take().map(Err))
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    /// A part is sent and the sender is dropped while another thread polls: the last part is never missed.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_part_just_before_the_end_is_received() {
        for round in 0..20_000 {
            let (mut sender, body) = body(4);
            let collected = tokio::spawn(body.collect());
            if round % 2 == 0 {
                tokio::task::yield_now().await;
            }
            sender.send_data(Bytes::from_static(b"last")).await.unwrap();
            drop(sender);
            let bytes = collected.await.unwrap().unwrap().to_bytes();
            assert_eq!(bytes, "last", "in round {round}");
        }
    }

    #[tokio::test]
    async fn an_aborted_body_ends_with_its_reason_after_its_parts() {
        let (mut sender, mut body) = body(4);
        sender.send_data(Bytes::from_static(b"part")).await.unwrap();
        sender.abort("enough".into());
        let part = body.frame().await.unwrap().unwrap();
        assert_eq!(part.into_data().unwrap(), "part");
        let error = body.frame().await.unwrap().unwrap_err();
        assert_eq!(error.to_string(), "enough");
        assert!(body.frame().await.is_none());
    }

    #[tokio::test]
    async fn sending_to_a_dropped_body_fails() {
        let (mut sender, body) = body(1);
        drop(body);
        assert_eq!(sender.send_data(Bytes::new()).await, Err(BodyDropped));
    }
}
