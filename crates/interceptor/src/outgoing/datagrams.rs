//! Internet datagrams: calls that name a peer, or return one. A connected socket sends without interception.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::address::{Parsed, encode_internet, internet, parse};
use super::attempt::{Attempt, Purpose};
use super::calls::read_address;
use super::connection::Caller;
use super::relay::domain_of;
use super::{Datagrams, Destination, Transport, choose, transport_of};
use crate::Errno;
use crate::host::DestinationChoice;
use crate::incoming::{CopyGuard, encode_visible};
use crate::notification::Notification;
use crate::process::{PollInterval, has_signal, open_thread_or_process};
use crate::supervisor::{Decision, Supervisor};
use crate::sys::socket;
use crate::syscalls::Call;

/// Limits of the kernel: the size of a datagram, and the messages and vectors of one call.
const MAX_DATAGRAM: usize = 65_536;
const MAX_MESSAGES: u32 = 1024;
const MAX_VECTORS: usize = 1024;

/// `socket`: the kernel would choose a low descriptor number, but the filter needs a high one.
pub(super) fn create(supervisor: &Supervisor, call: Notification) {
    let first = supervisor.settings.first_datagram_descriptor;
    let network = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/net")).ok();
    let thread = call.thread().to_string();
    if network("self") != network(&thread) {
        return call.pass();
    }
    let kind = call.int(1);
    let Ok(ours) = socket::create(call.int(0), kind, call.int(2)) else {
        return call.pass();
    };
    supervisor.connections.own.add_datagrams(&ours);
    // Two threads of one process must not get the same number.
    let _guard = supervisor.connections.descriptor_lock.lock();
    let Some(number) = free_number(&thread, first) else {
        return call.pass();
    };
    let close_on_exec = kind & libc::SOCK_CLOEXEC != 0;
    // It fails beyond the open-file limit of the process; then the kernel chooses the number.
    if let Err(call) = call.respond_with_descriptor_at(&ours, number, close_on_exec) {
        call.pass();
    }
}

/// The lowest free number from `first` on. Numbers below 1024 are used first, because `select` ends there; a program
/// with more datagram sockets must use `poll` or `epoll` anyway.
fn free_number(thread: &str, first: u32) -> Option<u32> {
    let path = format!("/proc/{thread}/fd");
    let is_free = |number: &u32| std::fs::symlink_metadata(format!("{path}/{number}")).is_err();
    // Most programs have few datagram sockets.
    if let Some(number) = (first..first + 4).find(is_free) {
        return Some(number);
    }
    let used: HashSet<u32> = std::fs::read_dir(&path)
        .ok()?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    (first..=u32::MAX).find(|number| !used.contains(number))
}

/// One message of a call, by addresses in the memory of the caller.
#[derive(Debug, Clone, Default)]
struct Message {
    /// The address of the peer's address, and its length or the size of its buffer.
    name: u64,
    name_length: u32,
    /// Where the length is written, if not into a header.
    name_length_at: u64,
    vectors: Vec<(u64, usize)>,
    control_room: usize,
    control: u64,
    /// The header, and for `sendmmsg` and `recvmmsg` the address of the byte count.
    header: u64,
    count_at: u64,
}

impl Message {
    fn room(&self) -> usize {
        let lengths = self.vectors.iter().map(|(_, length)| *length);
        lengths.fold(0, usize::saturating_add).min(MAX_DATAGRAM)
    }

    fn from_header(from: &Notification, address: u64) -> Result<Self, Errno> {
        let header: libc::msghdr = from.read_plain(address)?;
        #[expect(
            clippy::unnecessary_cast,
            reason = "the types of the fields differ between C libraries"
        )]
        let (count, control_room) = (header.msg_iovlen as usize, header.msg_controllen as usize);
        if count > MAX_VECTORS {
            return Err(Errno::EMSGSIZE);
        }
        let mut vectors = Vec::with_capacity(count);
        for index in 0..count {
            let at = header.msg_iov.addr() + index * size_of::<libc::iovec>();
            let vector: libc::iovec = from.read_plain(at as u64)?;
            vectors.push((vector.iov_base.addr() as u64, vector.iov_len));
        }
        Ok(Self {
            name: header.msg_name.addr() as u64,
            name_length: header.msg_namelen,
            vectors,
            control: header.msg_control.addr() as u64,
            control_room: control_room.min(MAX_DATAGRAM),
            header: address,
            ..Self::default()
        })
    }

    /// Reads all messages of a call.
    fn read(from: &Notification, call: Call) -> Result<Vec<Self>, Errno> {
        match call {
            Call::SendTo | Call::ReceiveFrom => {
                let length = usize::try_from(from.argument(2)).unwrap_or(usize::MAX);
                let sends = call == Call::SendTo;
                Ok(vec![Self {
                    name: from.argument(4),
                    name_length: if sends { from.uint(5) } else { 0 },
                    name_length_at: if sends { 0 } else { from.argument(5) },
                    vectors: vec![(from.argument(1), length)],
                    ..Self::default()
                }])
            }
            Call::SendMessage | Call::ReceiveMessage => {
                Ok(vec![Self::from_header(from, from.argument(1))?])
            }
            _ => {
                let stride = size_of::<libc::mmsghdr>() as u64;
                let count = from.uint(2).min(MAX_MESSAGES);
                (0..u64::from(count))
                    .map(|index| {
                        let at = from.argument(1) + index * stride;
                        let mut message = Self::from_header(from, at)?;
                        message.count_at = at + size_of::<libc::msghdr>() as u64;
                        Ok(message)
                    })
                    .collect()
            }
        }
    }

    fn destination(&self, from: &Notification) -> Result<Option<SocketAddr>, Errno> {
        if self.name == 0 {
            return Ok(None);
        }
        let bytes = read_address(from, self.name, self.name_length)?;
        Ok(match parse(&bytes) {
            Parsed::To(Destination::Internet(address)) => Some(address),
            _ => None,
        })
    }
}

fn flags_of(call: Call, from: &Notification) -> i32 {
    match call {
        Call::SendMessage | Call::ReceiveMessage => from.int(2),
        _ => from.int(3),
    }
}

fn is_batch(call: Call) -> bool {
    matches!(call, Call::SendMessages | Call::ReceiveMessages)
}

pub(super) fn decide_send(
    supervisor: &Supervisor,
    call: Call,
    from: &Notification,
) -> Result<Decision, Errno> {
    let messages = Message::read(from, call)?;
    let mut destinations = Vec::with_capacity(messages.len());
    for message in &messages {
        destinations.push(message.destination(from)?);
    }
    let is_local = |address: &SocketAddr| {
        let destination = Destination::Internet(*address);
        choose(supervisor, Transport::Udp, &destination) == DestinationChoice::Local
    };
    let mut addresses = destinations.iter().flatten();
    let all_local = addresses.clone().all(is_local);
    if all_local && !supervisor.incoming.any_datagrams() {
        return Ok(Decision::Pass);
    }
    let theirs = from.copy_descriptor(from.int(0))?;
    let is_client = |address: &SocketAddr| {
        supervisor
            .incoming
            .relay_for_client(&theirs, *address)
            .is_some()
    };
    if all_local && !addresses.any(is_client) {
        return Ok(Decision::Pass);
    }
    match transport_of(&theirs) {
        Some(Transport::Udp) => {}
        // A connection and its first data in one call: programs have a fallback for this error.
        Some(Transport::Tcp) if flags_of(call, from) & libc::MSG_FASTOPEN != 0 => {
            return Ok(Decision::Complete(Err(Errno::EOPNOTSUPP)));
        }
        _ => return Ok(Decision::Pass),
    }
    Ok(Decision::defer(move |supervisor, notification| {
        let result = send_all(
            supervisor,
            call,
            &notification,
            &theirs,
            &messages,
            &destinations,
        );
        notification.finish(result);
    }))
}

/// Sends the messages in order. Like the kernel, it reports an error only if the first message fails.
fn send_all(
    supervisor: &Supervisor,
    call: Call,
    from: &Notification,
    theirs: &OwnedFd,
    messages: &[Message],
    destinations: &[Option<SocketAddr>],
) -> Result<i64, Errno> {
    let mut sent = 0;
    for (message, destination) in messages.iter().zip(destinations) {
        match send(supervisor, call, from, theirs, message, *destination) {
            Ok(length) if is_batch(call) => {
                let length = u32::try_from(length).unwrap_or_default();
                from.memory()?
                    .write(message.count_at, &length.to_ne_bytes())?;
                sent += 1;
            }
            Ok(length) => return i64::try_from(length).map_err(|_| Errno::EMSGSIZE),
            Err(_) if sent > 0 => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(sent)
}

fn send(
    supervisor: &Supervisor,
    call: Call,
    from: &Notification,
    theirs: &OwnedFd,
    message: &Message,
    destination: Option<SocketAddr>,
) -> Result<usize, Errno> {
    let mut data = Vec::with_capacity(message.room());
    for (address, length) in &message.vectors {
        if data.len().saturating_add(*length) > MAX_DATAGRAM {
            return Err(Errno::EMSGSIZE);
        }
        data.extend(from.read_bytes(*address, *length)?);
    }
    let address = match destination {
        None => Vec::new(),
        Some(destination) => {
            let domain = domain_of(theirs.as_fd())?;
            let to = relay_for(supervisor, from, theirs, destination)?.unwrap_or(destination);
            encode_internet(to, domain)
        }
    };
    socket::send(theirs.as_fd(), &data, flags_of(call, from), &address)
}

/// The address of the relay socket for a peer; `None` if the peer is local.
fn relay_for(
    supervisor: &Supervisor,
    from: &Notification,
    theirs: &OwnedFd,
    peer: SocketAddr,
) -> Result<Option<SocketAddr>, Errno> {
    if let Some(relay) = supervisor.incoming.relay_for_client(theirs, peer) {
        return Ok(Some(relay));
    }
    let destination = Destination::Internet(peer);
    match choose(supervisor, Transport::Udp, &destination) {
        DestinationChoice::Remote => {}
        DestinationChoice::Local => return Ok(None),
        DestinationChoice::Refused(errno) => return Err(errno),
    }
    let cookie = socket::cookie(theirs.as_fd())?;
    let known = |datagrams: Datagrams| {
        let mut peers = datagrams.peers.into_iter();
        peers
            .find(|known| known.address == peer)
            .map(|known| known.relay)
    };
    let connections = &supervisor.connections;
    if let Some(relay) = connections.datagrams(cookie).and_then(known) {
        return Ok(Some(relay));
    }
    let request = (Transport::Udp, destination, Purpose::AddPeer);
    let copy = theirs
        .try_clone()
        .map_err(|error| crate::notification::errno_of(&error))?;
    let attempt = Attempt::new(connections, request, copy, Caller::of(from))?;
    supervisor.host.connect(attempt.pending_connection());
    attempt.wait_for_result(|| from.is_valid())?;
    Ok(connections.datagrams(cookie).and_then(known))
}

pub(super) fn decide_receive(
    supervisor: &Supervisor,
    call: Call,
    from: &Notification,
) -> Result<Decision, Errno> {
    let theirs = from.copy_descriptor(from.int(0))?;
    let cookie = socket::cookie(theirs.as_fd())?;
    if supervisor.connections.datagrams(cookie).is_none()
        && !supervisor.incoming.receives_datagrams(cookie)
    {
        return Ok(Decision::Pass);
    }
    Ok(Decision::defer(move |supervisor, notification| {
        receive_all(supervisor, call, notification, theirs, cookie);
    }))
}

/// How long a receiving call waits.
struct WaitPolicy {
    waits: bool,
    deadline: Option<Instant>,
    restartable: bool,
}

impl WaitPolicy {
    fn new(theirs: &OwnedFd, flags: i32) -> Self {
        let timeout = socket::timeout(theirs.as_fd(), libc::SO_RCVTIMEO);
        let waits = flags & libc::MSG_DONTWAIT == 0 && !socket::is_nonblocking(theirs.as_fd());
        Self {
            waits,
            deadline: timeout.map(|timeout: Duration| Instant::now() + timeout),
            restartable: timeout.is_none(),
        }
    }
}

/// Our copy of a socket. It is closed before its guard is released.
struct SocketCopy<'a> {
    socket: OwnedFd,
    _guard: CopyGuard<'a>,
}

fn receive_all(
    supervisor: &Supervisor,
    call: Call,
    from: Notification,
    theirs: OwnedFd,
    cookie: u64,
) {
    let flags = flags_of(call, &from);
    let policy = WaitPolicy::new(&theirs, flags);
    // Our copy of the socket is closed immediately when the caller ends: its port may be needed.
    let caller = open_thread_or_process(from.thread()).ok();
    let guard = supervisor.incoming.socket_copies().register(&from);
    let theirs = SocketCopy {
        socket: theirs,
        _guard: guard,
    };
    let theirs = &theirs.socket;
    let messages = match Message::read(&from, call) {
        Ok(messages) => messages,
        Err(errno) => return from.fail(errno),
    };
    let mut received = 0;
    let mut poll_interval = PollInterval::new();
    for message in &messages {
        loop {
            // A caller that was interrupted or killed gets no message: it is left for the next call.
            if !from.is_valid() {
                return;
            }
            let known = supervisor.connections.datagrams(cookie).unwrap_or_default();
            match receive(supervisor, call, &from, theirs, message, &known) {
                Ok(_) if is_batch(call) => break,
                Ok(length) => return from.succeed(length),
                Err(_) if received > 0 => return from.succeed(received),
                Err(Errno::EAGAIN) if policy.waits => {}
                Err(errno) => return from.fail(errno),
            }
            if policy
                .deadline
                .is_some_and(|deadline| Instant::now() >= deadline)
            {
                return from.fail(Errno::EAGAIN);
            }
            if has_signal(from.thread()) {
                if policy.restartable {
                    from.restart();
                } else {
                    from.fail(Errno::EINTR);
                }
                return;
            }
            let descriptors = [Some(theirs), caller.as_ref()].into_iter().flatten();
            let mut waiting: Vec<_> = descriptors
                .map(|descriptor| PollFd::new(descriptor.as_fd(), PollFlags::POLLIN))
                .collect();
            let timeout =
                PollTimeout::try_from(poll_interval.next_delay()).unwrap_or(PollTimeout::ZERO);
            let _ = poll(&mut waiting, timeout);
        }
        received += 1;
    }
    from.succeed(received);
}

/// Receives one message into the memory of the caller, with the peer address that the application uses.
fn receive(
    supervisor: &Supervisor,
    call: Call,
    from: &Notification,
    theirs: &OwnedFd,
    message: &Message,
    known: &Datagrams,
) -> Result<i64, Errno> {
    let mut data = vec![0; message.room()];
    let flags = flags_of(call, from) & !libc::MSG_WAITFORONE;
    let got = socket::receive(theirs.as_fd(), &mut data, message.control_room, flags)?;
    let memory = from.memory()?;
    let mut rest = data.get(..got.length.min(data.len())).unwrap_or_default();
    for (address, length) in &message.vectors {
        let (now, later) = rest.split_at(rest.len().min(*length));
        memory.write(*address, now)?;
        rest = later;
    }
    let sender = internet(&got.address).and_then(|address| {
        let mut peers = known.peers.iter();
        let peer = peers.find(|peer| peer.relay == address);
        peer.map(|peer| peer.address)
            .or_else(|| supervisor.incoming.client_behind(address))
    });
    let domain = domain_of(theirs.as_fd())?;
    let name = sender
        .and_then(|sender| encode_visible(sender, domain))
        .unwrap_or(got.address);
    if message.name_length_at != 0 {
        super::calls::write_address(from, message.name, message.name_length_at, &name)?;
    }
    if message.header != 0 {
        write_header(from, message, &name, &got.control, got.flags)?;
    }
    let length = u32::try_from(got.length).map_err(|_| Errno::EMSGSIZE)?;
    if message.count_at != 0 {
        memory.write(message.count_at, &length.to_ne_bytes())?;
    }
    Ok(i64::from(length))
}

/// Writes address, control data and flags of a `msghdr`.
fn write_header(
    from: &Notification,
    message: &Message,
    name: &[u8],
    control: &[u8],
    flags: i32,
) -> Result<(), Errno> {
    let mut header: libc::msghdr = from.read_plain(message.header)?;
    let memory = from.memory()?;
    if message.name != 0 {
        let room = (message.name_length as usize).min(name.len());
        memory.write(message.name, name.get(..room).unwrap_or_default())?;
        header.msg_namelen = u32::try_from(name.len()).unwrap_or_default();
    }
    if message.control != 0 {
        memory.write(message.control, control)?;
    }
    header.msg_controllen = control.len() as _;
    header.msg_flags = flags & !libc::MSG_DONTWAIT;
    memory.write(message.header, crate::sys::memory::bytes_of(&header))
}
