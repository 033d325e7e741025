//! A byte stream in the binary messages of a WebSocket.
//!
//! Only the framing is here: the HTTP upgrade is done before. Messages have no meaning, only their bytes have, so a frame's
//! payload is passed on as it is received, and nothing is ever buffered until a message is complete. That keeps the memory
//! of an idle tunnel small, and saves two copies of a busy one compared with a general WebSocket library.
//!
//! A client masks what it sends, as the standard requires, so its bytes are copied once. A server's are not.

mod header;

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use self::header::{Header, HeaderDecoder, MAX_CONTROL, MAX_HEADER, Opcode, apply_mask};

/// Maximum payload of a frame that this end sends.
const MAX_PAYLOAD: usize = 256 * 1024;
/// Masked bytes that wait for the connection. A client copies at most so many at once.
const MASKED_BUFFER: usize = 64 * 1024;
/// Slices of one write: the header, and what the caller passes.
const SLICES: usize = 16;

/// The end of a WebSocket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Masks what it sends.
    Client,
    Server,
}

/// A WebSocket as a pipe. The end of either direction ends both.
#[derive(Debug)]
pub(crate) struct WebSocketPipe<S> {
    stream: S,
    role: Role,
    reading: Reading,
    writing: Writing,
}

#[derive(Debug, Default)]
struct Reading {
    decoder: HeaderDecoder,
    /// The frame whose payload is being received.
    frame: Option<Header>,
    /// How much of its payload was received.
    position: usize,
    /// The payload of a control frame.
    control: Vec<u8>,
    is_closed: bool,
}

#[derive(Debug, Default)]
struct Writing {
    /// Frame headers, control frames and, for a client, masked payloads. Written before anything else.
    buffer: Vec<u8>,
    written: usize,
    /// Payload bytes that the last header has announced and that were not accepted yet. Only a server has some: a client
    /// accepts whole frames into its buffer.
    announced: usize,
    /// The response to the last ping, for the next boundary between frames.
    pong: Option<Vec<u8>>,
    is_closed: bool,
}

impl<S> WebSocketPipe<S> {
    /// A WebSocket after its upgrade.
    pub(crate) fn new(stream: S, role: Role) -> Self {
        Self {
            stream,
            role,
            reading: Reading::default(),
            writing: Writing::default(),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> WebSocketPipe<S> {
    /// Receives the next header. Ready with `None` at the end of the stream.
    fn poll_header(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Header>>> {
        loop {
            let mut bytes = [0; MAX_HEADER];
            let missing = self.reading.decoder.missing();
            let mut buffer = ReadBuf::new(&mut bytes[..missing]);
            ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer))?;
            if buffer.filled().is_empty() {
                return Poll::Ready(Ok(None));
            }
            if let Some(header) = self.reading.decoder.push(buffer.filled())? {
                self.check_mask(&header)?;
                return Poll::Ready(Ok(Some(header)));
            }
        }
    }

    fn check_mask(&self, header: &Header) -> io::Result<()> {
        match (self.role, header.mask) {
            (Role::Server, Some(_)) | (Role::Client, None) => Ok(()),
            (Role::Server, None) => Err(invalid("a client has to mask its frames")),
            (Role::Client, Some(_)) => Err(invalid("a server must not mask its frames")),
        }
    }

    /// Receives a part of a data frame's payload.
    fn poll_payload(
        &mut self,
        context: &mut Context<'_>,
        header: Header,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let left = header.length - self.reading.position;
        let room = buffer.remaining().min(left);
        let mut part = ReadBuf::new(buffer.initialize_unfilled_to(room));
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut part))?;
        if let Some(mask) = header.mask {
            apply_mask(part.filled_mut(), mask, self.reading.position);
        }
        let count = part.filled().len();
        buffer.advance(count);
        if count == 0 && room > 0 {
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        self.reading.position += count;
        if self.reading.position == header.length {
            self.reading.frame = None;
        }
        Poll::Ready(Ok(()))
    }

    /// Receives the payload of a control frame, and handles it.
    fn poll_control(&mut self, context: &mut Context<'_>, header: Header) -> Poll<io::Result<()>> {
        while self.reading.control.len() < header.length {
            let mut bytes = [0; MAX_CONTROL];
            let missing = header.length - self.reading.control.len();
            let mut part = ReadBuf::new(&mut bytes[..missing]);
            ready!(Pin::new(&mut self.stream).poll_read(context, &mut part))?;
            if part.filled().is_empty() {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            self.reading.control.extend_from_slice(part.filled());
        }
        let mut payload = std::mem::take(&mut self.reading.control);
        if let Some(mask) = header.mask {
            apply_mask(&mut payload, mask, 0);
        }
        self.reading.frame = None;
        match header.opcode {
            Opcode::Close => self.reading.is_closed = true,
            // Only the last ping needs a response.
            Opcode::Ping => self.writing.pong = Some(payload),
            Opcode::Pong | Opcode::Data => {}
        }
        Poll::Ready(Ok(()))
    }

    /// Writes the buffer out.
    fn poll_buffer(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let writing = &mut self.writing;
        while writing.written < writing.buffer.len() {
            let rest = &writing.buffer[writing.written..];
            match ready!(Pin::new(&mut self.stream).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => writing.written += count,
            }
        }
        writing.buffer.clear();
        writing.written = 0;
        Poll::Ready(Ok(()))
    }

    /// Adds a control frame to the buffer, unless a data frame is only partly written.
    fn put_control(&mut self, opcode: Opcode, payload: &[u8]) {
        let mask = self.mask();
        let writing = &mut self.writing;
        header::put(&mut writing.buffer, opcode, payload.len(), mask);
        let start = writing.buffer.len();
        writing.buffer.extend_from_slice(payload);
        if let Some(mask) = mask {
            apply_mask(&mut writing.buffer[start..], mask, 0);
        }
    }

    fn put_pong(&mut self) {
        if self.writing.announced == 0
            && let Some(payload) = self.writing.pong.take()
        {
            self.put_control(Opcode::Pong, &payload);
        }
    }

    fn mask(&self) -> Option<[u8; 4]> {
        (self.role == Role::Client).then(rand::random)
    }

    /// Copies, masks and buffers the first bytes of the slices as one frame.
    fn buffer_masked(&mut self, slices: &[IoSlice<'_>]) -> usize {
        let total: usize = slices.iter().map(|slice| slice.len()).sum();
        let length = total.min(MASKED_BUFFER);
        let mask = self.mask();
        let buffer = &mut self.writing.buffer;
        buffer.reserve(length + MAX_HEADER);
        header::put(buffer, Opcode::Data, length, mask);
        let start = buffer.len();
        let mut left = length;
        for slice in slices {
            let part = &slice[..slice.len().min(left)];
            buffer.extend_from_slice(part);
            left -= part.len();
        }
        if let Some(mask) = mask {
            apply_mask(&mut buffer[start..], mask, 0);
        }
        length
    }

    /// Writes the buffered header and the announced bytes together.
    fn poll_write_announced(
        &mut self,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            let writing = &mut self.writing;
            let buffered = &writing.buffer[writing.written..];
            let mut parts = [IoSlice::new(&[]); SLICES];
            let mut used = 0;
            let mut left = writing.announced;
            if !buffered.is_empty() {
                parts[0] = IoSlice::new(buffered);
                used = 1;
            }
            for slice in slices {
                if used == SLICES || left == 0 {
                    break;
                }
                let part = &slice[..slice.len().min(left)];
                if !part.is_empty() {
                    parts[used] = IoSlice::new(part);
                    used += 1;
                    left -= part.len();
                }
            }
            let buffered = buffered.len();
            let stream = Pin::new(&mut self.stream);
            let count = ready!(stream.poll_write_vectored(context, &parts[..used]))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            writing.written += count.min(buffered);
            if count < buffered {
                continue;
            }
            writing.buffer.clear();
            writing.written = 0;
            let payload = count - buffered;
            writing.announced -= payload;
            if payload > 0 {
                return Poll::Ready(Ok(payload));
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for WebSocketPipe<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let pipe = &mut *self;
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        loop {
            if pipe.reading.is_closed {
                return Poll::Ready(Ok(()));
            }
            let header = match pipe.reading.frame {
                Some(header) => header,
                None => match ready!(pipe.poll_header(context))? {
                    Some(header) => header,
                    None => return Poll::Ready(Ok(())),
                },
            };
            if pipe.reading.frame.is_none() {
                pipe.reading.position = 0;
                pipe.reading.frame = Some(header);
            }
            match header.opcode {
                Opcode::Data if header.length == 0 => pipe.reading.frame = None,
                Opcode::Data => return pipe.poll_payload(context, header, buffer),
                Opcode::Ping | Opcode::Pong | Opcode::Close => {
                    ready!(pipe.poll_control(context, header))?;
                    pipe.put_pong();
                    // A response that does not fit now is sent with the next bytes.
                    if let Poll::Ready(result) = pipe.poll_buffer(context) {
                        result?;
                    }
                }
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for WebSocketPipe<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let pipe = &mut *self;
        let length: usize = slices.iter().map(|slice| slice.len()).sum();
        if length == 0 {
            return Poll::Ready(Ok(0));
        }
        if pipe.writing.is_closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        pipe.put_pong();
        match pipe.role {
            Role::Client => {
                ready!(pipe.poll_buffer(context))?;
                let length = pipe.buffer_masked(slices);
                // The bytes are accepted. What does not fit now is written later.
                if let Poll::Ready(result) = pipe.poll_buffer(context) {
                    result?;
                }
                Poll::Ready(Ok(length))
            }
            Role::Server => {
                if pipe.writing.announced == 0 {
                    pipe.writing.announced = length.min(MAX_PAYLOAD);
                    let announced = pipe.writing.announced;
                    header::put(&mut pipe.writing.buffer, Opcode::Data, announced, None);
                }
                pipe.poll_write_announced(context, slices)
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.put_pong();
        ready!(self.poll_buffer(context))?;
        // An idle tunnel needs no large buffer.
        self.writing.buffer.shrink_to(MAX_CONTROL);
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.writing.is_closed {
            self.writing.is_closed = true;
            // In the middle of a frame, a close frame would be taken for its payload.
            if self.writing.announced == 0 {
                self.put_control(Opcode::Close, &header::NORMAL_CLOSURE);
            }
        }
        ready!(self.poll_buffer(context))?;
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

pub(crate) fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.to_owned())
}

#[cfg(test)]
mod tests;
