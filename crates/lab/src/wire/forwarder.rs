//! The thread that owns every TUN device and forwards the packets between them.

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
use super::link::{Link, RandomSample, Verdict};
use super::packet::destination;
use super::tun::{BUFFER_SIZE, HEADER_SIZE, Tun, is_device_gone};

/// How many packets of one port are read before the other ports and the packets that are due.
const MAX_PACKETS_PER_TURN: usize = 32;

/// A command from the owner of the wire. The response is sent when the command is in effect.
#[derive(Debug)]
pub(super) enum Command {
    Attach {
        endpoint: String,
        port: String,
        tun: Tun,
        addresses: Vec<IpAddr>,
        response: Sender<Result<(), WireError>>,
    },
    Detach {
        port: String,
        /// The device, so that the forwarder does not wait for its removal; `None` if it has vanished.
        response: Sender<Result<Option<Tun>, WireError>>,
    },
    Set {
        from: String,
        to: String,
        conditions: Conditions,
        response: Sender<Result<(), WireError>>,
    },
    Report {
        response: Sender<WireReport>,
    },
    Stop,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct EndpointId(usize);

/// Never reused, so a packet in flight to a removed port cannot be delivered to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PortId(u64);

#[derive(Debug)]
struct Port {
    name: String,
    endpoint: EndpointId,
    tun: Tun,
    unroutable: Tally,
}

/// A packet in flight, with the header of the device that it came from.
#[derive(Debug)]
struct PendingPacket {
    to: PortId,
    packet: Box<[u8]>,
}

#[derive(Debug, Default)]
struct Path {
    link: Link<PendingPacket>,
    counters: LinkCounters,
}

/// The ports that a poll reported.
struct PollResult {
    readable: Vec<PortId>,
    vanished: Vec<PortId>,
}

#[derive(Debug)]
pub(super) struct Forwarder {
    commands: Receiver<Command>,
    wake: Arc<EventFd>,
    endpoints: Vec<String>,
    ports: BTreeMap<PortId, Port>,
    next_port: PortId,
    owners: HashMap<IpAddr, PortId>,
    paths: BTreeMap<(EndpointId, EndpointId), Path>,
    vanished: Vec<VanishedPort>,
    random: SmallRng,
}

impl Forwarder {
    pub(super) fn new(commands: Receiver<Command>, wake: Arc<EventFd>, random: SmallRng) -> Self {
        Self {
            commands,
            wake,
            endpoints: Vec::new(),
            ports: BTreeMap::new(),
            next_port: PortId(0),
            owners: HashMap::new(),
            paths: BTreeMap::new(),
            vanished: Vec::new(),
            random,
        }
    }

    /// Forwards packets until a stop command, or until the owner is gone.
    pub(super) fn run(mut self) {
        // By default the kernel may wake a thread 50 µs late to save power, which adds up four times in a round trip over two
        // links.
        if let Err(errno) = prctl::set_timerslack(1) {
            tracing::warn!(%errno, "timer slack not set, delays may be 50 µs too long");
        }
        let mut buffer = vec![0; BUFFER_SIZE];
        while self.process_commands() {
            self.deliver_due();
            let polled_ports = match self.wait() {
                Ok(polled_ports) => polled_ports,
                Err(Errno::EINTR) => continue,
                Err(errno) => {
                    tracing::error!(%errno, "poll failed, wire stopped");
                    return;
                }
            };
            for port in polled_ports.readable {
                self.read_packets(port, &mut buffer);
            }
            for port in polled_ports.vanished {
                self.remove_lost_port(port, "its device is gone");
            }
        }
    }

    /// Sleeps until there is a packet, a deadline or a command.
    fn wait(&self) -> nix::Result<PollResult> {
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
            // Reading resets it. Its value does not matter.
            self.wake.read()?;
        }
        let mut polled_ports = PollResult {
            readable: Vec::new(),
            vanished: Vec::new(),
        };
        for (number, event) in self.ports.keys().zip(events) {
            if event.intersects(PollFlags::POLLERR | PollFlags::POLLHUP | PollFlags::POLLNVAL) {
                polled_ports.vanished.push(*number);
            } else if event.contains(PollFlags::POLLIN) {
                polled_ports.readable.push(*number);
            }
        }
        Ok(polled_ports)
    }

    fn read_packets(&mut self, number: PortId, buffer: &mut [u8]) {
        for _ in 0..MAX_PACKETS_PER_TURN {
            let Some(port) = self.ports.get(&number) else {
                return;
            };
            match port.tun.receive(buffer) {
                Ok(length) => self.forward(number, &buffer[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return self.remove_lost_port(number, &error.to_string()),
            }
        }
    }

    /// Delivers, queues or drops a packet from a port.
    fn forward(&mut self, from: PortId, packet: &[u8]) {
        let Some(sender) = self.ports.get_mut(&from) else {
            return;
        };
        let content = packet.get(HEADER_SIZE..).unwrap_or_default();
        let size = content.len();
        let owner = destination(content).and_then(|address| self.owners.get(&address));
        let sender_endpoint = sender.endpoint;
        let Some(&to) = owner else {
            return sender.unroutable.add(size);
        };
        let Some(receiver) = self.ports.get(&to) else {
            return;
        };
        let path = self
            .paths
            .entry((sender_endpoint, receiver.endpoint))
            .or_default();
        let sample = RandomSample {
            loss: self.random.random(),
            jitter: self.random.random(),
        };
        match path.link.admit(size, Instant::now(), sample) {
            Verdict::Deliver => {
                if let Err(vanished) = deliver(receiver, packet, &mut path.counters) {
                    self.remove_lost_port(to, &vanished.to_string());
                }
            }
            Verdict::Queue { until } => {
                let packet = packet.into();
                path.link.enqueue(until, size, PendingPacket { to, packet });
            }
            Verdict::Drop(reason) => path.counters.count_drop(reason, size),
        }
    }

    fn deliver_due(&mut self) {
        let mut vanished = Vec::new();
        let now = Instant::now();
        for path in self.paths.values_mut() {
            while let Some(pending) = path.link.release(now) {
                let Some(receiver) = self.ports.get(&pending.to) else {
                    let size = pending.packet.len().saturating_sub(HEADER_SIZE);
                    path.counters.undeliverable.add(size);
                    continue;
                };
                if let Err(error) = deliver(receiver, &pending.packet, &mut path.counters) {
                    vanished.push((pending.to, error));
                }
            }
        }
        for (number, error) in vanished {
            self.remove_lost_port(number, &error.to_string());
        }
    }

    /// Removes a port whose device has disappeared.
    fn remove_lost_port(&mut self, number: PortId, reason: &str) {
        let Some(port) = self.remove(number) else {
            return;
        };
        let endpoint = self.endpoint_name(port.endpoint);
        tracing::warn!(endpoint, port = port.name, reason, "port lost");
        self.vanished.push(VanishedPort {
            endpoint,
            port: port.name,
            reason: reason.to_owned(),
        });
    }

    fn remove(&mut self, number: PortId) -> Option<Port> {
        self.owners.retain(|_, owner| *owner != number);
        self.ports.remove(&number)
    }

    /// Executes all pending commands, and returns whether to continue.
    fn process_commands(&mut self) -> bool {
        loop {
            // Sending fails if the owner no longer waits for the response, which is no error.
            match self.commands.try_recv() {
                Ok(Command::Attach {
                    endpoint,
                    port,
                    tun,
                    addresses,
                    response,
                }) => {
                    let _ = response.send(self.attach(&endpoint, port, tun, &addresses));
                }
                Ok(Command::Detach { port, response }) => {
                    let _ = response.send(self.detach(&port));
                }
                Ok(Command::Set {
                    from,
                    to,
                    conditions,
                    response,
                }) => {
                    let _ = response.send(self.set(&from, &to, conditions));
                }
                Ok(Command::Report { response }) => {
                    let _ = response.send(self.report());
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
        let endpoint = self.endpoint_id(endpoint);
        tun.set_segmentation_offload(self.allows_segmentation_offload(endpoint))?;
        self.vanished.retain(|vanished| vanished.port != name);
        let number = self.next_port;
        self.next_port.0 += 1;
        self.owners
            .extend(addresses.iter().map(|address| (*address, number)));
        let port = Port {
            name,
            endpoint,
            tun,
            unroutable: Tally::default(),
        };
        self.ports.insert(number, port);
        Ok(())
    }

    fn detach(&mut self, name: &str) -> Result<Option<Tun>, WireError> {
        let attached = self.ports.iter().find(|(_, port)| port.name == name);
        if let Some((&number, _)) = attached {
            return Ok(self.remove(number).map(|port| port.tun));
        }
        // The namespace of a port may end before the command to detach it is processed.
        let before = self.vanished.len();
        self.vanished.retain(|vanished| vanished.port != name);
        if self.vanished.len() == before {
            return Err(WireError::UnknownPort(name.to_owned()));
        }
        Ok(None)
    }

    fn set(&mut self, from: &str, to: &str, conditions: Conditions) -> Result<(), WireError> {
        let from = self.endpoint_id(from);
        let to = self.endpoint_id(to);
        let path = self.paths.entry((from, to)).or_default();
        let dropped = path.link.set_conditions(conditions, Instant::now());
        path.counters.cut.merge(dropped);
        let segmentation_offload = self.allows_segmentation_offload(from);
        let senders = self.ports.values_mut().filter(|port| port.endpoint == from);
        for sender in senders {
            match sender.tun.set_segmentation_offload(segmentation_offload) {
                // The next poll reports that the device is gone.
                Err(WireError::Device { source, .. }) if is_device_gone(&source) => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Whether no path from this endpoint has a fault that needs single packets. A device has one setting for all of its paths.
    fn allows_segmentation_offload(&self, endpoint: EndpointId) -> bool {
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
            unroutable: port.unroutable,
        });
        WireReport {
            links: links.collect(),
            ports: ports.collect(),
            vanished: self.vanished.clone(),
        }
    }

    fn endpoint_id(&mut self, name: &str) -> EndpointId {
        let existing = self.endpoints.iter().position(|endpoint| endpoint == name);
        EndpointId(existing.unwrap_or_else(|| {
            self.endpoints.push(name.to_owned());
            self.endpoints.len() - 1
        }))
    }

    fn endpoint_name(&self, number: EndpointId) -> String {
        self.endpoints.get(number.0).cloned().unwrap_or_default()
    }
}

/// Writes a packet to its receiver and updates the counters. Fails only if the device is gone.
fn deliver(receiver: &Port, packet: &[u8], counters: &mut LinkCounters) -> io::Result<()> {
    let size = packet.len().saturating_sub(HEADER_SIZE);
    match receiver.tun.deliver(packet) {
        Ok(()) => counters.forwarded.add(size),
        Err(error) => {
            counters.undeliverable.add(size);
            if is_device_gone(&error) {
                return Err(error);
            }
        }
    }
    Ok(())
}
