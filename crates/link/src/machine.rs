//! The link protocol as a state machine. It does no I/O, has no clock and spawns no tasks: the driver passes in the bytes
//! and the time.
//!
//! There are two byte streams, one in each direction, and they outlive every connection. A connection is *attached* with a
//! handshake, which says at which offset each stream continues, and *detached* when it is lost. The state of one connection
//! is in [`Attachment`] and is dropped with it.
//!
//! - Bytes that the user writes stay in the [`ReplayBuffer`] until the peer acknowledges them. When it is full, the user's
//!   writes wait: this bounds the memory of the sender.
//! - Bytes that are received wait in the [`ReceiveBuffer`] for the user. The peer may only send up to a *limit*, which
//!   advances when the user reads: this bounds the memory of the receiver. It also lets the receiver process
//!   acknowledgements and keep-alives when its user does not read.
//! - The end of a stream has an offset too, so it is acknowledged, replayed and counted like a byte.
//!
//! When both streams have ended, the server sends CLOSED and removes the link. A client that loses its connection before
//! it has received CLOSED reconnects, so that both ends agree that everything was delivered.

mod receiving;
mod sending;
mod timers;

use std::time::{Duration, Instant};

use bytes::BytesMut;

use crate::error::{Abort, LinkError, Malformed};
use crate::frame::Decoder;
use crate::handshake::{Hello, Position, Refusal, Welcome};
use crate::receive_buffer::ReceiveBuffer;
use crate::replay_buffer::ReplayBuffer;

/// Number of consecutive connections with only malformed input after which the link fails.
const MAX_MALFORMED_CONNECTIONS: u32 = 3;
/// Slices for one write: the control bytes, and the blocks that a DATA frame can span.
pub(crate) const SLICES: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

/// The limits of a state machine.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    pub(crate) replay_capacity: u32,
    pub(crate) receive_window: u32,
    pub(crate) max_unsent: u32,
    pub(crate) max_ack_step: u32,
    pub(crate) ping_interval: Duration,
    pub(crate) keep_alive_timeout: Duration,
    /// How long to try to deliver the last frames.
    pub(crate) close_timeout: Duration,
}

#[derive(Debug)]
pub(crate) struct Machine {
    side: Side,
    limits: Limits,
    window: Duration,
    phase: Phase,

    replay_buffer: ReplayBuffer,
    /// The user has ended the stream; the end has the offset `replay_buffer.end()`.
    finishing: bool,
    /// The peer has everything before this offset.
    acknowledged: u64,
    /// Nothing from this offset on was ever written to a pipe.
    highest_sent: u64,
    peer_limit: u64,

    receive_buffer: ReceiveBuffer,
    received: u64,
    fin_received: bool,
    /// How many bytes the user has read.
    consumed: u64,

    /// When the user dropped the link.
    abandoned: Option<Instant>,
    /// To be sent to the peer.
    abort: Option<Abort>,
    malformed_connections: u32,
    attachments: u64,
    round_trip: Option<Duration>,
    /// When the last byte of an earlier connection was received.
    last_received: Option<Instant>,
}

#[derive(Debug)]
enum Phase {
    /// Disconnected. Until a connection is attached, or the resume window expires.
    Detached { since: Instant },
    /// Connected. Until the connection is lost, or the link ends.
    Attached(Attachment),
    /// Final.
    Ended(EndReason),
}

/// Why a link ended.
#[derive(Debug, Clone)]
pub(crate) enum EndReason {
    /// Both streams ended and everything was delivered.
    Finished,
    /// This end aborted the link.
    Aborted(Abort),
    Failed(LinkError),
}

impl EndReason {
    /// The refusal for a client that reconnects after the end.
    pub(crate) fn refusal(&self) -> Refusal {
        match self {
            Self::Finished => Refusal::Finished,
            Self::Aborted(abort) => Refusal::Aborted(abort.clone()),
            Self::Failed(LinkError::WindowExpired { window }) => Refusal::WindowExpired(*window),
            Self::Failed(_) => Refusal::StateLost,
        }
    }
}

/// The state of one connection.
#[derive(Debug)]
struct Attachment {
    decoder: Decoder,
    raw: BytesMut,
    /// Frames and headers to write, followed by `data_left` bytes of the stream.
    control: Vec<u8>,
    control_written: usize,
    data_left: usize,
    /// The next offset to write to this connection.
    sent: u64,
    /// The values of the last ACK.
    sent_received: u64,
    sent_limit: u64,
    /// Send the next ACK after this many bytes.
    ack_step: u64,
    ping: Option<Instant>,
    ping_due: bool,
    pong_due: Option<u64>,
    last_received: Instant,
    /// The last frames are being written; then the link ends.
    closing: Option<EndReason>,
}

impl Machine {
    pub(crate) fn new(side: Side, limits: Limits, window: Duration, now: Instant) -> Self {
        Self {
            side,
            window,
            phase: Phase::Detached { since: now },
            replay_buffer: ReplayBuffer::new(limits.replay_capacity as usize),
            finishing: false,
            acknowledged: 0,
            highest_sent: 0,
            peer_limit: 0,
            receive_buffer: ReceiveBuffer::default(),
            received: 0,
            fin_received: false,
            consumed: 0,
            abandoned: None,
            abort: None,
            malformed_connections: 0,
            attachments: 0,
            round_trip: None,
            last_received: None,
            limits,
        }
    }
}

/// Operations of the user.
impl Machine {
    /// Buffers as many bytes as there is room for. 0 means that the user has to wait.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> usize {
        if self.finishing || self.end_reason().is_some() {
            return 0;
        }
        let room = self.room_to_write();
        self.replay_buffer.push(&bytes[..bytes.len().min(room)])
    }

    /// How many bytes the user may write now.
    fn room_to_write(&self) -> usize {
        let room = self.replay_buffer.room();
        match &self.phase {
            Phase::Attached(attachment) => {
                // The end of the stream is sent as if it were a byte.
                let unsent = self.replay_buffer.end().saturating_sub(attachment.sent) as usize;
                room.min((self.limits.max_unsent as usize).saturating_sub(unsent))
            }
            // Everything that was not acknowledged is sent again, so the replay buffer is the only limit.
            Phase::Detached { .. } | Phase::Ended(_) => room,
        }
    }

    /// Ends the stream.
    pub(crate) fn finish(&mut self) {
        self.finishing = true;
    }

    /// Whether the peer has received everything, including the end.
    pub(crate) fn is_delivered(&self) -> bool {
        self.finishing && self.acknowledged > self.replay_buffer.end()
    }

    /// Whether the user has ended the stream.
    pub(crate) fn is_finishing(&self) -> bool {
        self.finishing
    }

    /// Reads at most `room` received bytes, in pieces, and returns how many.
    pub(crate) fn read(&mut self, add: impl FnMut(&[u8]), room: usize) -> usize {
        let count = self.receive_buffer.read(add, room);
        self.consumed += count as u64;
        count
    }

    /// Whether the user has read everything up to the end of the peer's stream.
    pub(crate) fn is_at_end(&self) -> bool {
        self.fin_received && self.receive_buffer.length() == 0
    }

    /// Whether a read would return bytes or the end.
    pub(crate) fn is_readable(&self) -> bool {
        self.receive_buffer.length() > 0 || self.fin_received || self.end_reason().is_some()
    }

    /// Whether a waiting writer should be woken. Waking it for a few bytes would cost more than it gains.
    pub(crate) fn is_writable(&self) -> bool {
        let capacity = self.limits.replay_capacity.min(self.limits.max_unsent);
        let enough = (capacity / 8).max(1) as usize;
        self.room_to_write() >= enough || self.is_delivered() || self.end_reason().is_some()
    }

    /// The user has dropped the link. A stream that it has ended is still delivered; otherwise the link is aborted.
    pub(crate) fn abandon(&mut self, now: Instant) {
        if self.abandoned.is_some() {
            return;
        }
        self.abandoned = Some(now);
        self.consumed += self.receive_buffer.length() as u64;
        self.receive_buffer.clear();
        if !self.finishing {
            self.abort(now, Abort::dropped());
        }
    }

    /// Aborts the link, and sends the reason to the peer.
    pub(crate) fn abort(&mut self, now: Instant, abort: Abort) {
        self.abandoned.get_or_insert(now);
        self.abort.get_or_insert(abort);
        self.end_if_abort_undeliverable();
    }

    pub(crate) fn end_reason(&self) -> Option<&EndReason> {
        match &self.phase {
            Phase::Ended(end_reason) => Some(end_reason),
            Phase::Detached { .. } | Phase::Attached(_) => None,
        }
    }

    pub(crate) fn replay_buffer_length(&self) -> usize {
        self.replay_buffer.length()
    }

    pub(crate) fn receive_buffer_length(&self) -> usize {
        self.receive_buffer.length()
    }

    /// How many bytes were written, and how many were received.
    pub(crate) fn totals(&self) -> (u64, u64) {
        (
            self.replay_buffer.end(),
            self.received - u64::from(self.fin_received),
        )
    }

    pub(crate) fn resumes(&self) -> u64 {
        self.attachments.saturating_sub(1)
    }

    pub(crate) fn round_trip(&self) -> Option<Duration> {
        self.round_trip
    }

    /// When something was last received. The handshake counts.
    pub(crate) fn last_received(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Attached(attachment) => Some(attachment.last_received),
            Phase::Detached { .. } | Phase::Ended(_) => self.last_received,
        }
    }
}

/// Attaching and detaching connections.
impl Machine {
    pub(crate) fn is_attached(&self) -> bool {
        matches!(self.phase, Phase::Attached(_))
    }

    /// Whether no connection was ever attached.
    pub(crate) fn is_fresh(&self) -> bool {
        self.attachments == 0
    }

    /// How many bytes are known to be delivered, in both directions.
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

    /// The client has received WELCOME.
    pub(crate) fn accept_welcome(
        &mut self,
        now: Instant,
        welcome: &Welcome,
    ) -> Result<(), LinkError> {
        self.window = welcome.window;
        self.attach(now, &welcome.position)
            .map_err(|()| LinkError::StateLost)
    }

    pub(crate) fn window(&self) -> Duration {
        self.window
    }

    /// The server has received HELLO. WELCOME is the first message that will be written, unless the link is refused.
    pub(crate) fn accept_hello(
        &mut self,
        now: Instant,
        hello: &Hello,
        window: Duration,
    ) -> Result<(), Refusal> {
        if let Some(end_reason) = self.end_reason() {
            return Err(end_reason.refusal());
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
        // A sender whose replay buffer is full must not wait for an ACK that is not due yet. Smaller steps, down to a
        // sixty-fourth, were not measurably faster, and cost more frames.
        let ack_step = peer.replay_capacity.min(self.limits.receive_window) / 4;
        let ack_step = ack_step.min(self.limits.max_ack_step);
        self.phase = Phase::Attached(Attachment {
            decoder: Decoder::default(),
            raw: BytesMut::new(),
            control: Vec::new(),
            control_written: 0,
            data_left: 0,
            sent: peer.received,
            sent_received: position.received,
            sent_limit: position.limit,
            ack_step: u64::from(ack_step).max(1),
            ping: None,
            ping_due: false,
            pong_due: None,
            last_received: now,
            closing: None,
        });
        Ok(())
    }

    /// The connection is lost, possibly because of malformed input.
    pub(crate) fn detach(&mut self, now: Instant, malformed: Option<Malformed>) {
        if self.is_attached() {
            self.last_received = self.last_received();
            self.phase = Phase::Detached { since: now };
            self.end_if_abort_undeliverable();
        }
        if let Some(malformed) = malformed {
            self.malformed_connections += 1;
            if self.malformed_connections >= MAX_MALFORMED_CONNECTIONS {
                self.end(EndReason::Failed(malformed.into()));
            }
        }
    }

    /// The server has finished the link, and the CLOSED frame was lost.
    pub(crate) fn end_finished_by_server(&mut self) {
        // The server has seen the end of both streams, so this end must have received the end of the server's stream.
        if self.finishing && self.fin_received {
            self.acknowledge(self.replay_buffer.end() + 1);
            self.end(EndReason::Finished);
        } else {
            self.end(EndReason::Failed(LinkError::StateLost));
        }
    }

    pub(crate) fn end(&mut self, end_reason: EndReason) {
        if self.end_reason().is_none() {
            self.last_received = self.last_received();
            self.phase = Phase::Ended(end_reason);
        }
    }

    /// A server cannot connect to its client. A client that reconnects gets the recorded end reason.
    fn end_if_abort_undeliverable(&mut self) {
        if self.side == Side::Server
            && !self.is_attached()
            && let Some(abort) = self.abort.clone()
        {
            self.end(EndReason::Aborted(abort));
        }
    }

    fn is_complete(&self) -> bool {
        self.fin_received && self.is_delivered()
    }

    fn acknowledge(&mut self, received: u64) {
        if received > self.acknowledged {
            self.acknowledged = received;
            self.replay_buffer.release(received);
        }
    }
}

#[cfg(test)]
mod tests;
