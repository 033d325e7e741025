//! Two state machines, and a pipe between them that a test can cut at any byte.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::time::Instant;

use super::WINDOW;
use crate::handshake::{HandshakeResponse, Hello, LinkId, PREAMBLE, Preamble, Refusal, Token};
use crate::machine::{EndReason, Limits, Machine, SLICES, Side};

/// One end with a user that sends `to_send` bytes of a generated stream, and checks the stream that it reads.
pub(super) struct End {
    pub(super) machine: Machine,
    /// Seed of the sent stream. The two streams differ.
    pub(super) seed: u64,
    pub(super) to_send: u64,
    sent: u64,
    read: u64,
    received_end: bool,
    limits: Limits,
}

fn stream_byte(seed: u64, offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9).wrapping_add(seed * 77) >> 7) as u8
}

impl End {
    pub(super) fn new(side: Side, limits: Limits, seed: u64, to_send: u64, now: Instant) -> Self {
        Self {
            machine: Machine::new(side, limits.clone(), WINDOW, now),
            seed,
            to_send,
            sent: 0,
            read: 0,
            received_end: false,
            limits,
        }
    }

    pub(super) fn write(&mut self, max: usize) {
        let max = (self.to_send - self.sent).min(max as u64);
        let bytes: Vec<u8> = (self.sent..self.sent + max)
            .map(|offset| stream_byte(self.seed, offset))
            .collect();
        self.sent += self.machine.write(&bytes) as u64;
        if self.sent == self.to_send && !self.machine.is_finishing() {
            self.machine.finish();
        }
        assert!(self.machine.replay_buffer_length() <= self.limits.replay_capacity as usize);
    }

    pub(super) fn read(&mut self, max: usize, peers_seed: u64) {
        assert!(self.machine.receive_buffer_length() <= self.limits.receive_window as usize);
        let mut next = self.read;
        let check = |bytes: &[u8]| {
            for byte in bytes {
                assert_eq!(*byte, stream_byte(peers_seed, next), "at {next}");
                next += 1;
            }
        };
        self.machine.read(check, max);
        self.read = next;
        self.received_end |= self.machine.is_at_end();
    }

    pub(super) fn take_output(&mut self, max: usize) -> Vec<u8> {
        let mut out = Vec::new();
        while out.len() < max {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let used = self.machine.slices(&mut slices);
            let all: Vec<u8> = slices[..used]
                .iter()
                .flat_map(|slice| slice.iter().copied())
                .collect();
            let taken = all.len().min(max - out.len());
            if taken == 0 {
                break;
            }
            out.extend_from_slice(&all[..taken]);
            self.machine.written(taken);
        }
        out
    }
}

/// Both ends, and the state of the pipe between them.
pub(super) struct Simulation {
    now: Instant,
    client: End,
    server: End,
    attempt: u32,
    /// Whether there is a pipe.
    connected: bool,
    /// Bytes in flight.
    to_server: VecDeque<u8>,
    to_client: VecDeque<u8>,
    /// The part of HELLO that the client has not sent yet.
    hello: VecDeque<u8>,
    /// Received parts of an incomplete handshake.
    handshake_at_server: Vec<u8>,
    handshake_at_client: Vec<u8>,
    /// The server has not noticed that its pipe was cut.
    server_has_stale_pipe: bool,
    pub(super) handover: u64,
    pub(super) cuts: u32,
}

impl Simulation {
    pub(super) fn new(
        client: Limits,
        server: Limits,
        client_sends: u64,
        server_sends: u64,
    ) -> Self {
        let now = Instant::now();
        Self {
            now,
            client: End::new(Side::Client, client, 1, client_sends, now),
            server: End::new(Side::Server, server, 2, server_sends, now),
            attempt: 0,
            connected: false,
            to_server: VecDeque::new(),
            to_client: VecDeque::new(),
            hello: VecDeque::new(),
            handshake_at_server: Vec::new(),
            handshake_at_client: Vec::new(),
            server_has_stale_pipe: false,
            handover: 0,
            cuts: 0,
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.client.machine.end_reason().is_some() && self.server.machine.end_reason().is_some()
    }

    pub(super) fn connect_if_needed(&mut self) {
        if self.connected || self.client.machine.end_reason().is_some() {
            return;
        }
        self.attempt += 1;
        self.connected = true;
        let hello = Hello {
            id: LinkId([7; 16]),
            attempt: self.attempt,
            fresh: self.client.machine.is_fresh(),
            position: self.client.machine.position(),
            window: WINDOW,
            token: Token::new(*b"secret").unwrap(),
        };
        self.hello = hello.encode().into();
    }

    /// The pipe is lost with everything on it.
    pub(super) fn cut(&mut self) {
        self.cuts += 1;
        self.connected = false;
        for queue in [&mut self.to_server, &mut self.to_client, &mut self.hello] {
            queue.clear();
        }
        self.handshake_at_server.clear();
        self.handshake_at_client.clear();
        self.client.machine.detach(self.now, None);
        // Every other time the server does not notice the cut before the next handshake.
        if self.cuts.is_multiple_of(2) || self.client.machine.end_reason().is_some() {
            self.server.machine.detach(self.now, None);
            self.server_has_stale_pipe = false;
        } else {
            self.server_has_stale_pipe = true;
        }
    }

    /// Transfers at most `max` bytes in each direction, and at most `budget` in total.
    pub(super) fn step(&mut self, max: usize, budget: &mut u64) {
        self.connect_if_needed();
        self.client.write(max);
        self.server.write(max);
        let space = max.saturating_sub(self.to_server.len());
        if self.hello.is_empty() {
            self.to_server.extend(self.client.take_output(space));
        } else {
            let count = space.min(self.hello.len());
            self.to_server.extend(self.hello.drain(..count));
        }
        self.deliver_to_server(max, budget);
        let space = max.saturating_sub(self.to_client.len());
        let acks = self.server.take_output(space);
        if !self.server_has_stale_pipe {
            self.to_client.extend(acks);
        }
        self.deliver_to_client(max, budget);
        self.client.read(max, self.server.seed);
        self.server.read(max, self.client.seed);
        self.detect_end_of_pipe();
    }

    /// A pipe ends when all bytes of the other end have been read. A client that has not finished then reconnects.
    pub(super) fn detect_end_of_pipe(&mut self) {
        let server_left = self.server.machine.end_reason().is_some() && self.hello.is_empty();
        let silent = self.to_client.is_empty() && self.to_server.is_empty();
        if self.connected && server_left && silent && self.client.machine.end_reason().is_none() {
            self.cut();
        }
    }

    pub(super) fn deliver_to_server(&mut self, max: usize, budget: &mut u64) {
        let bytes = take(&mut self.to_server, max, budget, &mut self.handover);
        if self.server.machine.is_attached() && !self.server_has_stale_pipe {
            feed(&mut self.server.machine, self.now, &bytes);
            return;
        }
        self.handshake_at_server.extend(bytes);
        let Some((preamble, body, used)) = complete_handshake(&self.handshake_at_server) else {
            return;
        };
        let hello = Hello::decode(preamble, &body).unwrap();
        match self.server.machine.accept_hello(self.now, &hello, WINDOW) {
            Ok(()) => {
                self.server_has_stale_pipe = false;
                let rest = self.handshake_at_server.split_off(used);
                self.handshake_at_server.clear();
                feed(&mut self.server.machine, self.now, &rest);
            }
            Err(refusal) => {
                self.handshake_at_server.clear();
                self.to_client.extend(refusal.encode());
            }
        }
    }

    pub(super) fn deliver_to_client(&mut self, max: usize, budget: &mut u64) {
        let bytes = take(&mut self.to_client, max, budget, &mut self.handover);
        if self.client.machine.is_attached() {
            feed(&mut self.client.machine, self.now, &bytes);
            return;
        }
        self.handshake_at_client.extend(bytes);
        let Some((preamble, body, used)) = complete_handshake(&self.handshake_at_client) else {
            return;
        };
        match HandshakeResponse::decode(preamble, &body).unwrap() {
            HandshakeResponse::Welcome(welcome) => {
                self.client
                    .machine
                    .accept_welcome(self.now, &welcome)
                    .unwrap();
                let rest = self.handshake_at_client.split_off(used);
                feed(&mut self.client.machine, self.now, &rest);
            }
            HandshakeResponse::Refuse { refusal, .. } => {
                assert_eq!(refusal, Refusal::Finished);
                self.client.machine.end_finished_by_server();
            }
        }
    }

    pub(super) fn assert_all_delivered(&self) {
        for end in [&self.client, &self.server] {
            assert!(matches!(
                end.machine.end_reason(),
                Some(EndReason::Finished)
            ));
            assert!(end.received_end && end.machine.is_delivered());
            assert_eq!(end.machine.replay_buffer_length(), 0);
        }
        assert_eq!(self.client.read, self.server.to_send);
        assert_eq!(self.server.read, self.client.to_send);
    }
}

fn take(queue: &mut VecDeque<u8>, max: usize, budget: &mut u64, handover: &mut u64) -> Vec<u8> {
    let count = queue.len().min(max).min(*budget as usize);
    *budget -= count as u64;
    *handover += count as u64;
    queue.drain(..count).collect()
}

fn feed(machine: &mut Machine, now: Instant, bytes: &[u8]) {
    if let Some(raw) = machine.raw() {
        raw.extend_from_slice(bytes);
        machine.received(now).unwrap();
    }
}

fn complete_handshake(bytes: &[u8]) -> Option<(Preamble, Vec<u8>, usize)> {
    let preamble = Preamble::decode(bytes.first_chunk::<PREAMBLE>()?).unwrap();
    let used = PREAMBLE + preamble.length;
    let body = bytes.get(PREAMBLE..used)?.to_vec();
    Some((preamble, body, used))
}
