//! Two machines and a pipe between them that a test can cut at any byte.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::greeting::{Answer, Hello, LinkId, PREAMBLE, Preamble, Token};

const WINDOW: Duration = Duration::from_secs(60);

fn limits(replay_capacity: u32, receive_window: u32) -> Limits {
    Limits {
        replay_capacity,
        receive_window,
        ping_every: Duration::from_secs(5),
        dead_after: Duration::from_secs(15),
        farewell: Duration::from_secs(5),
    }
}

/// One end with a user who sends `to_send` bytes of a known stream, reads as much, and checks what it reads.
struct End {
    machine: Machine,
    /// Of the other end's stream, so that both differ.
    seed: u64,
    to_send: u64,
    sent: u64,
    read: u64,
    saw_end: bool,
    limits: Limits,
}

fn stream_byte(seed: u64, number: u64) -> u8 {
    (number.wrapping_mul(0x9e37_79b9).wrapping_add(seed * 77) >> 7) as u8
}

impl End {
    fn new(side: Side, limits: Limits, seed: u64, to_send: u64, now: Instant) -> Self {
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

    fn write(&mut self, most: usize) {
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

    fn read(&mut self, most: usize, peers_seed: u64) {
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

    fn take_output(&mut self, most: usize) -> Vec<u8> {
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
struct World {
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
    moved: u64,
    cuts: u32,
}

impl World {
    fn new(client: Limits, server: Limits, client_sends: u64, server_sends: u64) -> Self {
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

    fn is_over(&self) -> bool {
        self.client.machine.ending().is_some() && self.server.machine.ending().is_some()
    }

    fn connect_if_needed(&mut self) {
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
    fn cut(&mut self) {
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
    fn step(&mut self, most: usize, budget: &mut u64) {
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
    fn notice_the_end_of_the_pipe(&mut self) {
        let server_left = self.server.machine.ending().is_some() && self.hello.is_empty();
        let silent = self.to_client.is_empty() && self.to_server.is_empty();
        if self.connected && server_left && silent && self.client.machine.ending().is_none() {
            self.cut();
        }
    }

    fn deliver_to_server(&mut self, most: usize, budget: &mut u64) {
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

    fn deliver_to_client(&mut self, most: usize, budget: &mut u64) {
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

    fn assert_all_arrived(&self) {
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

/// Cuts the pipe after as many bytes as each number says, and lets the rest pass.
fn run(mut world: World, chunk: usize, mut cuts: impl Iterator<Item = u64>) -> World {
    let mut stuck = 0;
    let mut next = cuts.next();
    while !world.is_over() {
        let mut budget = next.unwrap_or(u64::MAX);
        let before = world.moved;
        world.step(chunk, &mut budget);
        if let Some(left) = &mut next {
            *left = budget;
            if budget == 0 {
                world.cut();
                next = cuts.next();
            }
        }
        stuck = if world.moved == before { stuck + 1 } else { 0 };
        assert!(stuck < 10, "nothing moves any more");
    }
    world.assert_all_arrived();
    world
}

/// A conversation with small buffers, so that it waits for acknowledgements and limits often.
fn conversation(client_sends: u64, server_sends: u64) -> World {
    World::new(limits(90, 70), limits(64, 100), client_sends, server_sends)
}

#[test]
fn everything_arrives_when_the_pipe_is_cut_once_at_any_byte() {
    let whole = run(conversation(700, 500), 33, std::iter::empty()).moved;
    assert!(whole > 1200);
    for offset in 1..=whole {
        let world = run(conversation(700, 500), 33, std::iter::once(offset));
        assert_eq!(world.cuts, 1, "at {offset}");
    }
}

#[test]
fn everything_arrives_when_the_pipe_is_cut_twice_at_any_bytes() {
    let whole = run(conversation(30, 20), 33, std::iter::empty()).moved;
    for first in 1..=whole {
        // All second places in three conversations that are cut next to one another: the rest is only patience.
        for second in (1 + first % 3..=whole).step_by(3) {
            run(conversation(30, 20), 33, [first, second].into_iter());
        }
    }
}

#[test]
fn everything_arrives_when_the_pipe_is_cut_again_and_again() {
    // A greeting takes about 100 bytes: less than that never gets through.
    for period in 130..400 {
        let world = run(
            conversation(3000, 2000),
            57,
            std::iter::repeat_n(period, 10_000),
        );
        assert!(world.cuts > 10);
    }
}

#[test]
fn one_end_may_send_nothing_at_all() {
    for (client, server) in [(0, 0), (0, 300), (300, 0)] {
        let whole = run(conversation(client, server), 20, std::iter::empty()).moved;
        for offset in 1..=whole {
            run(conversation(client, server), 20, std::iter::once(offset));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn everything_arrives_with_any_buffers_pieces_and_cuts(
        buffers in prop::array::uniform4(1_u32..5000),
        sends in prop::array::uniform2(0_u64..20_000),
        chunk in 1_usize..10_000,
        cuts in prop::collection::vec(1_u64..4000, 0..100),
    ) {
        let [a, b, c, d] = buffers;
        // Smaller buffers make more round trips, not other ones.
        let shrink = if a.min(b).min(c).min(d) < 100 { 50 } else { 1 };
        let world = World::new(limits(a, b), limits(c, d), sends[0] / shrink, sends[1] / shrink);
        run(world, chunk, cuts.into_iter());
    }

    #[test]
    fn no_input_makes_it_panic_or_hold_more_than_it_may(
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..30),
        side in prop::sample::select(vec![Side::Client, Side::Server]),
    ) {
        let now = Instant::now();
        let mut machine = attached(side, limits(1000, 1000), now);
        machine.write(b"something to acknowledge");
        for piece in pieces {
            let Some(raw) = machine.raw() else { break };
            raw.extend_from_slice(&piece);
            if let Err(malformed) = machine.received(now) {
                machine.detach(now, Some(malformed));
                break;
            }
            take_all(&mut machine);
            prop_assert!(machine.inbox_length() <= 1000);
        }
    }
}

fn attached(side: Side, limits: Limits, now: Instant) -> Machine {
    let mut machine = Machine::new(side, limits, WINDOW, now);
    let position = Position {
        received: 0,
        limit: 10_000,
        replay_capacity: 1000,
    };
    machine.attach(now, &position).unwrap();
    machine
}

fn take_all(machine: &mut Machine) -> Vec<u8> {
    let mut out = Vec::new();
    loop {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let used = machine.slices(&mut slices);
        let count = slices[..used].iter().map(|slice| slice.len()).sum();
        if count == 0 {
            return out;
        }
        out.extend(
            slices[..used]
                .iter()
                .flat_map(|slice| slice.iter().copied()),
        );
        machine.written(count);
    }
}

fn receive(machine: &mut Machine, now: Instant, frames: &[u8]) -> Result<(), Malformed> {
    machine.raw().unwrap().extend_from_slice(frames);
    machine.received(now)
}

fn frames(build: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    build(&mut out);
    out
}

fn data(number: u64, bytes: &[u8]) -> Vec<u8> {
    let mut out = frames(|out| frame::put_data_header(out, number, bytes.len()));
    out.extend_from_slice(bytes);
    out
}

#[test]
fn frames_that_make_no_sense_are_refused() {
    let check = |frames: &[&[u8]], expected: Malformed| {
        let now = Instant::now();
        let mut machine = attached(Side::Client, limits(100, 10), now);
        let result = receive(&mut machine, now, &frames.concat());
        assert_eq!(result, Err(expected));
    };
    let fin = |number| frames(|out| frame::put_fin(out, number));
    let (expected, got) = (0, 3);
    check(&[&data(3, b"abc")], Malformed::Number { expected, got });
    check(&[&fin(3)], Malformed::Number { expected, got });
    let (expected, got) = (3, 0);
    check(
        &[&data(0, b"abc"), &data(0, b"abc")],
        Malformed::Number { expected, got },
    );
    check(&[&data(0, b"eleven byte")], Malformed::Overrun);
    check(
        &[&data(0, b"abc"), &fin(3), &fin(4)],
        Malformed::AfterTheEnd,
    );
    check(&[&fin(0), &data(1, b"abc")], Malformed::AfterTheEnd);
    check(
        &[&frames(|out| frame::put_ack(out, 1, 5))],
        Malformed::AckOfUnsent(1),
    );
    check(&[&frames(frame::put_closed)], Malformed::ClosedEarly);
    check(&[b"HTTP/1.1 502 Bad Gateway"], Malformed::Kind(b'H'));
}

#[test]
fn nonsense_costs_the_connection_and_only_repeated_nonsense_the_link() {
    let now = Instant::now();
    let mut machine = attached(Side::Client, limits(100, 100), now);
    let position = Position {
        received: 0,
        limit: 10_000,
        replay_capacity: 1000,
    };
    machine.detach(now, Some(Malformed::NotALink));
    machine.attach(now, &position).unwrap();
    machine.detach(now, Some(Malformed::NotALink));
    machine.attach(now, &position).unwrap();
    receive(&mut machine, now, &data(0, b"sense")).unwrap();
    machine.detach(now, Some(Malformed::NotALink));
    for _ in 0..2 {
        assert!(machine.ending().is_none());
        machine.attach(now, &position).unwrap();
        machine.detach(now, Some(Malformed::NotALink));
    }
    assert!(matches!(
        machine.ending(),
        Some(Ending::Failed(LinkError::Protocol(_)))
    ));
}

#[test]
fn a_silent_peer_is_asked_every_5_s_and_given_up_after_15() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut machine = attached(Side::Client, limits(100, 100), start);
    for (seconds, pings) in [(4, false), (5, true), (6, false), (10, true), (14, false)] {
        assert!(!machine.time_passed(at(seconds)));
        assert_eq!(
            !take_all(&mut machine).is_empty(),
            pings,
            "after {seconds} s"
        );
    }
    assert_eq!(machine.deadline(), Some(at(15)));
    assert!(machine.time_passed(at(15)));
}

#[test]
fn a_ping_is_answered_and_an_answer_tells_the_round_trip() {
    let start = Instant::now();
    let mut client = attached(Side::Client, limits(100, 100), start);
    let mut server = attached(Side::Server, limits(100, 100), start);
    let asked = start + Duration::from_secs(5);
    assert!(!client.time_passed(asked));
    receive(&mut server, asked, &take_all(&mut client)).unwrap();
    let answered = asked + Duration::from_millis(40);
    receive(&mut client, answered, &take_all(&mut server)).unwrap();
    assert_eq!(client.round_trip(), Some(Duration::from_millis(40)));
    assert_eq!(client.deadline(), Some(answered + Duration::from_secs(5)));
}

#[test]
fn without_a_connection_the_window_decides() {
    let start = Instant::now();
    let mut machine = attached(Side::Server, limits(100, 100), start);
    machine.detach(start, None);
    assert_eq!(machine.deadline(), Some(start + WINDOW));
    assert!(!machine.time_passed(start + WINDOW - Duration::from_millis(1)));
    assert!(machine.ending().is_none());
    machine.time_passed(start + WINDOW);
    let ending = machine.ending().unwrap();
    assert_eq!(ending.refusal(), Refusal::WindowExpired(WINDOW));
}

#[test]
fn a_peer_that_knows_less_or_more_than_it_can_has_lost_its_state() {
    let now = Instant::now();
    let position = |received| Position {
        received,
        limit: 1000,
        replay_capacity: 1000,
    };
    let mut machine = attached(Side::Client, limits(100, 100), now);
    machine.write(b"0123456789");
    take_all(&mut machine);
    receive(
        &mut machine,
        now,
        &frames(|out| frame::put_ack(out, 5, 1000)),
    )
    .unwrap();
    machine.write(b"never sent");
    machine.detach(now, None);
    assert!(machine.attach(now, &position(4)).is_err());
    assert!(machine.attach(now, &position(11)).is_err());
    assert!(machine.attach(now, &position(10)).is_ok());
}

#[test]
fn many_pings_cost_one_answer() {
    let now = Instant::now();
    let mut machine = attached(Side::Server, limits(100, 100), now);
    for stamp in 0..1000 {
        receive(
            &mut machine,
            now,
            &frames(|out| frame::put_ping(out, stamp)),
        )
        .unwrap();
    }
    assert_eq!(
        take_all(&mut machine),
        frames(|out| frame::put_pong(out, 999))
    );
}

#[test]
fn an_abort_is_the_last_word_and_ends_both() {
    let now = Instant::now();
    let mut client = attached(Side::Client, limits(100, 100), now);
    let mut server = attached(Side::Server, limits(100, 100), now);
    let reason = Abort {
        code: 7,
        text: "no more\n".to_owned(),
    };
    server.abort(now, reason.clone());
    receive(&mut client, now, &take_all(&mut server)).unwrap();
    assert!(matches!(server.ending(), Some(Ending::Aborted(abort)) if *abort == reason));
    let Some(Ending::Failed(LinkError::Aborted(abort))) = client.ending() else {
        panic!("{:?}", client.ending());
    };
    assert_eq!((abort.code, abort.text.as_str()), (7, "no more\u{fffd}"));
}

#[test]
fn acknowledgements_are_rare() {
    let now = Instant::now();
    let mut receiver = attached(Side::Server, limits(4000, 4000), now);
    let mut said = 0;
    for number in 0..40 {
        receive(&mut receiver, now, &data(number * 100, &[0; 100])).unwrap();
        receiver.read(|_| {}, 100);
        said += usize::from(!take_all(&mut receiver).is_empty());
    }
    // After a quarter of the smaller buffer, which is the sender's 1000 bytes: with every third frame.
    assert_eq!(said, 40 / 3);
}
