//! The thread that holds every TUN device and carries the packets between them.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::Instant;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::EventFd;
use nix::sys::prctl;
use nix::sys::time::TimeSpec;
use rand::Rng;
use rand::rngs::SmallRng;

use super::WireError;
use super::conditions::Conditions;
use super::counters::{LinkCounters, LinkReport, PortReport, Tally, VanishedPort, WireReport};
use super::link::{Dice, Link, Verdict};
use super::packet::destination;
use super::tun::{BUFFER_SIZE, HEADER_SIZE, Tun, means_gone};

/// How many packets of one port are taken before the others and the deadlines get their turn.
const PACKETS_PER_TURN: usize = 32;

/// What the owner of the wire asks of the carrier. Each answer is sent when the request is in force.
#[derive(Debug)]
pub(super) enum Command {
    Attach {
        endpoint: String,
        port: String,
        tun: Tun,
        addresses: Vec<IpAddr>,
        answer: Sender<Result<(), WireError>>,
    },
    Detach {
        port: String,
        /// The device, so that the carrier does not wait for its removal; none if it has vanished.
        answer: Sender<Result<Option<Tun>, WireError>>,
    },
    Set {
        from: String,
        to: String,
        conditions: Conditions,
        answer: Sender<Result<(), WireError>>,
    },
    Report {
        answer: Sender<WireReport>,
    },
    Stop,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct EndpointNumber(usize);

/// Never used twice, so a packet under way to a port that has gone cannot arrive at another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PortNumber(u64);

#[derive(Debug)]
struct Port {
    name: String,
    endpoint: EndpointNumber,
    tun: Tun,
    astray: Tally,
}

/// A packet under way, with the header of the device it came from.
#[derive(Debug)]
struct Parcel {
    to: PortNumber,
    packet: Box<[u8]>,
}

#[derive(Debug, Default)]
struct Path {
    link: Link<Parcel>,
    counters: LinkCounters,
}

/// What woke the carrier up.
struct Woken {
    readable: Vec<PortNumber>,
    vanished: Vec<PortNumber>,
}

#[derive(Debug)]
pub(super) struct Carrier {
    commands: Receiver<Command>,
    wake: Arc<EventFd>,
    endpoints: Vec<String>,
    ports: BTreeMap<PortNumber, Port>,
    next_port: PortNumber,
    owners: HashMap<IpAddr, PortNumber>,
    paths: BTreeMap<(EndpointNumber, EndpointNumber), Path>,
    vanished: Vec<VanishedPort>,
    random: SmallRng,
}

impl Carrier {
    pub(super) fn new(commands: Receiver<Command>, wake: Arc<EventFd>, random: SmallRng) -> Self {
        Self {
            commands,
            wake,
            endpoints: Vec::new(),
            ports: BTreeMap::new(),
            next_port: PortNumber(0),
            owners: HashMap::new(),
            paths: BTreeMap::new(),
            vanished: Vec::new(),
            random,
        }
    }

    /// Carries until it is told to stop or the owner is gone.
    pub(super) fn run(mut self) {
        // By default the kernel may wake a sleeper 50 µs late to save power, which a round trip of two links pays four times.
        if let Err(errno) = prctl::set_timerslack(1) {
            tracing::warn!(%errno, "the wire cannot ask for exact timers; delays may be some 50 µs long");
        }
        let mut buffer = vec![0; BUFFER_SIZE];
        while self.obey_commands() {
            self.release_what_is_due();
            let woken = match self.wait() {
                Ok(woken) => woken,
                Err(Errno::EINTR) => continue,
                Err(errno) => {
                    tracing::error!(%errno, "the wire cannot wait for packets and stops");
                    return;
                }
            };
            for port in woken.readable {
                self.take_packets(port, &mut buffer);
            }
            for port in woken.vanished {
                self.let_go(port, "its device is gone");
            }
        }
    }

    /// Sleeps until there is a packet, a deadline or a command.
    fn wait(&self) -> nix::Result<Woken> {
        let mut polled = Vec::with_capacity(self.ports.len() + 1);
        polled.push(PollFd::new(self.wake.as_fd(), PollFlags::POLLIN));
        for port in self.ports.values() {
            polled.push(PollFd::new(port.tun.as_fd(), PollFlags::POLLIN));
        }
        let next_due = self.paths.values().filter_map(|path| path.link.next_due());
        let timeout = next_due
            .min()
            .map(|due| TimeSpec::from(due.saturating_duration_since(Instant::now())));
        ppoll(&mut polled, timeout, None)?;

        let mut events = polled
            .iter()
            .map(|polled| polled.revents().unwrap_or(PollFlags::empty()));
        if events.next().is_some_and(|event| !event.is_empty()) {
            // Reading resets it; there is nothing to know beyond that there may be commands.
            self.wake.read()?;
        }
        let mut woken = Woken {
            readable: Vec::new(),
            vanished: Vec::new(),
        };
        for (number, event) in self.ports.keys().zip(events) {
            if event.intersects(PollFlags::POLLERR | PollFlags::POLLHUP | PollFlags::POLLNVAL) {
                woken.vanished.push(*number);
            } else if event.contains(PollFlags::POLLIN) {
                woken.readable.push(*number);
            }
        }
        Ok(woken)
    }

    fn take_packets(&mut self, number: PortNumber, buffer: &mut [u8]) {
        for _ in 0..PACKETS_PER_TURN {
            let Some(port) = self.ports.get(&number) else {
                return;
            };
            match port.tun.receive(buffer) {
                Ok(length) => self.carry(number, &buffer[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return self.let_go(number, &error.to_string()),
            }
        }
    }

    /// Decides about a packet that came from a port, and delivers it if it is due at once.
    fn carry(&mut self, from: PortNumber, packet: &[u8]) {
        let Some(sender) = self.ports.get_mut(&from) else {
            return;
        };
        let content = packet.get(HEADER_SIZE..).unwrap_or_default();
        let size = content.len();
        let owner = destination(content).and_then(|address| self.owners.get(&address));
        let sender_endpoint = sender.endpoint;
        let Some(&to) = owner else {
            return sender.astray.add(size);
        };
        let Some(receiver) = self.ports.get(&to) else {
            return;
        };
        let path = self
            .paths
            .entry((sender_endpoint, receiver.endpoint))
            .or_default();
        let dice = Dice {
            loss: self.random.random(),
            jitter: self.random.random(),
        };
        match path.link.admit(size, Instant::now(), dice) {
            Verdict::Deliver => {
                if let Err(vanished) = hand_over(receiver, packet, &mut path.counters) {
                    self.let_go(to, &vanished.to_string());
                }
            }
            Verdict::Hold { until } => {
                let packet = packet.into();
                path.link.hold(until, size, Parcel { to, packet });
            }
            Verdict::Drop(reason) => path.counters.count_drop(reason, size),
        }
    }

    fn release_what_is_due(&mut self) {
        let mut vanished = Vec::new();
        let now = Instant::now();
        for path in self.paths.values_mut() {
            while let Some(parcel) = path.link.release(now) {
                let Some(receiver) = self.ports.get(&parcel.to) else {
                    let size = parcel.packet.len().saturating_sub(HEADER_SIZE);
                    path.counters.undeliverable.add(size);
                    continue;
                };
                if let Err(error) = hand_over(receiver, &parcel.packet, &mut path.counters) {
                    vanished.push((parcel.to, error));
                }
            }
        }
        for (number, error) in vanished {
            self.let_go(number, &error.to_string());
        }
    }

    /// Forgets a port that went away by itself.
    fn let_go(&mut self, number: PortNumber, reason: &str) {
        let Some(port) = self.remove(number) else {
            return;
        };
        let endpoint = self.endpoint_name(port.endpoint);
        tracing::warn!(endpoint, port = port.name, reason, "the wire lost a port");
        self.vanished.push(VanishedPort {
            endpoint,
            port: port.name,
            reason: reason.to_owned(),
        });
    }

    fn remove(&mut self, number: PortNumber) -> Option<Port> {
        self.owners.retain(|_, owner| *owner != number);
        self.ports.remove(&number)
    }

    /// Does what was asked, and returns whether to go on.
    fn obey_commands(&mut self) -> bool {
        loop {
            // An owner that did not wait for the answer does not need it, so a failure to send one is no failure.
            match self.commands.try_recv() {
                Ok(Command::Attach {
                    endpoint,
                    port,
                    tun,
                    addresses,
                    answer,
                }) => {
                    let _ = answer.send(self.attach(&endpoint, port, tun, &addresses));
                }
                Ok(Command::Detach { port, answer }) => {
                    let _ = answer.send(self.detach(&port));
                }
                Ok(Command::Set {
                    from,
                    to,
                    conditions,
                    answer,
                }) => {
                    let _ = answer.send(self.set(&from, &to, conditions));
                }
                Ok(Command::Report { answer }) => {
                    let _ = answer.send(self.report());
                }
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    fn attach(
        &mut self,
        endpoint: &str,
        name: String,
        mut tun: Tun,
        addresses: &[IpAddr],
    ) -> Result<(), WireError> {
        if self.ports.values().any(|port| port.name == name) {
            return Err(WireError::PortTaken(name));
        }
        for address in addresses {
            if let Some(port) = self
                .owners
                .get(address)
                .and_then(|owner| self.ports.get(owner))
            {
                return Err(WireError::AddressTaken {
                    address: *address,
                    port: port.name.clone(),
                });
            }
        }
        let endpoint = self.endpoint_number(endpoint);
        tun.set_bundles(self.may_send_bundles(endpoint))?;
        self.vanished.retain(|vanished| vanished.port != name);
        let number = self.next_port;
        self.next_port.0 += 1;
        self.owners
            .extend(addresses.iter().map(|address| (*address, number)));
        let port = Port {
            name,
            endpoint,
            tun,
            astray: Tally::default(),
        };
        self.ports.insert(number, port);
        Ok(())
    }

    fn detach(&mut self, name: &str) -> Result<Option<Tun>, WireError> {
        let attached = self.ports.iter().find(|(_, port)| port.name == name);
        if let Some((&number, _)) = attached {
            return Ok(self.remove(number).map(|port| port.tun));
        }
        // The namespace of a port may end between the decision to detach it and the request.
        let before = self.vanished.len();
        self.vanished.retain(|vanished| vanished.port != name);
        if self.vanished.len() == before {
            return Err(WireError::UnknownPort(name.to_owned()));
        }
        Ok(None)
    }

    fn set(&mut self, from: &str, to: &str, conditions: Conditions) -> Result<(), WireError> {
        let from = self.endpoint_number(from);
        let to = self.endpoint_number(to);
        let path = self.paths.entry((from, to)).or_default();
        let destroyed = path.link.change(conditions, Instant::now());
        path.counters.cut.merge(destroyed);
        let bundles = self.may_send_bundles(from);
        let senders = self.ports.values_mut().filter(|port| port.endpoint == from);
        for sender in senders {
            match sender.tun.set_bundles(bundles) {
                // The next wait finds that it is gone.
                Err(WireError::Device { source, .. }) if means_gone(&source) => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Whether no path from this endpoint has a fault that must see single packets. A device has one setting for all of its paths.
    fn may_send_bundles(&self, endpoint: EndpointNumber) -> bool {
        let mut paths = self.paths.iter().filter(|((from, _), _)| *from == endpoint);
        !paths.any(|(_, path)| path.link.conditions().needs_single_packets())
    }

    fn report(&self) -> WireReport {
        let links = self.paths.iter().map(|((from, to), path)| LinkReport {
            from: self.endpoint_name(*from),
            to: self.endpoint_name(*to),
            conditions: path.link.conditions().clone(),
            counters: path.counters,
        });
        let ports = self.ports.values().map(|port| PortReport {
            endpoint: self.endpoint_name(port.endpoint),
            port: port.name.clone(),
            device: port.tun.device().to_owned(),
            astray: port.astray,
        });
        WireReport {
            links: links.collect(),
            ports: ports.collect(),
            vanished: self.vanished.clone(),
        }
    }

    fn endpoint_number(&mut self, name: &str) -> EndpointNumber {
        let known = self.endpoints.iter().position(|known| known == name);
        EndpointNumber(known.unwrap_or_else(|| {
            self.endpoints.push(name.to_owned());
            self.endpoints.len() - 1
        }))
    }

    fn endpoint_name(&self, number: EndpointNumber) -> String {
        self.endpoints.get(number.0).cloned().unwrap_or_default()
    }
}

/// Writes a packet to its receiver and counts how that went. The error is that of a device which is gone.
fn hand_over(receiver: &Port, packet: &[u8], counters: &mut LinkCounters) -> io::Result<()> {
    let size = packet.len().saturating_sub(HEADER_SIZE);
    match receiver.tun.deliver(packet) {
        Ok(()) => counters.carried.add(size),
        Err(error) => {
            counters.undeliverable.add(size);
            if means_gone(&error) {
                return Err(error);
            }
        }
    }
    Ok(())
}
