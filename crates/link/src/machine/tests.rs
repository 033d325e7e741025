//! The state machine without a network: its frames, and complete delivery over pipes that are cut at any byte.

mod simulation;

use std::io::IoSlice;

use proptest::prelude::*;
use simulation::Simulation;

use super::*;
use crate::frame;

const WINDOW: Duration = Duration::from_secs(60);

fn limits(replay_capacity: u32, receive_window: u32) -> Limits {
    Limits {
        replay_capacity,
        receive_window,
        max_unsent: u32::MAX,
        max_ack_step: u32::MAX,
        ping_interval: Duration::from_secs(5),
        keep_alive_timeout: Duration::from_secs(15),
        close_timeout: Duration::from_secs(5),
    }
}

/// Runs the simulation. Cuts the pipe after each of these numbers of bytes.
fn run(
    mut simulation: Simulation,
    chunk: usize,
    mut cuts: impl Iterator<Item = u64>,
) -> Simulation {
    let mut idle_rounds = 0;
    let mut next = cuts.next();
    while !simulation.has_ended() {
        let mut budget = next.unwrap_or(u64::MAX);
        let before = simulation.handover;
        simulation.step(chunk, &mut budget);
        if let Some(left) = &mut next {
            *left = budget;
            if budget == 0 {
                simulation.cut();
                next = cuts.next();
            }
        }
        idle_rounds = if simulation.handover == before {
            idle_rounds + 1
        } else {
            0
        };
        assert!(idle_rounds < 10, "no progress");
    }
    simulation.assert_all_delivered();
    simulation
}

/// A simulation with small buffers, so that it often waits for acknowledgements and limits.
fn conversation(client_sends: u64, server_sends: u64) -> Simulation {
    Simulation::new(limits(90, 70), limits(64, 100), client_sends, server_sends)
}

#[test]
fn everything_is_delivered_when_the_pipe_is_cut_once_at_any_byte() {
    let whole = run(conversation(700, 500), 33, std::iter::empty()).handover;
    assert!(whole > 1200);
    for offset in 1..=whole {
        let simulation = run(conversation(700, 500), 33, std::iter::once(offset));
        assert_eq!(simulation.cuts, 1, "at {offset}");
    }
}

#[test]
fn everything_is_delivered_when_the_pipe_is_cut_twice_at_any_bytes() {
    let whole = run(conversation(30, 20), 33, std::iter::empty()).handover;
    for first in 1..=whole {
        // All positions of the second cut, for three neighbouring positions of the first one. More would only take longer.
        for second in (1 + first % 3..=whole).step_by(3) {
            run(conversation(30, 20), 33, [first, second].into_iter());
        }
    }
}

#[test]
fn everything_is_delivered_when_the_pipe_is_cut_repeatedly() {
    // A handshake takes about 100 bytes: shorter pipes never make progress.
    for period in 130..400 {
        let simulation = run(
            conversation(3000, 2000),
            57,
            std::iter::repeat_n(period, 10_000),
        );
        assert!(simulation.cuts > 10);
    }
}

#[test]
fn one_end_may_send_nothing_at_all() {
    for (client, server) in [(0, 0), (0, 300), (300, 0)] {
        let whole = run(conversation(client, server), 20, std::iter::empty()).handover;
        for offset in 1..=whole {
            run(conversation(client, server), 20, std::iter::once(offset));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn everything_is_delivered_with_any_buffers_pieces_and_cuts(
        buffers in prop::array::uniform4(1_u32..5000),
        sends in prop::array::uniform2(0_u64..20_000),
        chunk in 1_usize..10_000,
        cuts in prop::collection::vec(1_u64..4000, 0..100),
    ) {
        let [a, b, c, d] = buffers;
        // Smaller buffers only need more round trips.
        let shrink = if a.min(b).min(c).min(d) < 100 { 50 } else { 1 };
        let simulation = Simulation::new(limits(a, b), limits(c, d), sends[0] / shrink, sends[1] / shrink);
        run(simulation, chunk, cuts.into_iter());
    }

    #[test]
    fn no_input_causes_a_panic_or_exceeds_the_limits(
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
            prop_assert!(machine.receive_buffer_length() <= 1000);
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

fn data(offset: u64, bytes: &[u8]) -> Vec<u8> {
    let mut out = frames(|out| frame::put_data_header(out, offset, bytes.len()));
    out.extend_from_slice(bytes);
    out
}

#[test]
fn malformed_frames_are_rejected() {
    let check = |frames: &[&[u8]], expected: Malformed| {
        let now = Instant::now();
        let mut machine = attached(Side::Client, limits(100, 10), now);
        let result = receive(&mut machine, now, &frames.concat());
        assert_eq!(result, Err(expected));
    };
    let fin = |offset| frames(|out| frame::put_fin(out, offset));
    let (expected, received) = (0, 3);
    check(
        &[&data(3, b"abc")],
        Malformed::Offset { expected, received },
    );
    check(&[&fin(3)], Malformed::Offset { expected, received });
    let (expected, received) = (3, 0);
    check(
        &[&data(0, b"abc"), &data(0, b"abc")],
        Malformed::Offset { expected, received },
    );
    check(&[&data(0, b"eleven byte")], Malformed::Overrun);
    check(&[&data(0, b"abc"), &fin(3), &fin(4)], Malformed::AfterFin);
    check(&[&fin(0), &data(1, b"abc")], Malformed::AfterFin);
    check(
        &[&frames(|out| frame::put_ack(out, 1, 5))],
        Malformed::AckOfUnsent(1),
    );
    check(&[&frames(frame::put_closed)], Malformed::ClosedEarly);
    check(&[b"HTTP/1.1 502 Bad Gateway"], Malformed::Kind(b'H'));
}

#[test]
fn malformed_input_ends_the_connection_and_repeated_malformed_input_ends_the_link() {
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
        assert!(machine.end_reason().is_none());
        machine.attach(now, &position).unwrap();
        machine.detach(now, Some(Malformed::NotALink));
    }
    assert!(matches!(
        machine.end_reason(),
        Some(EndReason::Failed(LinkError::Protocol(_)))
    ));
}

#[test]
fn a_silent_peer_gets_pings_every_5_s_and_is_lost_after_15() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut machine = attached(Side::Client, limits(100, 100), start);
    for (seconds, pings) in [(4, false), (5, true), (6, false), (10, true), (14, false)] {
        assert!(!machine.handle_timeout(at(seconds)));
        assert_eq!(
            !take_all(&mut machine).is_empty(),
            pings,
            "after {seconds} s"
        );
    }
    assert_eq!(machine.deadline(), Some(at(15)));
    assert!(machine.handle_timeout(at(15)));
}

#[test]
fn a_pong_measures_the_round_trip() {
    let start = Instant::now();
    let mut client = attached(Side::Client, limits(100, 100), start);
    let mut server = attached(Side::Server, limits(100, 100), start);
    let sent = start + Duration::from_secs(5);
    assert!(!client.handle_timeout(sent));
    receive(&mut server, sent, &take_all(&mut client)).unwrap();
    let received = sent + Duration::from_millis(40);
    receive(&mut client, received, &take_all(&mut server)).unwrap();
    assert_eq!(client.round_trip(), Some(Duration::from_millis(40)));
    assert_eq!(client.deadline(), Some(received + Duration::from_secs(5)));
}

#[test]
fn a_disconnected_link_ends_after_the_resume_window() {
    let start = Instant::now();
    let mut machine = attached(Side::Server, limits(100, 100), start);
    machine.detach(start, None);
    assert_eq!(machine.deadline(), Some(start + WINDOW));
    assert!(!machine.handle_timeout(start + WINDOW - Duration::from_millis(1)));
    assert!(machine.end_reason().is_none());
    machine.handle_timeout(start + WINDOW);
    let end_reason = machine.end_reason().unwrap();
    assert_eq!(end_reason.refusal(), Refusal::WindowExpired(WINDOW));
}

#[test]
fn a_peer_with_an_impossible_position_has_lost_its_state() {
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
fn many_pings_get_one_pong() {
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
fn an_abort_ends_both_ends() {
    let now = Instant::now();
    let mut client = attached(Side::Client, limits(100, 100), now);
    let mut server = attached(Side::Server, limits(100, 100), now);
    let reason = Abort {
        code: 7,
        text: "no more\n".to_owned(),
    };
    server.abort(now, reason.clone());
    receive(&mut client, now, &take_all(&mut server)).unwrap();
    assert!(matches!(server.end_reason(), Some(EndReason::Aborted(abort)) if *abort == reason));
    let Some(EndReason::Failed(LinkError::Aborted(abort))) = client.end_reason() else {
        panic!("{:?}", client.end_reason());
    };
    assert_eq!((abort.code, abort.text.as_str()), (7, "no more\u{fffd}"));
}

#[test]
fn acknowledgements_are_rare() {
    let now = Instant::now();
    let mut receiver = attached(Side::Server, limits(4000, 4000), now);
    let mut acks = 0;
    for offset in 0..100 {
        receive(&mut receiver, now, &data(offset * 10, &[0; 10])).unwrap();
        receiver.read(|_| {}, 10);
        acks += usize::from(!take_all(&mut receiver).is_empty());
    }
    // After 250 bytes, a quarter of the smaller buffer, which is the sender's: once per 25 frames.
    assert_eq!(acks, 100 / 25);
}
