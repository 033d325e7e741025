//! Tests of the wire between real network namespaces. They need root, so they are ignored by default:
//! `cargo test -p lab -- --ignored` runs them as root, and so does `cargo xtask test`.
//!
//! No test asserts that something is fast enough, because the machine may be busy. [`super::measure`] measures speed.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use super::measure::{Testbed, echo};
use super::namespace::{NetworkNamespace, in_namespace, ip};
use super::{Conditions, LinkCounters, Wire, WireError};

/// How long a condition may take to become true on a very busy machine.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + WAIT_TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "still not true: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

impl Testbed {
    fn to_right(&self) -> LinkCounters {
        self.wire.counters(Self::LEFT, Self::RIGHT).unwrap()
    }

    fn to_left(&self) -> LinkCounters {
        self.wire.counters(Self::RIGHT, Self::LEFT).unwrap()
    }

    fn has_device(namespace: &NetworkNamespace) -> bool {
        in_namespace(namespace.as_fd(), || ip("link show dev wire0")).is_ok()
    }

    /// A socket on the left whose datagrams are echoed by the right.
    fn echoing_datagrams(&self) -> UdpSocket {
        let (left, right) = self.datagrams(Self::WIRE_RIGHT).unwrap();
        thread::spawn(move || echo(&right));
        left.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
        left
    }
}

fn round_trip(socket: &UdpSocket, content: &[u8]) -> Duration {
    let start = Instant::now();
    socket.send(content).unwrap();
    let mut reply = [0; 2048];
    let length = socket.recv(&mut reply).unwrap();
    assert_eq!(&reply[..length], content);
    start.elapsed()
}

#[test]
#[ignore = "needs root"]
fn delay_and_jitter_make_the_round_trip_at_least_as_long() {
    let testbed = Testbed::build().unwrap();
    let socket = testbed.echoing_datagrams();
    round_trip(&socket, b"first");
    testbed.set_both("delay 20ms jitter 2ms").unwrap();
    for _ in 0..5 {
        assert!(round_trip(&socket, b"delayed") >= Duration::from_millis(40));
    }
    testbed
        .wire
        .set(Testbed::LEFT, Testbed::RIGHT, Conditions::default())
        .unwrap();
    assert!(round_trip(&socket, b"one way") >= Duration::from_millis(20));
    assert_eq!(
        testbed.wire.conditions().unwrap(),
        [(
            "right".to_owned(),
            "left".to_owned(),
            "delay 20ms jitter 2ms".parse().unwrap()
        )]
    );
}

#[test]
#[ignore = "needs root"]
fn packets_are_counted_per_direction() {
    let testbed = Testbed::build().unwrap();
    let socket = testbed.echoing_datagrams();
    for _ in 0..10 {
        round_trip(&socket, &[1; 100]);
    }
    // 100 bytes, 8 of UDP and 20 of IP.
    for counters in [testbed.to_right(), testbed.to_left()] {
        assert_eq!(counters.forwarded.packets, 10);
        assert_eq!(counters.forwarded.bytes, 1280);
        assert_eq!(counters.lost.packets + counters.cut.packets, 0);
    }
}

#[test]
#[ignore = "needs root"]
fn a_rate_spaces_datagrams_and_drops_queue_overflow() {
    let testbed = Testbed::build().unwrap();
    let (left, right) = testbed.datagrams(Testbed::WIRE_RIGHT).unwrap();
    testbed.set_both("rate 800kbit").unwrap();
    let start = Instant::now();
    for _ in 0..200 {
        left.send(&[1; 972]).unwrap();
    }
    right.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
    // 1000 bytes with their headers take 10 ms.
    for number in 1..=20 {
        right.recv(&mut [0; 2048]).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(number * 10));
    }
    wait_until("the queue has overflowed", || {
        testbed.to_right().dropped_by_rate_queue.packets >= 100
    });
}

#[test]
#[ignore = "needs root"]
fn loss_of_all_packets_and_of_none() {
    let testbed = Testbed::build().unwrap();
    let socket = testbed.echoing_datagrams();
    testbed
        .wire
        .set(Testbed::LEFT, Testbed::RIGHT, "loss 100%".parse().unwrap())
        .unwrap();
    for _ in 0..20 {
        socket.send(b"lost").unwrap();
    }
    wait_until("all are lost", || testbed.to_right().lost.packets == 20);
    assert_eq!(testbed.to_right().forwarded.packets, 0);
    testbed.set_both("loss 0%").unwrap();
    for _ in 0..20 {
        round_trip(&socket, b"arrives");
    }
    assert_eq!(testbed.to_right().forwarded.packets, 20);
    assert_eq!(testbed.to_right().lost.packets, 20);
}

#[test]
#[ignore = "needs root"]
fn a_connection_survives_a_cut() {
    let testbed = Testbed::build().unwrap();
    let (mut left, mut right) = testbed.connect(Testbed::WIRE_RIGHT).unwrap();
    let mut received = [0; 6];
    left.write_all(b"before").unwrap();
    right.read_exact(&mut received).unwrap();

    testbed.set_both("cut").unwrap();
    let forwarded = testbed.to_right().forwarded;
    left.write_all(b"during").unwrap();
    wait_until("packets were dropped by the cut at least twice", || {
        testbed.to_right().cut.packets >= 2
    });
    assert_eq!(testbed.to_right().forwarded, forwarded);
    right.set_nonblocking(true).unwrap();
    let nothing = right.read(&mut received).unwrap_err();
    assert_eq!(nothing.kind(), ErrorKind::WouldBlock);

    right.set_nonblocking(false).unwrap();
    testbed.set_both("perfect").unwrap();
    right.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"during");
    right.write_all(b"after!").unwrap();
    left.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"after!");
}

#[test]
#[ignore = "needs root"]
fn a_transfer_is_delivered_unchanged() {
    let testbed = Testbed::build().unwrap();
    for conditions in ["perfect", "loss 2%", "delay 1ms jitter 1ms", "perfect"] {
        testbed.set_both(conditions).unwrap();
        let (left, right) = testbed.connect(Testbed::WIRE_RIGHT).unwrap();
        transfer(left, right);
        if conditions == "loss 2%" {
            let counters = testbed.to_right();
            assert!(counters.lost.packets > 0, "{counters:?}");
        }
    }
}

/// Sends 64 MiB of blocks that all differ, and compares each at the other end.
fn transfer(mut left: TcpStream, mut right: TcpStream) {
    const BLOCK: usize = 64 * 1024;
    const BLOCKS: u64 = 1024;
    fn stamp(block: &mut [u8], number: u64) {
        block[..8].copy_from_slice(&number.to_be_bytes());
        block[BLOCK - 8..].copy_from_slice(&(!number).to_be_bytes());
    }
    let pattern: Vec<u8> = (0..BLOCK).map(|index| (index % 251) as u8).collect();
    let mut expected = pattern.clone();
    let sender = thread::spawn(move || {
        let mut block = pattern;
        for number in 0..BLOCKS {
            stamp(&mut block, number);
            left.write_all(&block).unwrap();
        }
    });
    let mut block = vec![0; BLOCK];
    for number in 0..BLOCKS {
        right.read_exact(&mut block).unwrap();
        stamp(&mut expected, number);
        assert!(block == expected, "block {number} differs");
    }
    sender.join().unwrap();
    assert_eq!(right.read(&mut block).unwrap(), 0);
}

#[test]
#[ignore = "needs root"]
fn segmentation_offload_is_disabled_while_a_fault_needs_single_packets() {
    let testbed = Testbed::build().unwrap();
    let mut before = testbed.to_right().forwarded;
    for (conditions, offloaded) in [
        ("perfect", true),
        ("rate 100gbit", false),
        ("loss 0.01%", false),
        ("delay 1ms", true),
    ] {
        testbed.set_both(conditions).unwrap();
        let (left, right) = testbed.connect(Testbed::WIRE_RIGHT).unwrap();
        transfer(left, right);
        let after = testbed.to_right().forwarded;
        let average = (after.bytes - before.bytes) / (after.packets - before.packets);
        assert_eq!(average > 1500, offloaded, "{conditions}: {average} bytes");
        before = after;
    }
}

#[test]
#[ignore = "needs root"]
fn ipv6_packets_are_forwarded() {
    let testbed = Testbed::build().unwrap();
    let right: IpAddr = "fd00:201::2".parse().unwrap();
    if !std::path::Path::new("/proc/net/if_inet6").exists() {
        eprintln!("skipped: this kernel has no IPv6");
        return;
    }
    for (namespace, port, own, other) in [
        (&testbed.left, "left-6", "fd00:201::1", "fd00:201::2"),
        (&testbed.right, "right-6", "fd00:201::2", "fd00:201::1"),
    ] {
        let endpoint = port.trim_end_matches("-6");
        let address = own.parse().unwrap();
        testbed
            .wire
            .attach(endpoint, port, namespace, "wire6", &[address])
            .unwrap();
        in_namespace(namespace.as_fd(), || {
            ip(&format!("addr add {own}/128 dev wire6 nodad"))?;
            ip(&format!("-6 route add {other}/128 dev wire6"))
        })
        .unwrap();
    }
    let (left, right) = testbed.connect(right).unwrap();
    transfer(left, right);
}

#[test]
#[ignore = "needs root"]
fn a_port_whose_namespace_ends_is_removed() {
    let testbed = Testbed::build().unwrap();
    let socket = testbed.echoing_datagrams();
    let third = NetworkNamespace::create().unwrap();
    let address = "10.201.0.3".parse().unwrap();
    testbed
        .wire
        .attach("third", "third-port", &third, "wire0", &[address])
        .unwrap();
    drop(third);
    wait_until("the port has vanished", || {
        testbed.wire.report().unwrap().vanished.len() == 1
    });
    let report = testbed.wire.report().unwrap();
    assert_eq!(report.vanished[0].port, "third-port");
    assert_eq!(report.ports.len(), 2);
    round_trip(&socket, b"the others continue");
    testbed.wire.detach("third-port").unwrap();
    assert!(matches!(
        testbed.wire.detach("third-port"),
        Err(WireError::UnknownPort(_))
    ));
}

#[test]
#[ignore = "needs root"]
fn packets_to_a_device_that_is_down_are_dropped_and_others_pass() {
    let testbed = Testbed::build().unwrap();
    let socket = testbed.echoing_datagrams();
    in_namespace(testbed.right.as_fd(), || ip("link set dev wire0 down")).unwrap();
    socket.send(b"undeliverable").unwrap();
    wait_until("the packet was rejected", || {
        testbed.to_right().undeliverable.packets == 1
    });
    in_namespace(testbed.right.as_fd(), || {
        ip("link set dev wire0 up")?;
        ip("route add 10.201.0.1/32 dev wire0")
    })
    .unwrap();
    round_trip(&socket, b"back again");
}

#[test]
#[ignore = "needs root"]
fn devices_are_removed_with_their_port_and_with_the_wire() {
    let testbed = Testbed::build().unwrap();
    let Testbed { wire, left, right } = testbed;
    assert!(Testbed::has_device(&left) && Testbed::has_device(&right));
    wire.detach("left-port").unwrap();
    assert!(!Testbed::has_device(&left) && Testbed::has_device(&right));
    drop(wire);
    assert!(!Testbed::has_device(&right));
}

#[test]
#[ignore = "needs root"]
fn packets_to_unknown_addresses_are_counted() {
    let testbed = Testbed::build().unwrap();
    in_namespace(testbed.left.as_fd(), || {
        ip("route add 10.201.0.99/32 dev wire0")
    })
    .unwrap();
    let socket = testbed.echoing_datagrams();
    socket.connect("10.201.0.99:9").unwrap();
    socket.send(&[1; 72]).unwrap();
    wait_until("the packet was counted as unroutable", || {
        let ports = testbed.wire.report().unwrap().ports;
        ports
            .iter()
            .any(|port| port.port == "left-port" && port.unroutable.bytes >= 100)
    });
}

#[test]
#[ignore = "needs root"]
fn port_names_and_addresses_are_unique() {
    let testbed = Testbed::build().unwrap();
    let other = "10.201.0.9".parse().unwrap();
    let attach = |port, address| {
        testbed
            .wire
            .attach("left", port, &testbed.left, "wire1", &[address])
    };
    assert!(matches!(
        attach("left-port", other),
        Err(WireError::PortTaken(_))
    ));
    assert!(matches!(
        attach("new-port", Testbed::WIRE_RIGHT),
        Err(WireError::AddressTaken { .. })
    ));
    // The rejected ports have left no device behind.
    attach("new-port", other).unwrap();
}

#[test]
#[ignore = "needs root"]
fn the_namespace_of_the_caller_does_not_change() {
    let _site = Testbed::build().unwrap();
    let own = || std::fs::read_link("/proc/thread-self/ns/net").unwrap();
    let before = own();
    let wire = Wire::start().unwrap();
    let namespace = NetworkNamespace::create().unwrap();
    wire.attach("a", "b", &namespace, "wire0", &[]).unwrap();
    assert_eq!(own(), before);
}
