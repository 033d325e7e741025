//! A connection as an `incoming/accept`: the response body brings the client's bytes, the request body the application's.
//!
//! The splitter writes, and HTTP/2 takes when it can send: between them is one piece, and no task. While there is nothing
//! to send there is no buffer.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf as _, Bytes, BytesMut};
use http_body::{Body as _, Frame};
use hyper::body::Incoming;
use link::http2::PIECE;
use protocol::incoming::TAKEN;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::Status;

use super::fate::Fate;
use super::reachable::Reachable;

/// The agent's end of a session's stream.
pub(super) struct SessionStream {
    from_session: FromSession,
    to_session: Writer,
}

impl SessionStream {
    /// A stream that reads this body, and the body that has what is written.
    pub(super) fn new(from_session: Incoming, reachable: &Reachable) -> (Self, Written) {
        let slot = Arc::new(Slot::default());
        let stream = Self {
            from_session: FromSession {
                body: from_session,
                piece: Bytes::new(),
                state: State::Offered,
                lost: Some(Box::pin(reachable.clone().lost())),
                fate: Fate::current(),
            },
            to_session: Writer {
                slot: Arc::clone(&slot),
                fate: Fate::current(),
            },
        };
        (stream, Written(slot))
    }

    /// Takes apart what reads and what writes.
    pub(super) fn split(self) -> (FromSession, Writer) {
        (self.from_session, self.to_session)
    }
}

/// Reads what the session sends.
pub(super) struct FromSession {
    body: Incoming,
    piece: Bytes,
    state: State,
    /// Until the application has taken the connection, it is offered only to who can be reached.
    lost: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    fate: Option<Arc<Fate>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Until the application has taken the connection.
    Offered,
    /// Until the application has said all.
    Taken,
    Ended,
}

impl FromSession {
    /// Whether the application has taken the connection.
    pub(super) fn is_taken(&self) -> bool {
        self.state != State::Offered
    }

    /// The next bytes. Empty: there are no more.
    pub(super) async fn next(&mut self) -> io::Result<Bytes> {
        poll_fn(|context| self.poll_bytes(context).map_ok(std::mem::take)).await
    }

    fn poll_bytes(&mut self, context: &mut Context<'_>) -> Poll<io::Result<&mut Bytes>> {
        while self.piece.is_empty() && self.state != State::Ended {
            if let Some(lost) = &mut self.lost
                && lost.as_mut().poll(context).is_ready()
            {
                self.lost = None;
                return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
            }
            let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
            let Some(frame) = frame else {
                let was = std::mem::replace(&mut self.state, State::Ended);
                if was == State::Offered {
                    return Poll::Ready(Err(io::ErrorKind::ConnectionRefused.into()));
                }
                break;
            };
            let Ok(frame) = frame else {
                // The session has reset the stream or is gone.
                if let Some(fate) = &self.fate {
                    fate.break_server();
                }
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            };
            let Ok(bytes) = frame.into_data() else {
                continue;
            };
            self.piece = bytes;
            if self.state == State::Offered && !self.piece.is_empty() {
                if self.piece.get_u8() != TAKEN {
                    return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
                }
                self.state = State::Taken;
                self.lost = None;
            }
        }
        Poll::Ready(Ok(&mut self.piece))
    }
}

/// Writes what the session gets.
pub(super) struct Writer {
    slot: Arc<Slot>,
    fate: Option<Arc<Fate>>,
}

/// What was written, as a body.
pub(super) struct Written(Arc<Slot>);

#[derive(Default)]
struct Slot(Mutex<Content>);

#[derive(Default)]
struct Content {
    bytes: BytesMut,
    end: End,
    /// Nobody takes bytes any more.
    is_unread: bool,
    writer: Option<Waker>,
    reader: Option<Waker>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Until the writer has ended, or is gone.
    #[default]
    NotYet,
    Ended,
    Broken,
}

impl Slot {
    fn content(&self) -> MutexGuard<'_, Content> {
        // Every change is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Content {
    fn wake_reader(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    fn wake_writer(&mut self) {
        if let Some(writer) = self.writer.take() {
            writer.wake();
        }
    }
}

fn wait(waker: &mut Option<Waker>, context: &Context<'_>) {
    match waker {
        Some(known) => known.clone_from(context.waker()),
        None => *waker = Some(context.waker().clone()),
    }
}

impl Writer {
    /// Takes bytes as far as there is room.
    fn poll_write(&mut self, context: &Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut content = self.slot.content();
        if content.is_unread || content.end != End::NotYet {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let count = bytes.len().min(PIECE.saturating_sub(content.bytes.len()));
        if count == 0 && !bytes.is_empty() {
            wait(&mut content.writer, context);
            return Poll::Pending;
        }
        content.bytes.extend_from_slice(&bytes[..count]);
        content.wake_reader();
        Poll::Ready(Ok(count))
    }

    /// Takes all of it or nothing.
    pub(super) fn try_write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut content = self.slot.content();
        if content.is_unread || content.end != End::NotYet {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if content.bytes.len() + bytes.len() > PIECE {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        content.bytes.extend_from_slice(bytes);
        content.wake_reader();
        Ok(())
    }

    /// Says that nothing more comes, or that the client has broken off.
    fn finish(&mut self) {
        let mut content = self.slot.content();
        if content.end == End::NotYet {
            let is_broken = self.fate.as_ref().is_some_and(|fate| fate.client_broke());
            content.end = match is_broken {
                true => End::Broken,
                false => End::Ended,
            };
            content.wake_reader();
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // As when a socket is closed.
        self.finish();
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        let mut content = self.0.content();
        content.is_unread = true;
        content.bytes = BytesMut::new();
        content.wake_writer();
    }
}

impl http_body::Body for Written {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let mut content = self.0.content();
        if !content.bytes.is_empty() {
            let bytes = std::mem::take(&mut content.bytes);
            content.wake_writer();
            return Poll::Ready(Some(Ok(Frame::data(bytes.freeze()))));
        }
        match content.end {
            End::NotYet => {
                wait(&mut content.reader, context);
                Poll::Pending
            }
            End::Ended => Poll::Ready(None),
            End::Broken => Poll::Ready(Some(Err(Status::cancelled("reset")))),
        }
    }
}

impl AsyncRead for SessionStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let piece = ready!(self.from_session.poll_bytes(context))?;
        let count = piece.len().min(buffer.remaining());
        buffer.put_slice(&piece[..count]);
        piece.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for SessionStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.to_session.poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // HTTP/2 takes what is there as soon as it can send.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.to_session.finish();
        Poll::Ready(Ok(()))
    }
}
