//! The wire between real network namespaces. These need root, so they are ignored unless they are asked for:
//! `cargo test -p lab -- --ignored`, as root. `cargo xtask test` asks for them.
//!
//! No test asserts that something is fast enough: a busy machine is not a fault of the wire. [`super::measure`] measures.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use super::measure::{Site, echo};
use super::namespace::{NetworkNamespace, ip, within};
use super::{Conditions, LinkCounters, Wire, WireError};

/// How long a condition may take to come true on a very busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "still not true: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

impl Site {
    fn to_right(&self) -> LinkCounters {
        self.wire.counters(Self::LEFT, Self::RIGHT).unwrap()
    }

    fn to_left(&self) -> LinkCounters {
        self.wire.counters(Self::RIGHT, Self::LEFT).unwrap()
    }

    fn has_device(namespace: &NetworkNamespace) -> bool {
        within(namespace.as_fd(), || ip("link show dev wire0")).is_ok()
    }

    /// A socket on the left whose datagrams come back from the right.
    fn echoing_datagrams(&self) -> UdpSocket {
        let (left, right) = self.datagrams(Self::WIRE_RIGHT).unwrap();
        thread::spawn(move || echo(&right));
        left.set_read_timeout(Some(PATIENCE)).unwrap();
        left
    }
}

fn round_trip(socket: &UdpSocket, content: &[u8]) -> Duration {
    let start = Instant::now();
    socket.send(content).unwrap();
    let mut answer = [0; 2048];
    let length = socket.recv(&mut answer).unwrap();
    assert_eq!(&answer[..length], content);
    start.elapsed()
}

#[test]
#[ignore = "needs root"]
fn delay_and_jitter_make_the_round_trip_at_least_as_long() {
    let site = Site::build().unwrap();
    let socket = site.echoing_datagrams();
    round_trip(&socket, b"first");
    site.set_both("delay 20ms jitter 2ms").unwrap();
    for _ in 0..5 {
        assert!(round_trip(&socket, b"delayed") >= Duration::from_millis(40));
    }
    site.wire
        .set(Site::LEFT, Site::RIGHT, Conditions::default())
        .unwrap();
    assert!(round_trip(&socket, b"one way") >= Duration::from_millis(20));
    assert_eq!(
        site.wire.conditions().unwrap(),
        [(
            "right".to_owned(),
            "left".to_owned(),
            "delay 20ms jitter 2ms".parse().unwrap()
        )]
    );
}

#[test]
#[ignore = "needs root"]
fn every_packet_is_counted_on_its_own_direction() {
    let site = Site::build().unwrap();
    let socket = site.echoing_datagrams();
    for _ in 0..10 {
        round_trip(&socket, &[1; 100]);
    }
    // 100 bytes, 8 of UDP and 20 of IP.
    for counters in [site.to_right(), site.to_left()] {
        assert_eq!(counters.carried.packets, 10);
        assert_eq!(counters.carried.bytes, 1280);
        assert_eq!(counters.lost.packets + counters.cut.packets, 0);
    }
}

#[test]
#[ignore = "needs root"]
fn a_rate_keeps_datagrams_apart_and_drops_what_does_not_fit() {
    let site = Site::build().unwrap();
    let (left, right) = site.datagrams(Site::WIRE_RIGHT).unwrap();
    site.set_both("rate 800kbit").unwrap();
    let start = Instant::now();
    for _ in 0..200 {
        left.send(&[1; 972]).unwrap();
    }
    right.set_read_timeout(Some(PATIENCE)).unwrap();
    // 1000 bytes with their headers take 10 ms.
    for number in 1..=20 {
        right.recv(&mut [0; 2048]).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(number * 10));
    }
    wait_until("the queue has overflowed", || {
        site.to_right().dropped_by_rate_queue.packets >= 100
    });
}

#[test]
#[ignore = "needs root"]
fn loss_of_everything_and_of_nothing() {
    let site = Site::build().unwrap();
    let socket = site.echoing_datagrams();
    site.wire
        .set(Site::LEFT, Site::RIGHT, "loss 100%".parse().unwrap())
        .unwrap();
    for _ in 0..20 {
        socket.send(b"lost").unwrap();
    }
    wait_until("all are lost", || site.to_right().lost.packets == 20);
    assert_eq!(site.to_right().carried.packets, 0);
    site.set_both("loss 0%").unwrap();
    for _ in 0..20 {
        round_trip(&socket, b"arrives");
    }
    assert_eq!(site.to_right().carried.packets, 20);
    assert_eq!(site.to_right().lost.packets, 20);
}

#[test]
#[ignore = "needs root"]
fn a_connection_survives_a_cut() {
    let site = Site::build().unwrap();
    let (mut left, mut right) = site.connect(Site::WIRE_RIGHT).unwrap();
    let mut received = [0; 6];
    left.write_all(b"before").unwrap();
    right.read_exact(&mut received).unwrap();

    site.set_both("cut").unwrap();
    let carried = site.to_right().carried;
    left.write_all(b"during").unwrap();
    wait_until("the cut was met and met again", || {
        site.to_right().cut.packets >= 2
    });
    assert_eq!(site.to_right().carried, carried);
    right.set_nonblocking(true).unwrap();
    let nothing = right.read(&mut received).unwrap_err();
    assert_eq!(nothing.kind(), ErrorKind::WouldBlock);

    right.set_nonblocking(false).unwrap();
    site.set_both("perfect").unwrap();
    right.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"during");
    right.write_all(b"after!").unwrap();
    left.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"after!");
}

#[test]
#[ignore = "needs root"]
fn a_transfer_arrives_whole() {
    let site = Site::build().unwrap();
    for conditions in ["perfect", "loss 2%", "delay 1ms jitter 1ms", "perfect"] {
        site.set_both(conditions).unwrap();
        let (left, right) = site.connect(Site::WIRE_RIGHT).unwrap();
        transfer(left, right);
        if conditions == "loss 2%" {
            let counters = site.to_right();
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
fn bundles_pass_until_a_fault_counts_packets_and_again_when_it_is_healed() {
    let site = Site::build().unwrap();
    let mut before = site.to_right().carried;
    for (conditions, bundled) in [
        ("perfect", true),
        ("rate 100gbit", false),
        ("loss 0.01%", false),
        ("delay 1ms", true),
    ] {
        site.set_both(conditions).unwrap();
        let (left, right) = site.connect(Site::WIRE_RIGHT).unwrap();
        transfer(left, right);
        let after = site.to_right().carried;
        let average = (after.bytes - before.bytes) / (after.packets - before.packets);
        assert_eq!(average > 1500, bundled, "{conditions}: {average} bytes");
        before = after;
    }
}

#[test]
#[ignore = "needs root"]
fn ipv6_is_carried_too() {
    let site = Site::build().unwrap();
    let right: IpAddr = "fd00:201::2".parse().unwrap();
    if !std::path::Path::new("/proc/net/if_inet6").exists() {
        eprintln!("skipped: this kernel has no IPv6");
        return;
    }
    for (namespace, port, own, other) in [
        (&site.left, "left-6", "fd00:201::1", "fd00:201::2"),
        (&site.right, "right-6", "fd00:201::2", "fd00:201::1"),
    ] {
        let endpoint = port.trim_end_matches("-6");
        let address = own.parse().unwrap();
        site.wire
            .attach(endpoint, port, namespace, "wire6", &[address])
            .unwrap();
        within(namespace.as_fd(), || {
            ip(&format!("addr add {own}/128 dev wire6 nodad"))?;
            ip(&format!("-6 route add {other}/128 dev wire6"))
        })
        .unwrap();
    }
    let (left, right) = site.connect(right).unwrap();
    transfer(left, right);
}

#[test]
#[ignore = "needs root"]
fn a_port_whose_namespace_ends_is_let_go() {
    let site = Site::build().unwrap();
    let socket = site.echoing_datagrams();
    let third = NetworkNamespace::create().unwrap();
    let address = "10.201.0.3".parse().unwrap();
    site.wire
        .attach("third", "third-port", &third, "wire0", &[address])
        .unwrap();
    drop(third);
    wait_until("the port has vanished", || {
        site.wire.report().unwrap().vanished.len() == 1
    });
    let report = site.wire.report().unwrap();
    assert_eq!(report.vanished[0].port, "third-port");
    assert_eq!(report.ports.len(), 2);
    round_trip(&socket, b"the others go on");
    site.wire.detach("third-port").unwrap();
    assert!(matches!(
        site.wire.detach("third-port"),
        Err(WireError::UnknownPort(_))
    ));
}

#[test]
#[ignore = "needs root"]
fn a_receiver_that_is_down_costs_its_packets_and_nothing_else() {
    let site = Site::build().unwrap();
    let socket = site.echoing_datagrams();
    within(site.right.as_fd(), || ip("link set dev wire0 down")).unwrap();
    socket.send(b"nobody is there").unwrap();
    wait_until("it was refused", || {
        site.to_right().undeliverable.packets == 1
    });
    within(site.right.as_fd(), || {
        ip("link set dev wire0 up")?;
        ip("route add 10.201.0.1/32 dev wire0")
    })
    .unwrap();
    round_trip(&socket, b"back again");
}

#[test]
#[ignore = "needs root"]
fn devices_end_with_their_port_and_with_the_wire() {
    let site = Site::build().unwrap();
    let Site { wire, left, right } = site;
    assert!(Site::has_device(&left) && Site::has_device(&right));
    wire.detach("left-port").unwrap();
    assert!(!Site::has_device(&left) && Site::has_device(&right));
    drop(wire);
    assert!(!Site::has_device(&right));
}

#[test]
#[ignore = "needs root"]
fn packets_to_nobody_are_counted() {
    let site = Site::build().unwrap();
    within(site.left.as_fd(), || {
        ip("route add 10.201.0.99/32 dev wire0")
    })
    .unwrap();
    let socket = site.echoing_datagrams();
    socket.connect("10.201.0.99:9").unwrap();
    socket.send(&[1; 72]).unwrap();
    wait_until("it went astray", || {
        let ports = site.wire.report().unwrap().ports;
        ports
            .iter()
            .any(|port| port.port == "left-port" && port.astray.bytes >= 100)
    });
}

#[test]
#[ignore = "needs root"]
fn a_name_or_an_address_belongs_to_one_port() {
    let site = Site::build().unwrap();
    let other = "10.201.0.9".parse().unwrap();
    let attach = |port, address| {
        site.wire
            .attach("left", port, &site.left, "wire1", &[address])
    };
    assert!(matches!(
        attach("left-port", other),
        Err(WireError::PortTaken(_))
    ));
    assert!(matches!(
        attach("new-port", Site::WIRE_RIGHT),
        Err(WireError::AddressTaken { .. })
    ));
    // The refused ports have left no device behind.
    attach("new-port", other).unwrap();
}

#[test]
#[ignore = "needs root"]
fn the_caller_stays_in_its_own_namespace() {
    let _site = Site::build().unwrap();
    let own = || std::fs::read_link("/proc/thread-self/ns/net").unwrap();
    let before = own();
    let wire = Wire::start().unwrap();
    let namespace = NetworkNamespace::create().unwrap();
    wire.attach("a", "b", &namespace, "wire0", &[]).unwrap();
    assert_eq!(own(), before);
}
