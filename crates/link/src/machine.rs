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

mod receiving;
mod sending;
mod time;

use std::time::{Duration, Instant};

use bytes::BytesMut;

use crate::error::{Abort, LinkError, Malformed};
use crate::frame::Decoder;
use crate::greeting::{Hello, Position, Refusal, Welcome};
use crate::inbox::Inbox;
use crate::outbox::Outbox;

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

    /// How many bytes are known to have arrived, in both directions.
    pub(crate) fn progress(&self) -> u64 {
        self.received + self.acknowledged
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

    pub(crate) fn window(&self) -> Duration {
        self.window
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
        // A sender whose buffer is full must not wait for an acknowledgement that is not due yet. Smaller steps, down to a
        // sixty-fourth, were not measurably faster, and cost more frames.
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
        if self.side == Side::Server
            && !self.is_attached()
            && let Some(abort) = self.abort.clone()
        {
            self.end(Ending::Aborted(abort));
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

#[cfg(test)]
mod tests;
