//! Processes bytes from the pipe.

use std::time::Instant;

use bytes::{Bytes, BytesMut};

use super::{EndReason, Machine, Phase, Side};
use crate::error::{Abort, LinkError, Malformed};
use crate::frame::Frame;

/// Size of a read from a pipe.
const READ_SIZE: usize = 256 * 1024;
/// The read buffer grows when it has less free space than this.
const MIN_READ_SIZE: usize = 32 * 1024;

impl Machine {
    /// The buffer for the next bytes from the pipe. Call [`Machine::received`] afterwards.
    pub(crate) fn raw(&mut self) -> Option<&mut BytesMut> {
        let Phase::Attached(attachment) = &mut self.phase else {
            return None;
        };
        let raw = &mut attachment.raw;
        if raw.capacity() - raw.len() < MIN_READ_SIZE {
            raw.reserve(READ_SIZE);
        }
        Some(raw)
    }

    /// How many of the next bytes from the pipe may be read directly into the user's buffer.
    pub(crate) fn direct_room(&self) -> usize {
        let Phase::Attached(attachment) = &self.phase else {
            return 0;
        };
        let is_direct = attachment.raw.is_empty()
            && self.receive_buffer.length() == 0
            && self.abandoned.is_none()
            && !self.fin_received
            && attachment.decoder.next_offset() == Some(self.received);
        if is_direct {
            let window = self.limits.receive_window as usize;
            attachment.decoder.data_remaining().min(window)
        } else {
            0
        }
    }

    /// Bytes were read directly into the user's buffer.
    pub(crate) fn received_directly(&mut self, now: Instant, count: usize) {
        if let Phase::Attached(attachment) = &mut self.phase {
            attachment.last_received = now;
            attachment.decoder.skip_data(count);
            self.received += count as u64;
            self.consumed += count as u64;
        }
    }

    /// Bytes have been added to [`Machine::raw`].
    pub(crate) fn received(&mut self, now: Instant) -> Result<(), Malformed> {
        loop {
            let Phase::Attached(attachment) = &mut self.phase else {
                return Ok(());
            };
            attachment.last_received = now;
            match attachment.decoder.next(&mut attachment.raw)? {
                Some(frame) => self.handle(now, frame)?,
                None => return Ok(()),
            }
        }
    }

    fn handle(&mut self, now: Instant, frame: Frame) -> Result<(), Malformed> {
        let Phase::Attached(attachment) = &mut self.phase else {
            return Ok(());
        };
        match frame {
            Frame::Data { offset, bytes } => self.take_data(offset, bytes)?,
            Frame::Fin { offset } => {
                self.expect(offset)?;
                self.fin_received = true;
                self.received += 1;
                self.malformed_connections = 0;
            }
            Frame::Ack { received, limit } => {
                if received > attachment.sent {
                    return Err(Malformed::AckOfUnsent(received));
                }
                self.peer_limit = self.peer_limit.max(limit);
                self.acknowledge(received);
            }
            Frame::Ping { stamp } => attachment.pong_due = Some(stamp),
            Frame::Pong { stamp } => {
                // The stamp is the number of the connection. A PONG for another one is ignored.
                if let Some(sent) = attachment.ping.filter(|_| stamp == self.attachments) {
                    self.round_trip = Some(now.saturating_duration_since(sent));
                }
            }
            Frame::Abort { code, text } => {
                let abort = Abort { code, text };
                self.end(EndReason::Failed(LinkError::Aborted(abort)));
            }
            Frame::Closed if self.side == Side::Client && self.is_complete() => {
                self.end(EndReason::Finished);
            }
            Frame::Closed => return Err(Malformed::ClosedEarly),
        }
        Ok(())
    }

    fn take_data(&mut self, offset: u64, bytes: Bytes) -> Result<(), Malformed> {
        self.expect(offset)?;
        let length = bytes.len() as u64;
        let unread = self.received - self.consumed;
        if unread + length > u64::from(self.limits.receive_window) {
            return Err(Malformed::Overrun);
        }
        self.received += length;
        self.malformed_connections = 0;
        if self.abandoned.is_some() {
            self.consumed += length;
        } else {
            self.receive_buffer.push(bytes);
        }
        Ok(())
    }

    fn expect(&self, offset: u64) -> Result<(), Malformed> {
        if self.fin_received {
            return Err(Malformed::AfterFin);
        }
        if offset != self.received {
            let expected = self.received;
            return Err(Malformed::Offset {
                expected,
                received: offset,
            });
        }
        Ok(())
    }
}
