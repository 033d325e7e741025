//! A connection as an `incoming/accept` request: the response body has the client's bytes, the request body the application's.
//!
//! The splitter writes into a buffer of limited size, and HTTP/2 reads from it when it can send. No task is needed between
//! them, and while there is nothing to send, no buffer is allocated.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf as _, Bytes, BytesMut};
use http_body::{Body as _, Frame};
use link::http2::PREFERRED_CHUNK_SIZE;
use parking_lot::Mutex;
use protocol::incoming::ACCEPTED;
use splitter::{Charge, Holder};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::Status;

use super::reachability::ReachabilityWatch;
use super::reset::ResetState;
use crate::connection::RequestBody;

/// The agent's end of a connection to a session.
pub(super) struct SessionStream {
    from_session: SessionReader,
    to_session: SessionWriter,
}

impl SessionStream {
    /// A stream that reads the request body, and the response body with the bytes that are written to the stream.
    pub(super) fn new(
        mut from_session: RequestBody,
        reachability: &ReachabilityWatch,
    ) -> (Self, ResponseBody) {
        // What waits here, waits for the client: if it holds too much, its connection ends.
        if let Some(client) = Holder::of_client() {
            from_session.charge_to(client);
        }
        let buffer = Arc::new(SharedBuffer(Mutex::new(BufferState {
            bytes: BytesMut::new(),
            charge: from_session.holder().charge(0),
            end: WriteEnd::Open,
            is_closed: false,
            writer: None,
            reader: None,
        })));
        let stream = Self {
            from_session: SessionReader {
                body: from_session,
                unread: Bytes::new(),
                state: ReadState::Offered,
                disconnected: Some(Box::pin(reachability.clone().disconnected())),
                reset_state: ResetState::current(),
            },
            to_session: SessionWriter {
                buffer: Arc::clone(&buffer),
                reset_state: ResetState::current(),
            },
        };
        (stream, ResponseBody(buffer))
    }

    /// Splits the stream into its reader and its writer.
    pub(super) fn split(self) -> (SessionReader, SessionWriter) {
        (self.from_session, self.to_session)
    }
}

/// Reads the bytes that the session sends.
pub(super) struct SessionReader {
    body: RequestBody,
    unread: Bytes,
    state: ReadState,
    /// Completes when the session disconnects. Only used until the application has accepted the connection, because the
    /// connection can be offered to another destination until then.
    disconnected: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    reset_state: Option<Arc<ResetState>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadState {
    /// The application has not accepted the connection yet.
    Offered,
    /// The application has accepted the connection.
    Accepted,
    /// The application has sent all bytes.
    Ended,
}

impl SessionReader {
    /// Whether the application has accepted the connection.
    pub(super) fn is_accepted(&self) -> bool {
        self.state != ReadState::Offered
    }

    /// The next bytes. Empty at the end.
    pub(super) async fn next(&mut self) -> io::Result<Bytes> {
        poll_fn(|context| self.poll_bytes(context).map_ok(std::mem::take)).await
    }

    fn poll_bytes(&mut self, context: &mut Context<'_>) -> Poll<io::Result<&mut Bytes>> {
        while self.unread.is_empty() && self.state != ReadState::Ended {
            if let Some(disconnected) = &mut self.disconnected
                && disconnected.as_mut().poll(context).is_ready()
            {
                self.disconnected = None;
                return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
            }
            let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
            let Some(frame) = frame else {
                let previous = std::mem::replace(&mut self.state, ReadState::Ended);
                if previous == ReadState::Offered {
                    return Poll::Ready(Err(io::ErrorKind::ConnectionRefused.into()));
                }
                break;
            };
            let Ok(frame) = frame else {
                // The session has reset the stream, or its connection has ended.
                if let Some(reset_state) = &self.reset_state {
                    reset_state.mark_server_reset();
                }
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            };
            let Ok(bytes) = frame.into_data() else {
                continue;
            };
            self.unread = bytes;
            if self.state == ReadState::Offered && !self.unread.is_empty() {
                if self.unread.get_u8() != ACCEPTED {
                    return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
                }
                self.state = ReadState::Accepted;
                self.disconnected = None;
            }
        }
        Poll::Ready(Ok(&mut self.unread))
    }
}

/// Writes the bytes that the session receives.
pub(super) struct SessionWriter {
    buffer: Arc<SharedBuffer>,
    reset_state: Option<Arc<ResetState>>,
}

/// The written bytes as a response body.
pub(super) struct ResponseBody(Arc<SharedBuffer>);

struct SharedBuffer(Mutex<BufferState>);

struct BufferState {
    bytes: BytesMut,
    /// For the bytes.
    charge: Charge,
    end: WriteEnd,
    /// The response body was dropped, so no more bytes are read.
    is_closed: bool,
    writer: Option<Waker>,
    reader: Option<Waker>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteEnd {
    Open,
    Closed,
    Reset,
}

impl BufferState {
    fn append(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.charge.resize(self.bytes.capacity());
        self.wake_reader();
    }

    fn take(&mut self) -> BytesMut {
        self.charge.resize(0);
        std::mem::take(&mut self.bytes)
    }

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

fn register_waker(waker: &mut Option<Waker>, context: &Context<'_>) {
    match waker {
        Some(registered) => registered.clone_from(context.waker()),
        None => *waker = Some(context.waker().clone()),
    }
}

impl SessionWriter {
    /// Writes as many bytes as fit into the buffer.
    fn poll_write(&mut self, context: &Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.buffer.0.lock();
        if state.is_closed || state.end != WriteEnd::Open {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let count = bytes
            .len()
            .min(PREFERRED_CHUNK_SIZE.saturating_sub(state.bytes.len()));
        if count == 0 && !bytes.is_empty() {
            register_waker(&mut state.writer, context);
            return Poll::Pending;
        }
        state.append(&bytes[..count]);
        Poll::Ready(Ok(count))
    }

    /// Writes all bytes, or none if they do not fit into the buffer.
    pub(super) fn try_write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.buffer.0.lock();
        if state.is_closed || state.end != WriteEnd::Open {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if state.bytes.len() + bytes.len() > PREFERRED_CHUNK_SIZE {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        state.append(bytes);
        Ok(())
    }

    /// Ends the response body: with a reset if the client was reset.
    fn finish(&mut self) {
        let mut state = self.buffer.0.lock();
        if state.end == WriteEnd::Open {
            let is_reset = self
                .reset_state
                .as_ref()
                .is_some_and(|reset_state| reset_state.client_was_reset());
            state.end = match is_reset {
                true => WriteEnd::Reset,
                false => WriteEnd::Closed,
            };
            state.wake_reader();
        }
    }
}

impl Drop for SessionWriter {
    fn drop(&mut self) {
        // A dropped socket is closed, too.
        self.finish();
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        state.is_closed = true;
        drop(state.take());
        state.wake_writer();
    }
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let mut state = self.0.0.lock();
        if !state.bytes.is_empty() {
            let bytes = state.take();
            state.wake_writer();
            return Poll::Ready(Some(Ok(Frame::data(bytes.freeze()))));
        }
        match state.end {
            WriteEnd::Open => {
                register_waker(&mut state.reader, context);
                Poll::Pending
            }
            WriteEnd::Closed => Poll::Ready(None),
            WriteEnd::Reset => Poll::Ready(Some(Err(Status::cancelled("reset")))),
        }
    }
}

impl AsyncRead for SessionStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let unread = ready!(self.from_session.poll_bytes(context))?;
        let count = unread.len().min(buffer.remaining());
        buffer.put_slice(&unread[..count]);
        unread.advance(count);
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
        // HTTP/2 reads the buffer as soon as it can send.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.to_session.finish();
        Poll::Ready(Ok(()))
    }
}
