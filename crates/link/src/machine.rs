//! The resumable pipe as a state machine: it knows what to say and what was meant, and does no I/O, has no clock and
//! starts nothing. Who drives it brings the bytes and the time.
//!
//! There are two streams of numbered bytes, one in each direction, and they outlive every connection. A connection is
//! *attached* with a greeting, which says where each stream continues, and *detached* when it is lost; everything that
//! belongs to one connection lies in [`Attachment`] and goes with it.
//!
//! - What the user writes is kept in the [`Outbox`] until the peer says that it has arrived. When that is full the user
//!   has to wait: this bounds the memory of the sender.
//! - What arrives waits in the [`Inbox`] for the user. The peer may send only up to a *limit*, which moves when the user
//!   reads: this bounds the memory of the receiver, and lets it read acknowledgements and keep-alives at all times, also
//!   when its user does not read.
//! - The end of a stream has a number too. So it is acknowledged, repeated and counted like a byte.
//!
//! When both streams have ended, the server says CLOSED and forgets the link. A client that loses its connection before
//! it has heard that asks again, so that both ends agree that everything has arrived.

use std::io::IoSlice;
use std::time::{Duration, Instant};

use bytes::BytesMut;

use crate::error::{Abort, LinkError, Malformed};
use crate::frame::{self, Decoder, Frame, MAX_DATA};
use crate::greeting::{Hello, Position, Refusal, Welcome};
use crate::inbox::Inbox;
use crate::outbox::Outbox;

/// How much is read from a pipe at once.
const READ: usize = 256 * 1024;
/// Read into what is left of the buffer as long as it is at least this.
const READ_AT_LEAST: usize = 32 * 1024;
/// As many connections in a row may bring nothing but nonsense before the link fails.
const MALFORMED_IN_A_ROW: u32 = 3;
/// Slices for one write: the control bytes, and the blocks that a DATA frame can touch.
pub(crate) const SLICES: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

/// The bounds within which a machine works.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    pub(crate) replay_capacity: u32,
    pub(crate) receive_window: u32,
    pub(crate) ping_every: Duration,
    pub(crate) dead_after: Duration,
    /// How long to try to say a last word.
    pub(crate) farewell: Duration,
}

#[derive(Debug)]
pub(crate) struct Machine {
    side: Side,
    limits: Limits,
    window: Duration,
    phase: Phase,

    outbox: Outbox,
    /// The user has ended the stream; the end has the number `outbox.end()`.
    finishing: bool,
    /// The peer has everything before this number.
    acknowledged: u64,
    /// Nothing from this number on was ever put on a pipe.
    highest_sent: u64,
    peer_limit: u64,

    inbox: Inbox,
    received: u64,
    fin_received: bool,
    /// How many bytes the user has read.
    consumed: u64,

    /// The user is gone, since then.
    abandoned: Option<Instant>,
    /// To be told to the peer.
    abort: Option<Abort>,
    malformed_in_a_row: u32,
    attachments: u64,
    round_trip: Option<Duration>,
}

#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one of it per link, and it is attached nearly all the time"
)]
enum Phase {
    /// There is no connection. Left when one is attached, or when there was none for too long.
    Detached { since: Instant },
    /// There is one. Left when it is lost, or when the link is over.
    Attached(Attachment),
    /// Never left.
    Over(Ending),
}

/// How a link ended.
#[derive(Debug, Clone)]
pub(crate) enum Ending {
    /// Both streams ended and everything arrived.
    Finished,
    /// This end gave it up.
    Aborted(Abort),
    Failed(LinkError),
}

impl Ending {
    /// What a client is told that comes back too late.
    pub(crate) fn refusal(&self) -> Refusal {
        match self {
            Self::Finished => Refusal::Finished,
            Self::Aborted(abort) => Refusal::Aborted(abort.clone()),
            Self::Failed(LinkError::WindowExpired { window }) => Refusal::WindowExpired(*window),
            Self::Failed(_) => Refusal::StateLost,
        }
    }
}

/// What belongs to one connection.
#[derive(Debug)]
struct Attachment {
    decoder: Decoder,
    raw: BytesMut,
    /// Frames and headers to write, before `data_left` bytes of the stream.
    control: Vec<u8>,
    control_written: usize,
    data_left: usize,
    /// The next number to put on this connection.
    sent: u64,
    /// What the peer was told last.
    told_received: u64,
    told_limit: u64,
    /// Tell it again after this many bytes.
    ack_step: u64,
    ping: Option<Instant>,
    ping_due: bool,
    pong_due: Option<u64>,
    last_received: Instant,
    /// The last words are being written; afterwards the link is over.
    closing: Option<Ending>,
}

impl Machine {
    pub(crate) fn new(side: Side, limits: Limits, window: Duration, now: Instant) -> Self {
        Self {
            side,
            window,
            phase: Phase::Detached { since: now },
            outbox: Outbox::new(limits.replay_capacity as usize),
            finishing: false,
            acknowledged: 0,
            highest_sent: 0,
            peer_limit: 0,
            inbox: Inbox::default(),
            received: 0,
            fin_received: false,
            consumed: 0,
            abandoned: None,
            abort: None,
            malformed_in_a_row: 0,
            attachments: 0,
            round_trip: None,
            limits,
        }
    }
}

/// What the user does.
impl Machine {
    /// Takes as many bytes as there is room for. 0 means: wait.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> usize {
        if self.finishing || self.ending().is_some() {
            return 0;
        }
        self.outbox.push(bytes)
    }

    /// Ends the stream.
    pub(crate) fn finish(&mut self) {
        self.finishing = true;
    }

    /// Whether the peer has everything, including the end.
    pub(crate) fn is_delivered(&self) -> bool {
        self.finishing && self.acknowledged > self.outbox.end()
    }

    /// Whether the user ended the stream.
    pub(crate) fn is_finishing(&self) -> bool {
        self.finishing
    }

    /// Hands out at most `room` bytes that have arrived, in pieces, and says how many.
    pub(crate) fn read(&mut self, add: impl FnMut(&[u8]), room: usize) -> usize {
        let count = self.inbox.read(add, room);
        self.consumed += count as u64;
        count
    }

    /// Whether the user has read everything up to the end of the peer's stream.
    pub(crate) fn is_at_end(&self) -> bool {
        self.fin_received && self.inbox.length() == 0
    }

    /// Whether the user would read something, or learn of the end.
    pub(crate) fn is_readable(&self) -> bool {
        self.inbox.length() > 0 || self.fin_received || self.ending().is_some()
    }

    /// Whether it is worth to wake a user who waits to write. Waking for a few bytes would cost more than it gives.
    pub(crate) fn is_writable(&self) -> bool {
        let enough = (self.limits.replay_capacity / 8).max(1) as usize;
        self.outbox.room() >= enough || self.is_delivered() || self.ending().is_some()
    }

    /// The user is gone. What it has ended is still delivered; what it has not is given up.
    pub(crate) fn abandon(&mut self, now: Instant) {
        if self.abandoned.is_some() {
            return;
        }
        self.abandoned = Some(now);
        self.consumed += self.inbox.length() as u64;
        self.inbox.clear();
        if !self.finishing {
            self.abort(now, Abort::dropped());
        }
    }

    /// Gives the link up, and tells the peer.
    pub(crate) fn abort(&mut self, now: Instant, abort: Abort) {
        self.abandoned.get_or_insert(now);
        self.abort.get_or_insert(abort);
        self.give_up_if_nobody_can_be_told();
    }

    pub(crate) fn ending(&self) -> Option<&Ending> {
        match &self.phase {
            Phase::Over(ending) => Some(ending),
            Phase::Detached { .. } | Phase::Attached(_) => None,
        }
    }

    pub(crate) fn outbox_length(&self) -> usize {
        self.outbox.length()
    }

    pub(crate) fn inbox_length(&self) -> usize {
        self.inbox.length()
    }

    /// How many bytes were written, and how many have arrived.
    pub(crate) fn totals(&self) -> (u64, u64) {
        (
            self.outbox.end(),
            self.received - u64::from(self.fin_received),
        )
    }

    pub(crate) fn resumes(&self) -> u64 {
        self.attachments.saturating_sub(1)
    }

    pub(crate) fn round_trip(&self) -> Option<Duration> {
        self.round_trip
    }
}

/// Connections that come and go.
impl Machine {
    pub(crate) fn is_attached(&self) -> bool {
        matches!(self.phase, Phase::Attached(_))
    }

    /// Whether a server ever said WELCOME.
    pub(crate) fn is_fresh(&self) -> bool {
        self.attachments == 0
    }

    pub(crate) fn position(&self) -> Position {
        Position {
            received: self.received,
            limit: self.consumed + u64::from(self.limits.receive_window),
            replay_capacity: self.limits.replay_capacity,
        }
    }

    /// The server welcomed the client.
    pub(crate) fn welcomed(&mut self, now: Instant, welcome: &Welcome) -> Result<(), LinkError> {
        self.window = welcome.window;
        self.attach(now, &welcome.position)
            .map_err(|()| LinkError::StateLost)
    }

    /// A client greeted the server: the answer is the first thing that will be written, unless it is a refusal.
    pub(crate) fn greeted(
        &mut self,
        now: Instant,
        hello: &Hello,
        window: Duration,
    ) -> Result<(), Refusal> {
        if let Some(ending) = self.ending() {
            return Err(ending.refusal());
        }
        self.attach(now, &hello.position)
            .map_err(|()| Refusal::StateLost)?;
        self.window = window;
        let position = self.position();
        if let Phase::Attached(attachment) = &mut self.phase {
            Welcome { position, window }.put(&mut attachment.control);
        }
        Ok(())
    }

    fn attach(&mut self, now: Instant, peer: &Position) -> Result<(), ()> {
        let possible = self.acknowledged..=self.highest_sent;
        if !possible.contains(&peer.received) {
            return Err(());
        }
        self.acknowledge(peer.received);
        self.peer_limit = self.peer_limit.max(peer.limit);
        self.attachments += 1;
        let position = self.position();
        let ack_step = peer.replay_capacity.min(self.limits.receive_window) / 4;
        self.phase = Phase::Attached(Attachment {
            decoder: Decoder::default(),
            raw: BytesMut::new(),
            control: Vec::new(),
            control_written: 0,
            data_left: 0,
            sent: peer.received,
            told_received: position.received,
            told_limit: position.limit,
            ack_step: u64::from(ack_step).max(1),
            ping: None,
            ping_due: false,
            pong_due: None,
            last_received: now,
            closing: None,
        });
        Ok(())
    }

    /// The connection is lost. What it said last may have been nonsense.
    pub(crate) fn detach(&mut self, now: Instant, malformed: Option<Malformed>) {
        if self.is_attached() {
            self.phase = Phase::Detached { since: now };
            self.give_up_if_nobody_can_be_told();
        }
        if let Some(malformed) = malformed {
            self.malformed_in_a_row += 1;
            if self.malformed_in_a_row >= MALFORMED_IN_A_ROW {
                self.end(Ending::Failed(malformed.into()));
            }
        }
    }

    /// The server has an end of the link that the client was not told of.
    pub(crate) fn end_as_finished_there(&mut self) {
        // The server saw both ends of stream, so this end must have seen that of the server's.
        if self.finishing && self.fin_received {
            self.acknowledge(self.outbox.end() + 1);
            self.end(Ending::Finished);
        } else {
            self.end(Ending::Failed(LinkError::StateLost));
        }
    }

    pub(crate) fn end(&mut self, ending: Ending) {
        if self.ending().is_none() {
            self.phase = Phase::Over(ending);
        }
    }

    /// A server does not call its client: whoever comes back is told by what is remembered of the link.
    fn give_up_if_nobody_can_be_told(&mut self) {
        if self.side == Side::Server && !self.is_attached() {
            if let Some(abort) = self.abort.clone() {
                self.end(Ending::Aborted(abort));
            }
        }
    }

    fn is_complete(&self) -> bool {
        self.fin_received && self.is_delivered()
    }

    fn acknowledge(&mut self, received: u64) {
        if received > self.acknowledged {
            self.acknowledged = received;
            self.outbox.release(received);
        }
    }
}

/// What comes from the pipe.
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

    fn take_data(&mut self, number: u64, bytes: bytes::Bytes) -> Result<(), Malformed> {
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

/// What goes to the pipe.
impl Machine {
    /// The next bytes for the pipe, in order; how many of the slices are used. To be followed by [`Machine::written`].
    pub(crate) fn slices<'a>(&'a mut self, slices: &mut [IoSlice<'a>; SLICES]) -> usize {
        self.prepare();
        let Phase::Attached(attachment) = &self.phase else {
            return 0;
        };
        let mut used = 0;
        let mut add = |slice| {
            if let Some(place) = slices.get_mut(used) {
                *place = slice;
                used += 1;
            }
        };
        let control = &attachment.control[attachment.control_written..];
        if !control.is_empty() {
            add(IoSlice::new(control));
        }
        if attachment.data_left > 0 {
            self.outbox
                .slices(attachment.sent, attachment.data_left, &mut add);
        }
        used
    }

    /// The pipe has taken as many bytes.
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
        if attachment.has_written_all() {
            if let Some(ending) = attachment.closing.take() {
                self.end(ending);
            }
        }
    }

    /// Decides what is said next, when all that was decided before is written.
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
            attachment.closing = Some(Ending::Aborted(abort.clone()));
            return;
        }
        let end = self.outbox.end();
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
            attachment.closing = Some(Ending::Finished);
        }
    }
}

impl Attachment {
    fn has_written_all(&self) -> bool {
        self.control_written == self.control.len() && self.data_left == 0
    }

    /// Tells how far this end is when that is worth a frame. It is worth less when something is said anyway.
    fn put_ack(&mut self, position: &Position, with_data: bool, fin_received: bool) {
        let news = (position.received - self.told_received).max(position.limit - self.told_limit);
        let worth = if fin_received || self.ping_due || self.pong_due.is_some() {
            1
        } else if with_data {
            (self.ack_step / 8).max(1)
        } else {
            self.ack_step
        };
        if news >= worth {
            frame::put_ack(&mut self.control, position.received, position.limit);
            (self.told_received, self.told_limit) = (position.received, position.limit);
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

/// What happens as time goes by.
impl Machine {
    /// When [`Machine::time_passed`] should be called next. It may come later than this, never much earlier.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Over(_) => None,
            Phase::Detached { since } => {
                Some(*since.max(&self.last_word_since(*since)) + self.patience())
            }
            Phase::Attached(attachment) => {
                let dead = attachment.last_received + self.limits.dead_after;
                let ping = attachment.next_ping(self.limits.ping_every);
                let lingering = self.abandoned.filter(|_| self.abort.is_none());
                let linger = lingering.map(|since| since + self.linger());
                Some(dead.min(ping).min(linger.unwrap_or(dead)))
            }
        }
    }

    /// Does what is due. Returns true when the connection has to be taken as lost.
    pub(crate) fn time_passed(&mut self, now: Instant) -> bool {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return false;
        }
        let linger = self.linger();
        match &mut self.phase {
            Phase::Over(_) => false,
            Phase::Detached { .. } => {
                let ending = match self.abort.take() {
                    Some(abort) => Ending::Aborted(abort),
                    None if self.is_complete() => Ending::Finished,
                    None => Ending::Failed(LinkError::WindowExpired {
                        window: self.window,
                    }),
                };
                self.end(ending);
                false
            }
            Phase::Attached(attachment) => {
                if now >= attachment.last_received + self.limits.dead_after {
                    return true;
                }
                if now >= attachment.next_ping(self.limits.ping_every) {
                    attachment.ping = Some(now);
                    attachment.ping_due = true;
                }
                if self.abandoned.is_some_and(|since| now >= since + linger) {
                    self.abort.get_or_insert_with(Abort::dropped);
                }
                false
            }
        }
    }

    /// How long to stay without a connection.
    fn patience(&self) -> Duration {
        if self.abort.is_some() || self.is_complete() {
            self.limits.farewell.min(self.window)
        } else {
            self.window
        }
    }

    fn last_word_since(&self, since: Instant) -> Instant {
        self.abandoned
            .filter(|_| self.abort.is_some())
            .unwrap_or(since)
    }

    /// How long to stay without a user: as long as it takes to deliver what the user ended, within reason.
    fn linger(&self) -> Duration {
        if self.is_delivered() {
            self.limits.farewell
        } else {
            self.window.max(self.limits.farewell)
        }
    }
}

impl Attachment {
    /// Asks when nothing has come for a while, and again after as long.
    fn next_ping(&self, every: Duration) -> Instant {
        let last = self
            .ping
            .map_or(self.last_received, |ping| ping.max(self.last_received));
        last + every
    }
}

#[cfg(test)]
mod tests;
