//! Produces bytes for the pipe.

use std::io::IoSlice;

use super::{Attachment, EndReason, Machine, Phase, SLICES, Side};
use crate::frame::{self, MAX_DATA};
use crate::handshake::Position;

impl Machine {
    /// Fills in the next bytes for the pipe, in order, and returns how many slices are used. Call [`Machine::written`]
    /// afterwards.
    pub(crate) fn slices<'a>(&'a mut self, slices: &mut [IoSlice<'a>; SLICES]) -> usize {
        self.prepare();
        let Phase::Attached(attachment) = &self.phase else {
            return 0;
        };
        let mut used = 0;
        let mut add = |slice| {
            if let Some(slot) = slices.get_mut(used) {
                *slot = slice;
                used += 1;
            }
        };
        let control = &attachment.control[attachment.control_written..];
        if !control.is_empty() {
            add(IoSlice::new(control));
        }
        if attachment.data_left > 0 {
            self.replay_buffer
                .slices(attachment.sent, attachment.data_left, &mut add);
        }
        used
    }

    /// The pipe has accepted this many bytes.
    pub(crate) fn written(&mut self, count: usize) {
        let Phase::Attached(attachment) = &mut self.phase else {
            return;
        };
        let control = attachment.control.len() - attachment.control_written;
        attachment.control_written += count.min(control);
        let data = count.saturating_sub(control).min(attachment.data_left);
        attachment.data_left -= data;
        attachment.sent += data as u64;
        self.highest_sent = self.highest_sent.max(attachment.sent);
        if attachment.has_written_all()
            && let Some(end_reason) = attachment.closing.take()
        {
            self.end(end_reason);
        }
    }

    /// Prepares the next frames when all earlier ones are written.
    fn prepare(&mut self) {
        let complete = self.is_complete();
        let position = self.position();
        let Phase::Attached(attachment) = &mut self.phase else {
            return;
        };
        if !attachment.has_written_all() || attachment.closing.is_some() {
            return;
        }
        attachment.control.clear();
        attachment.control_written = 0;
        if let Some(abort) = &self.abort {
            frame::put_abort(&mut attachment.control, abort.code, &abort.text);
            attachment.closing = Some(EndReason::Aborted(abort.clone()));
            return;
        }
        let end = self.replay_buffer.end();
        let available = end.min(self.peer_limit).saturating_sub(attachment.sent);
        attachment.put_ack(&position, available > 0, self.fin_received);
        attachment.put_keep_alive(self.attachments);
        if available > 0 {
            attachment.data_left = (available as usize).min(MAX_DATA);
            let length = attachment.data_left;
            frame::put_data_header(&mut attachment.control, attachment.sent, length);
        } else if self.finishing && attachment.sent == end {
            frame::put_fin(&mut attachment.control, end);
            attachment.sent += 1;
            self.highest_sent = self.highest_sent.max(attachment.sent);
        }
        if complete && self.side == Side::Server {
            frame::put_closed(&mut attachment.control);
            attachment.closing = Some(EndReason::Finished);
        }
    }
}

impl Attachment {
    fn has_written_all(&self) -> bool {
        self.control_written == self.control.len() && self.data_left == 0
    }

    /// Adds an ACK if enough has changed. The threshold is lower when other frames are sent anyway.
    fn put_ack(&mut self, position: &Position, with_data: bool, fin_received: bool) {
        let change = (position.received - self.sent_received).max(position.limit - self.sent_limit);
        let threshold = if fin_received || self.ping_due || self.pong_due.is_some() {
            1
        } else if with_data {
            (self.ack_step / 8).max(1)
        } else {
            self.ack_step
        };
        if change >= threshold {
            frame::put_ack(&mut self.control, position.received, position.limit);
            (self.sent_received, self.sent_limit) = (position.received, position.limit);
        }
    }

    fn put_keep_alive(&mut self, stamp: u64) {
        if let Some(stamp) = self.pong_due.take() {
            frame::put_pong(&mut self.control, stamp);
        }
        if std::mem::take(&mut self.ping_due) {
            frame::put_ping(&mut self.control, stamp);
        }
    }
}
