//! A body that is written bit by bit.
//!
//! There is one channel, and how the body ends is looked at only when that is empty and closed. With a second channel for
//! the ending, a reader can find the first one empty, then see the ending, and miss what was sent between the two.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::sync::mpsc;

use super::BoxError;

/// Why a body was broken off, once it was.
type Reason = Arc<Mutex<Option<BoxError>>>;

/// A body whose bytes are sent one part after the other; `parts` of them may wait. Dropping the sender ends the body;
/// [`Sender::abort`] breaks it off.
pub fn body(parts: usize) -> (Sender, Sent) {
    let (sender, receiver) = mpsc::channel(parts);
    let reason = Reason::default();
    let sender = Sender {
        parts: sender,
        reason: Arc::clone(&reason),
    };
    let body = Sent {
        parts: receiver,
        reason,
    };
    (sender, body)
}

/// Writes a body. From its owner to the connection.
#[derive(Debug)]
pub struct Sender {
    parts: mpsc::Sender<Bytes>,
    reason: Reason,
}

/// Nobody reads the body any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("nobody reads this body any more")]
pub struct Unread;

impl Sender {
    /// Waits while as many parts wait as may.
    ///
    /// # Errors
    /// When nobody reads the body any more.
    pub async fn send_data(&mut self, part: Bytes) -> Result<(), Unread> {
        self.parts.send(part).await.map_err(|_| Unread)
    }

    /// Ends the body with an error, after what was sent.
    pub fn abort(self, reason: BoxError) {
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
    }
}

/// The body that a [`Sender`] writes.
#[derive(Debug)]
pub struct Sent {
    parts: mpsc::Receiver<Bytes>,
    reason: Reason,
}

impl Body for Sent {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(part) = ready!(self.parts.poll_recv(context)) {
            return Poll::Ready(Some(Ok(Frame::data(part))));
        }
        let mut reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        Poll::Ready(reason.take().map(Err))
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    /// Sending and ending at once, while another thread looks: the last part is never missed.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_is_sent_just_before_the_end_arrives() {
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
    async fn a_body_that_is_broken_off_says_why_after_its_parts() {
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
    async fn a_sender_learns_that_nobody_reads() {
        let (mut sender, body) = body(1);
        drop(body);
        assert_eq!(sender.send_data(Bytes::new()).await, Err(Unread));
    }
}
