//! The messages about windows, and the body that carries them.
//!
//! A message is a kind (one byte) and two integers of eight bytes, big-endian. A grant replaces an earlier one of the same
//! stream that was not sent yet, so the messages need little memory even when the connection is slow.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use http_body::{Body, Frame};
use parking_lot::Mutex;

const LENGTH: usize = 17;
const GRANT: u8 = 1;
const PING: u8 = 2;
const PONG: u8 = 3;
/// Messages that are no grants and wait to be sent. More are dropped: they are only measurements.
const MAX_OTHERS: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Message {
    /// The sender of this stream's body may send so many bytes in total.
    Grant {
        stream: u64,
        granted: u64,
    },
    /// The response repeats the stamp.
    Ping {
        stamp: u64,
    },
    Pong {
        stamp: u64,
    },
    /// A message of a later version, which is ignored.
    Unknown,
}

impl Message {
    pub(super) fn put(self, bytes: &mut BytesMut) {
        let (kind, first, second) = match self {
            Self::Grant { stream, granted } => (GRANT, stream, granted),
            Self::Ping { stamp } => (PING, stamp, 0),
            Self::Pong { stamp } => (PONG, stamp, 0),
            Self::Unknown => return,
        };
        bytes.put_u8(kind);
        bytes.put_u64(first);
        bytes.put_u64(second);
    }
}

/// Decodes messages from bytes that may be received in any parts.
#[derive(Debug, Default)]
pub(super) struct Decoder(BytesMut);

impl Decoder {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn next(&mut self) -> Option<Message> {
        if self.0.len() < LENGTH {
            return None;
        }
        let mut bytes = self.0.split_to(LENGTH);
        let (kind, first, second) = (bytes.get_u8(), bytes.get_u64(), bytes.get_u64());
        Some(match kind {
            GRANT => Message::Grant {
                stream: first,
                granted: second,
            },
            PING => Message::Ping { stamp: first },
            PONG => Message::Pong { stamp: first },
            _ => Message::Unknown,
        })
    }
}

/// Messages that wait to be sent.
#[derive(Debug, Default)]
pub(super) struct Outbox(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    grants: HashMap<u64, u64>,
    others: Vec<Message>,
    waker: Option<Waker>,
    /// There will be no more messages.
    is_ending: bool,
    /// The body was dropped: the tunnel has ended.
    is_closed: bool,
}

impl Outbox {
    pub(super) fn send(&self, message: Message) {
        let mut waiting = self.0.lock();
        if waiting.is_closed {
            return;
        }
        match message {
            _ if waiting.is_ending => {}
            Message::Grant { stream, granted } => drop(waiting.grants.insert(stream, granted)),
            message if waiting.others.len() < MAX_OTHERS => waiting.others.push(message),
            _ => {}
        }
        if let Some(waker) = waiting.waker.take() {
            drop(waiting);
            waker.wake();
        }
    }

    pub(super) fn end(&self) {
        let mut waiting = self.0.lock();
        waiting.is_ending = true;
        if let Some(waker) = waiting.waker.take() {
            drop(waiting);
            waker.wake();
        }
    }
}

/// Sends what is in an outbox, until that ends.
#[derive(Debug)]
pub(crate) struct GrantBody(Arc<Outbox>);

impl GrantBody {
    pub(super) fn new(outbox: Arc<Outbox>) -> Self {
        Self(outbox)
    }
}

impl Body for GrantBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let mut waiting = self.0.0.lock();
        if waiting.grants.is_empty() && waiting.others.is_empty() {
            if waiting.is_ending {
                return Poll::Ready(None);
            }
            waiting.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        let others = std::mem::take(&mut waiting.others);
        let grants = waiting
            .grants
            .drain()
            .map(|(stream, granted)| Message::Grant { stream, granted });
        let bytes = super::encode(others.into_iter().chain(grants));
        Poll::Ready(Some(Ok(Frame::data(bytes.freeze()))))
    }
}

impl Drop for GrantBody {
    fn drop(&mut self) {
        let mut waiting = self.0.0.lock();
        *waiting = Waiting {
            is_closed: true,
            ..Waiting::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_decoded_as_they_were_encoded() {
        let messages = [
            Message::Grant {
                stream: 7,
                granted: 1 << 40,
            },
            Message::Ping { stamp: 3 },
            Message::Pong { stamp: u64::MAX },
        ];
        let bytes = super::super::encode(messages.into_iter());
        for step in [1, 16, 17, 100] {
            let mut decoder = Decoder::default();
            let mut decoded = Vec::new();
            for part in bytes.chunks(step) {
                decoder.push(part);
                decoded.extend(std::iter::from_fn(|| decoder.next()));
            }
            assert_eq!(decoded, messages);
        }
    }

    #[test]
    fn a_message_of_a_later_version_is_skipped() {
        let mut decoder = Decoder::default();
        decoder.push(&[200; LENGTH]);
        assert_eq!(decoder.next(), Some(Message::Unknown));
        assert_eq!(decoder.next(), None);
    }

    #[test]
    fn only_the_last_grant_of_a_stream_is_sent() {
        let outbox = Arc::new(Outbox::default());
        let mut body = GrantBody::new(Arc::clone(&outbox));
        for granted in 1..100 {
            outbox.send(Message::Grant { stream: 1, granted });
            outbox.send(Message::Pong { stamp: granted });
        }
        let mut context = Context::from_waker(Waker::noop());
        let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut body).poll_frame(&mut context) else {
            panic!("there are messages");
        };
        let bytes = frame.into_data().unwrap();
        assert_eq!(bytes.len(), (MAX_OTHERS + 1) * LENGTH);
        assert!(Pin::new(&mut body).poll_frame(&mut context).is_pending());
        drop(body);
        outbox.send(Message::Ping { stamp: 1 });
        assert!(outbox.0.lock().others.is_empty());
    }

    #[test]
    fn a_body_ends_after_the_messages_that_wait() {
        let outbox = Arc::new(Outbox::default());
        let mut body = GrantBody::new(Arc::clone(&outbox));
        outbox.send(Message::Ping { stamp: 1 });
        outbox.end();
        outbox.send(Message::Ping { stamp: 2 });
        let mut context = Context::from_waker(Waker::noop());
        let first = Pin::new(&mut body).poll_frame(&mut context);
        let Poll::Ready(Some(Ok(frame))) = first else {
            panic!("there is a message");
        };
        assert_eq!(frame.into_data().unwrap().len(), LENGTH);
        let end = Pin::new(&mut body).poll_frame(&mut context);
        assert!(matches!(end, Poll::Ready(None)));
    }
}
