//! What comes from the pipe.

use std::time::Instant;

use bytes::{Bytes, BytesMut};

use super::{Ending, Machine, Phase, Side};
use crate::error::{Abort, LinkError, Malformed};
use crate::frame::Frame;

/// How much is read from a pipe at once.
const READ: usize = 256 * 1024;
/// Read into what is left of the buffer as long as it is at least this.
const READ_AT_LEAST: usize = 32 * 1024;

impl Machine {
    /// Where to put the next bytes from the pipe. To be followed by [`Machine::received`].
    pub(crate) fn raw(&mut self) -> Option<&mut BytesMut> {
        let Phase::Attached(attachment) = &mut self.phase else {
            return None;
        };
        let raw = &mut attachment.raw;
        if raw.capacity() - raw.len() < READ_AT_LEAST {
            raw.reserve(READ);
        }
        Some(raw)
    }

    /// How many of the next bytes from the pipe may go straight to the user, past all buffers.
    pub(crate) fn direct_room(&self) -> usize {
        let Phase::Attached(attachment) = &self.phase else {
            return 0;
        };
        let straight = attachment.raw.is_empty()
            && self.inbox.length() == 0
            && self.abandoned.is_none()
            && !self.fin_received
            && attachment.decoder.next_number() == Some(self.received);
        if straight {
            let window = self.limits.receive_window as usize;
            attachment.decoder.data_to_come().min(window)
        } else {
            0
        }
    }

    /// As many bytes went straight to the user.
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
            Frame::Data { number, bytes } => self.take_data(number, bytes)?,
            Frame::Fin { number } => {
                self.expect(number)?;
                self.fin_received = true;
                self.received += 1;
                self.malformed_in_a_row = 0;
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
                // The stamp is the number of the connection: an answer to nothing is no answer.
                if let Some(asked) = attachment.ping.filter(|_| stamp == self.attachments) {
                    self.round_trip = Some(now.saturating_duration_since(asked));
                }
            }
            Frame::Abort { code, text } => {
                let abort = Abort { code, text };
                self.end(Ending::Failed(LinkError::Aborted(abort)));
            }
            Frame::Closed if self.side == Side::Client && self.is_complete() => {
                self.end(Ending::Finished);
            }
            Frame::Closed => return Err(Malformed::ClosedEarly),
        }
        Ok(())
    }

    fn take_data(&mut self, number: u64, bytes: Bytes) -> Result<(), Malformed> {
        self.expect(number)?;
        let length = bytes.len() as u64;
        let waiting = self.received - self.consumed;
        if waiting + length > u64::from(self.limits.receive_window) {
            return Err(Malformed::Overrun);
        }
        self.received += length;
        self.malformed_in_a_row = 0;
        if self.abandoned.is_some() {
            self.consumed += length;
        } else {
            self.inbox.push(bytes);
        }
        Ok(())
    }

    fn expect(&self, number: u64) -> Result<(), Malformed> {
        if self.fin_received {
            return Err(Malformed::AfterTheEnd);
        }
        if number != self.received {
            let expected = self.received;
            return Err(Malformed::Number {
                expected,
                got: number,
            });
        }
        Ok(())
    }
}
