//! Two machines and a pipe between them that a test can cut at any byte.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::time::Instant;

use super::WINDOW;
use crate::greeting::{Answer, Hello, LinkId, PREAMBLE, Preamble, Refusal, Token};
use crate::machine::{Ending, Limits, Machine, SLICES, Side};

/// One end with a user who sends `to_send` bytes of a known stream, reads as much, and checks what it reads.
pub(super) struct End {
    pub(super) machine: Machine,
    /// Of the other end's stream, so that both differ.
    pub(super) seed: u64,
    pub(super) to_send: u64,
    sent: u64,
    read: u64,
    saw_end: bool,
    limits: Limits,
}

fn stream_byte(seed: u64, number: u64) -> u8 {
    (number.wrapping_mul(0x9e37_79b9).wrapping_add(seed * 77) >> 7) as u8
}

impl End {
    pub(super) fn new(side: Side, limits: Limits, seed: u64, to_send: u64, now: Instant) -> Self {
        Self {
            machine: Machine::new(side, limits.clone(), WINDOW, now),
            seed,
            to_send,
            sent: 0,
            read: 0,
            saw_end: false,
            limits,
        }
    }

    pub(super) fn write(&mut self, most: usize) {
        let most = (self.to_send - self.sent).min(most as u64);
        let bytes: Vec<u8> = (self.sent..self.sent + most)
            .map(|number| stream_byte(self.seed, number))
            .collect();
        self.sent += self.machine.write(&bytes) as u64;
        if self.sent == self.to_send && !self.machine.is_finishing() {
            self.machine.finish();
        }
        assert!(self.machine.outbox_length() <= self.limits.replay_capacity as usize);
    }

    pub(super) fn read(&mut self, most: usize, peers_seed: u64) {
        assert!(self.machine.inbox_length() <= self.limits.receive_window as usize);
        let mut next = self.read;
        let check = |bytes: &[u8]| {
            for byte in bytes {
                assert_eq!(*byte, stream_byte(peers_seed, next), "at {next}");
                next += 1;
            }
        };
        self.machine.read(check, most);
        self.read = next;
        self.saw_end |= self.machine.is_at_end();
    }

    pub(super) fn take_output(&mut self, most: usize) -> Vec<u8> {
        let mut out = Vec::new();
        while out.len() < most {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let used = self.machine.slices(&mut slices);
            let all: Vec<u8> = slices[..used]
                .iter()
                .flat_map(|slice| slice.iter().copied())
                .collect();
            let taken = all.len().min(most - out.len());
            if taken == 0 {
                break;
            }
            out.extend_from_slice(&all[..taken]);
            self.machine.written(taken);
        }
        out
    }
}

/// What the pipe between the two is doing.
pub(super) struct World {
    now: Instant,
    client: End,
    server: End,
    attempt: u32,
    /// There is a pipe.
    connected: bool,
    /// Bytes on their way.
    to_server: VecDeque<u8>,
    to_client: VecDeque<u8>,
    /// What the client has still to send of its HELLO.
    hello: VecDeque<u8>,
    /// What has arrived of a greeting that is not complete.
    greeting_at_server: Vec<u8>,
    greeting_at_client: Vec<u8>,
    /// The server holds on to a pipe that is gone.
    server_is_surprised: bool,
    pub(super) moved: u64,
    pub(super) cuts: u32,
}

impl World {
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
            greeting_at_server: Vec::new(),
            greeting_at_client: Vec::new(),
            server_is_surprised: false,
            moved: 0,
            cuts: 0,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.client.machine.ending().is_some() && self.server.machine.ending().is_some()
    }

    pub(super) fn connect_if_needed(&mut self) {
        if self.connected || self.client.machine.ending().is_some() {
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
        self.greeting_at_server.clear();
        self.greeting_at_client.clear();
        self.client.machine.detach(self.now, None);
        // Every other time the server does not notice, and is surprised by the next greeting.
        if self.cuts.is_multiple_of(2) || self.client.machine.ending().is_some() {
            self.server.machine.detach(self.now, None);
            self.server_is_surprised = false;
        } else {
            self.server_is_surprised = true;
        }
    }

    /// Moves bytes in both directions, at most as many in each, and at most `budget` in all.
    pub(super) fn step(&mut self, most: usize, budget: &mut u64) {
        self.connect_if_needed();
        self.client.write(most);
        self.server.write(most);
        let space = most.saturating_sub(self.to_server.len());
        if self.hello.is_empty() {
            self.to_server.extend(self.client.take_output(space));
        } else {
            let count = space.min(self.hello.len());
            self.to_server.extend(self.hello.drain(..count));
        }
        self.deliver_to_server(most, budget);
        let space = most.saturating_sub(self.to_client.len());
        let said = self.server.take_output(space);
        if !self.server_is_surprised {
            self.to_client.extend(said);
        }
        self.deliver_to_client(most, budget);
        self.client.read(most, self.server.seed);
        self.server.read(most, self.client.seed);
        self.notice_the_end_of_the_pipe();
    }

    /// A pipe ends when what its other end has said has been read. A client that is not through then asks again.
    pub(super) fn notice_the_end_of_the_pipe(&mut self) {
        let server_left = self.server.machine.ending().is_some() && self.hello.is_empty();
        let silent = self.to_client.is_empty() && self.to_server.is_empty();
        if self.connected && server_left && silent && self.client.machine.ending().is_none() {
            self.cut();
        }
    }

    pub(super) fn deliver_to_server(&mut self, most: usize, budget: &mut u64) {
        let bytes = take(&mut self.to_server, most, budget, &mut self.moved);
        if self.server.machine.is_attached() && !self.server_is_surprised {
            feed(&mut self.server.machine, self.now, &bytes);
            return;
        }
        self.greeting_at_server.extend(bytes);
        let Some((preamble, body, used)) = whole_greeting(&self.greeting_at_server) else {
            return;
        };
        let hello = Hello::decode(preamble, &body).unwrap();
        match self.server.machine.greeted(self.now, &hello, WINDOW) {
            Ok(()) => {
                self.server_is_surprised = false;
                let rest = self.greeting_at_server.split_off(used);
                self.greeting_at_server.clear();
                feed(&mut self.server.machine, self.now, &rest);
            }
            Err(refusal) => {
                self.greeting_at_server.clear();
                self.to_client.extend(refusal.encode());
            }
        }
    }

    pub(super) fn deliver_to_client(&mut self, most: usize, budget: &mut u64) {
        let bytes = take(&mut self.to_client, most, budget, &mut self.moved);
        if self.client.machine.is_attached() {
            feed(&mut self.client.machine, self.now, &bytes);
            return;
        }
        self.greeting_at_client.extend(bytes);
        let Some((preamble, body, used)) = whole_greeting(&self.greeting_at_client) else {
            return;
        };
        match Answer::decode(preamble, &body).unwrap() {
            Answer::Welcome(welcome) => {
                self.client.machine.welcomed(self.now, &welcome).unwrap();
                let rest = self.greeting_at_client.split_off(used);
                feed(&mut self.client.machine, self.now, &rest);
            }
            Answer::Refuse { refusal, .. } => {
                assert_eq!(refusal, Refusal::Finished);
                self.client.machine.end_as_finished_there();
            }
        }
    }

    pub(super) fn assert_all_arrived(&self) {
        for end in [&self.client, &self.server] {
            assert!(matches!(end.machine.ending(), Some(Ending::Finished)));
            assert!(end.saw_end && end.machine.is_delivered());
            assert_eq!(end.machine.outbox_length(), 0);
        }
        assert_eq!(self.client.read, self.server.to_send);
        assert_eq!(self.server.read, self.client.to_send);
    }
}

fn take(queue: &mut VecDeque<u8>, most: usize, budget: &mut u64, moved: &mut u64) -> Vec<u8> {
    let count = queue.len().min(most).min(*budget as usize);
    *budget -= count as u64;
    *moved += count as u64;
    queue.drain(..count).collect()
}

fn feed(machine: &mut Machine, now: Instant, bytes: &[u8]) {
    if let Some(raw) = machine.raw() {
        raw.extend_from_slice(bytes);
        machine.received(now).unwrap();
    }
}

fn whole_greeting(bytes: &[u8]) -> Option<(Preamble, Vec<u8>, usize)> {
    let preamble = Preamble::decode(bytes.first_chunk::<PREAMBLE>()?).unwrap();
    let used = PREAMBLE + preamble.length;
    let body = bytes.get(PREAMBLE..used)?.to_vec();
    Some((preamble, body, used))
}
