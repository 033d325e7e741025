//! Measures the wire: its throughput compared with a veth pair of the kernel, and the error of its delays.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use super::conditions::Conditions;
use super::namespace::{NetworkNamespace, in_namespace, ip, proc_path};
use super::{Wire, WireError};

/// The delay in each direction at which the timing is measured.
const DELAY: Duration = Duration::from_millis(20);

/// The results of one run. The veth pair is the baseline on the same machine at the same time.
#[derive(Clone, Debug)]
pub struct Measurement {
    pub veth_bits_per_second: f64,
    /// Without a fault.
    pub wire_bits_per_second: f64,
    /// With single packets, as with loss or a rate limit. Measured with a rate that is too high to limit anything.
    pub wire_single_packets_bits_per_second: f64,
    pub veth_round_trip: Duration,
    /// Without a fault.
    pub wire_round_trip: Duration,
    /// Twice the configured delay.
    pub delayed_round_trip_expected: Duration,
    pub delayed_round_trip: Duration,
}

/// Measures for about three times `transfer_time`, plus 40 ms for each of `round_trips`. Round trips are medians.
pub fn measure(transfer_time: Duration, round_trips: usize) -> Result<Measurement, WireError> {
    let testbed = Testbed::build()?;
    let veth_bits_per_second = testbed.throughput(Testbed::VETH_RIGHT, transfer_time)?;
    let wire_bits_per_second = testbed.throughput(Testbed::WIRE_RIGHT, transfer_time)?;
    testbed.set_both("rate 1000gbit")?;
    let wire_single_packets_bits_per_second =
        testbed.throughput(Testbed::WIRE_RIGHT, transfer_time)?;
    testbed.set_both("perfect")?;
    let veth_round_trip = testbed.median_round_trip(Testbed::VETH_RIGHT, round_trips)?;
    let wire_round_trip = testbed.median_round_trip(Testbed::WIRE_RIGHT, round_trips)?;
    let delayed = Conditions::delayed_by(DELAY);
    testbed
        .wire
        .set_both(Testbed::LEFT, Testbed::RIGHT, delayed)?;
    let delayed_round_trip = testbed.median_round_trip(Testbed::WIRE_RIGHT, round_trips)?;
    Ok(Measurement {
        veth_bits_per_second,
        wire_bits_per_second,
        wire_single_packets_bits_per_second,
        veth_round_trip,
        wire_round_trip,
        delayed_round_trip_expected: DELAY * 2,
        delayed_round_trip,
    })
}

/// Two network namespaces, connected by a veth pair and by a wire.
#[derive(Debug)]
pub(super) struct Testbed {
    pub(super) wire: Wire,
    pub(super) left: NetworkNamespace,
    pub(super) right: NetworkNamespace,
}

impl Testbed {
    pub(super) const LEFT: &str = "left";
    pub(super) const RIGHT: &str = "right";
    pub(super) const WIRE_LEFT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 201, 0, 1));
    pub(super) const WIRE_RIGHT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 201, 0, 2));
    pub(super) const VETH_RIGHT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 202, 0, 2));

    pub(super) fn build() -> Result<Self, WireError> {
        let testbed = Self {
            wire: Wire::start()?,
            left: NetworkNamespace::create()?,
            right: NetworkNamespace::create()?,
        };
        let (left, right) = (testbed.left.as_fd(), testbed.right.as_fd());
        testbed
            .wire
            .attach(Self::LEFT, "left-port", left, "wire0", &[Self::WIRE_LEFT])?;
        testbed.wire.attach(
            Self::RIGHT,
            "right-port",
            right,
            "wire0",
            &[Self::WIRE_RIGHT],
        )?;
        in_namespace(left, || {
            ip(&format!(
                "link add veth0 type veth peer name veth0 netns {}",
                proc_path(right)
            ))?;
            ip("addr add 10.202.0.1/30 dev veth0")?;
            ip("link set dev veth0 up")?;
            ip("addr add 10.201.0.1/32 dev wire0")?;
            ip("route add 10.201.0.2/32 dev wire0")
        })?;
        in_namespace(right, || {
            ip("addr add 10.202.0.2/30 dev veth0")?;
            ip("link set dev veth0 up")?;
            ip("addr add 10.201.0.2/32 dev wire0")?;
            ip("route add 10.201.0.1/32 dev wire0")
        })?;
        Ok(testbed)
    }

    pub(super) fn set_both(&self, conditions: &str) -> Result<(), WireError> {
        let conditions = conditions.parse().map_err(|error| {
            failed("set the conditions")(io::Error::other::<super::ConditionsError>(error))
        })?;
        self.wire.set_both(Self::LEFT, Self::RIGHT, conditions)
    }

    /// A TCP connection from the left to this address on the right.
    pub(super) fn connect(&self, address: IpAddr) -> Result<(TcpStream, TcpStream), WireError> {
        let listener = in_namespace(self.right.as_fd(), || {
            TcpListener::bind((address, 0)).map_err(failed("listen"))
        })?;
        let address = listener.local_addr().map_err(failed("listen"))?;
        let left = in_namespace(self.left.as_fd(), || {
            TcpStream::connect(address).map_err(failed("connect"))
        })?;
        let (right, _) = listener.accept().map_err(failed("accept"))?;
        Ok((left, right))
    }

    /// UDP sockets on the left and, at this address, on the right. The left one sends to the right one.
    pub(super) fn datagrams(&self, address: IpAddr) -> Result<(UdpSocket, UdpSocket), WireError> {
        let right = in_namespace(self.right.as_fd(), || {
            UdpSocket::bind((address, 0)).map_err(failed("bind"))
        })?;
        let address = right.local_addr().map_err(failed("bind"))?;
        let left = in_namespace(self.left.as_fd(), || {
            let any: SocketAddr = (Ipv4Addr::UNSPECIFIED, 0).into();
            UdpSocket::bind(any).map_err(failed("bind"))
        })?;
        left.connect(address).map_err(failed("connect"))?;
        Ok((left, right))
    }

    /// The throughput in bits per second of one TCP connection that sends for this long.
    fn throughput(&self, address: IpAddr, time: Duration) -> Result<f64, WireError> {
        let (mut left, mut right) = self.connect(address)?;
        let start = Instant::now();
        let sender = thread::spawn(move || -> io::Result<()> {
            let block = vec![7; 256 * 1024];
            while start.elapsed() < time {
                left.write_all(&block)?;
            }
            Ok(())
        });
        let mut block = vec![0; 256 * 1024];
        let mut bytes: u64 = 0;
        loop {
            match right.read(&mut block).map_err(failed("receive"))? {
                0 => break,
                length => bytes += length as u64,
            }
        }
        let elapsed = start.elapsed();
        if let Ok(sent) = sender.join() {
            sent.map_err(failed("send"))?;
        }
        Ok(bytes as f64 * 8.0 / elapsed.as_secs_f64())
    }

    /// The median of `count` round trips of a small datagram.
    fn median_round_trip(&self, address: IpAddr, count: usize) -> Result<Duration, WireError> {
        let (left, right) = self.datagrams(address)?;
        let echo = thread::spawn(move || echo(&right));
        let timeout = Duration::from_secs(10);
        left.set_read_timeout(Some(timeout))
            .map_err(failed("set a timeout"))?;
        let mut round_trips = Vec::with_capacity(count);
        for _ in 0..count {
            let start = Instant::now();
            left.send(b"ping").map_err(failed("send"))?;
            left.recv(&mut [0; 16]).map_err(failed("receive an echo"))?;
            round_trips.push(start.elapsed());
        }
        left.send(&[]).map_err(failed("send"))?;
        if let Ok(echoed) = echo.join() {
            echoed.map_err(failed("echo"))?;
        }
        round_trips.sort_unstable();
        Ok(round_trips.get(count / 2).copied().unwrap_or_default())
    }
}

/// Sends every datagram back, until an empty one.
pub(super) fn echo(socket: &UdpSocket) -> io::Result<()> {
    let mut buffer = [0; 2048];
    loop {
        let (length, sender) = socket.recv_from(&mut buffer)?;
        if length == 0 {
            return Ok(());
        }
        socket.send_to(&buffer[..length], sender)?;
    }
}

fn failed(action: &'static str) -> impl Fn(io::Error) -> WireError {
    move |source| WireError::Measure { action, source }
}
