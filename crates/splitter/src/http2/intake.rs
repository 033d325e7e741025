//! Reads a client's frames, and bounds what their header blocks become.
//!
//! Header compression makes a byte of a header block up to a hundred bytes of memory. The library limits each list of headers,
//! but a client may send many before the first of them is accepted. So reading stops after some of them, until all streams that
//! they begin have been accepted or refused. Trailers wait in the library until the body before them has been read, so they are
//! charged when they are received.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::memory::{Charge, Holder, InFlight, MeasuredReader};
use crate::stream::BoxStream;

/// After so many bytes of header blocks, the streams that they begin are accepted first.
const MAX_PENDING_BLOCKS: usize = 4 * 1024;
/// A byte of a header block can be an entry of a `HeaderMap`.
const BLOCK_EXPANSION: usize = 128;
/// The memory of an entry of a `HeaderMap`, beside its name and value.
const ENTRY: usize = 128;

/// The memory of a list of headers.
pub(super) fn head_size(headers: &http::HeaderMap) -> usize {
    let content = headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len());
    content.sum::<usize>() + headers.len() * ENTRY
}

/// What has been read from a client.
pub(super) struct Intake {
    holder: Holder,
    in_flight: Arc<InFlight>,
    /// Bytes of header blocks since the last call of [`Intake::reopen`].
    pending_blocks: AtomicUsize,
    /// The trailers that were received, by stream.
    trailers: Mutex<HashMap<u32, Charge>>,
}

impl Intake {
    pub(super) fn new(holder: &Holder, in_flight: &Arc<InFlight>) -> Arc<Self> {
        Arc::new(Self {
            holder: holder.clone(),
            in_flight: Arc::clone(in_flight),
            pending_blocks: AtomicUsize::new(0),
            trailers: Mutex::default(),
        })
    }

    pub(super) fn read(self: &Arc<Self>, stream: BoxStream) -> IntakeStream {
        IntakeStream {
            stream: MeasuredReader::new(stream, self.holder.memory(), {
                let in_flight = Arc::clone(&self.in_flight);
                move || Arc::clone(&in_flight)
            }),
            scanner: FrameScanner::default(),
            intake: Arc::clone(self),
        }
    }

    /// The bytes of bodies that are not forwarded.
    pub(super) fn stalled(&self) -> usize {
        self.in_flight.total()
    }

    fn is_open(&self) -> bool {
        self.pending_blocks.load(Ordering::Relaxed) < MAX_PENDING_BLOCKS
    }

    /// Continues reading: all streams that have begun were accepted or refused. Returns whether reading had stopped.
    pub(super) fn reopen(&self) -> bool {
        let had_stopped = !self.is_open();
        self.pending_blocks.store(0, Ordering::Relaxed);
        had_stopped
    }

    /// The trailers of a stream have been forwarded or dropped.
    pub(super) fn end_stream(&self, stream: u32) {
        self.trailers.lock().remove(&stream);
    }

    fn received(&self, block: HeaderBlock) {
        if block.is_trailers {
            let mut trailers = self.trailers.lock();
            let trailers = trailers.entry(block.stream);
            let charge = trailers.or_insert_with(|| self.holder.charge(0));
            charge.resize(charge.bytes() + block.length * BLOCK_EXPANSION);
        } else {
            self.pending_blocks
                .fetch_add(block.length, Ordering::Relaxed);
        }
    }
}

/// A client's connection, whose frames are counted while they are read.
pub(super) struct IntakeStream {
    stream: MeasuredReader<BoxStream>,
    scanner: FrameScanner,
    intake: Arc<Intake>,
}

impl AsyncRead for IntakeStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if !this.intake.is_open() {
            // The task that accepts the streams polls again after it has reopened the intake.
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
        let bytes = &buffer.filled()[before..];
        this.scanner
            .scan(bytes, |block| this.intake.received(block));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for IntakeStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// A part of a list of headers, compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct HeaderBlock {
    stream: u32,
    length: usize,
    is_trailers: bool,
}

/// Finds header blocks among the frames of a client.
struct FrameScanner {
    /// The rest of the connection preface, or of a frame's payload.
    skip: usize,
    header: [u8; FRAME_HEADER],
    header_length: usize,
    last_stream: u32,
    is_trailers: bool,
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEADER: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;

impl Default for FrameScanner {
    fn default() -> Self {
        Self {
            skip: PREFACE.len(),
            header: [0; FRAME_HEADER],
            header_length: 0,
            last_stream: 0,
            is_trailers: false,
        }
    }
}

impl FrameScanner {
    fn scan(&mut self, mut bytes: &[u8], mut found: impl FnMut(HeaderBlock)) {
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            let missing = (FRAME_HEADER - self.header_length).min(bytes.len());
            let end = self.header_length + missing;
            self.header[self.header_length..end].copy_from_slice(&bytes[..missing]);
            self.header_length = end;
            bytes = &bytes[missing..];
            if self.header_length == FRAME_HEADER {
                self.header_length = 0;
                if let Some(block) = self.begin_frame() {
                    found(block);
                }
            }
        }
    }

    /// Handles a complete frame header.
    fn begin_frame(&mut self) -> Option<HeaderBlock> {
        let [a, b, c, kind, _, s0, s1, s2, s3] = self.header;
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        let stream = u32::from_be_bytes([s0, s1, s2, s3]) & !(1 << 31);
        self.skip = length;
        match kind {
            HEADERS => {
                self.is_trailers = stream <= self.last_stream;
                self.last_stream = self.last_stream.max(stream);
            }
            CONTINUATION => {}
            _ => return None,
        }
        Some(HeaderBlock {
            stream,
            length,
            is_trailers: self.is_trailers,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).unwrap();
        let mut frame = vec![0, 0, length, kind, 0, 0, 0, 0, stream];
        frame.extend_from_slice(payload);
        frame
    }

    #[test]
    fn header_blocks_are_found_wherever_reads_end() {
        let frames = [
            PREFACE.to_vec(),
            frame(4, 0, b"settin"),
            frame(HEADERS, 1, b"head"),
            frame(CONTINUATION, 1, b"more"),
            frame(0, 1, b"a body with \x00\x00\x01\x01 in it"),
            frame(HEADERS, 3, b""),
            frame(HEADERS, 1, b"trailers"),
            frame(CONTINUATION, 1, b"x"),
            frame(HEADERS, 5, b"abc"),
        ]
        .concat();
        let block = |stream, length, is_trailers| HeaderBlock {
            stream,
            length,
            is_trailers,
        };
        let expected = [
            block(1, 4, false),
            block(1, 4, false),
            block(3, 0, false),
            block(1, 8, true),
            block(1, 1, true),
            block(5, 3, false),
        ];
        for size in 1..=frames.len() {
            let mut scanner = FrameScanner::default();
            let mut found = Vec::new();
            for part in frames.chunks(size) {
                scanner.scan(part, |block| found.push(block));
            }
            assert_eq!(found, expected, "in reads of {size}");
        }
    }
}
