//! The calls about connections: which are ours, and their answers.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::address::{Parsed, encode_internet, encode_unix, parse};
use super::attempt::{Attempt, Caller, Purpose};
use super::relay::domain_of;
use super::{Destination, Ends, Socket, Transport, choose, datagrams, transport_of, unix};
use crate::Errno;
use crate::host::DestinationChoice;
use crate::notification::Notification;
use crate::supervisor::{Decision, Supervisor};
use crate::sys::socket::{self, ADDRESS_ROOM};
use crate::syscalls::Call;

/// Decides what can be decided without waiting.
pub(crate) fn decide(
    supervisor: &Supervisor,
    call: Call,
    notification: &Notification,
) -> Result<Decision, Errno> {
    let any = supervisor.connections.any.load(Ordering::Relaxed);
    let any_datagrams = supervisor.connections.any_datagrams.load(Ordering::Relaxed)
        || supervisor.incoming.any_datagrams();
    let any_incoming = supervisor.incoming.any();
    match call {
        Call::Connect => decide_connect(supervisor, notification),
        Call::Socket => Ok(Decision::later(datagrams::create)),
        Call::GetPeerName if any || any_incoming => {
            decide_name(supervisor, notification, End::Peer)
        }
        Call::GetSocketName if any || any_incoming => {
            decide_name(supervisor, notification, End::Local)
        }
        Call::GetSocketOption if any => decide_error(supervisor, notification),
        Call::SendTo | Call::SendMessage | Call::SendMessages => {
            datagrams::decide_send(supervisor, call, notification)
        }
        Call::ReceiveFrom | Call::ReceiveMessage | Call::ReceiveMessages if any_datagrams => {
            datagrams::decide_receive(supervisor, call, notification)
        }
        _ => Ok(Decision::Pass),
    }
}

/// Reads an address of the caller's memory.
pub(crate) fn read_address(
    from: &Notification,
    address: u64,
    length: u32,
) -> Result<Vec<u8>, Errno> {
    let length = (length as usize).min(ADDRESS_ROOM);
    from.read_bytes(address, length)
}

fn decide_connect(supervisor: &Supervisor, from: &Notification) -> Result<Decision, Errno> {
    let bytes = read_address(from, from.argument(1), from.word(2))?;
    let parsed = parse(&bytes);
    if parsed == Parsed::Other {
        return Ok(Decision::Pass);
    }
    let theirs = from.copy_descriptor(from.int(0))?;
    let Some(transport) = transport_of(&theirs) else {
        return Ok(Decision::Pass);
    };
    let cookie = socket::cookie(theirs.as_fd())?;
    let Parsed::To(destination) = parsed else {
        let attempt = supervisor.connections.disconnect(cookie);
        // A datagram socket gets another port, so those that stand for its peers no longer reach it.
        supervisor.connections.forget(cookie);
        return Ok(match attempt {
            Some(attempt) => Decision::later(move |_, call| {
                attempt.cancel();
                call.pass();
            }),
            None => Decision::Pass,
        });
    };
    if let Some(decision) = decide_again(supervisor, cookie, transport, &theirs) {
        return Ok(decision);
    }
    let (destination, detached) = unix::located(supervisor, from, destination);
    if let Some(place) = place_here(supervisor, transport, &destination, &theirs) {
        supervisor.connections.disconnect(cookie);
        return Ok(Decision::later(move |_, call| {
            let connected = domain_of(theirs.as_fd()).and_then(|domain| {
                socket::connect(theirs.as_fd(), &encode_internet(place, domain))
            });
            call.finish(connected.map(|()| 0));
        }));
    }
    match choose(supervisor, transport, &destination) {
        DestinationChoice::Remote => {}
        DestinationChoice::Local => {
            supervisor.connections.disconnect(cookie);
            return Ok(match destination {
                // The kernel would look for it where the caller is not.
                Destination::Unix(path) if detached => Decision::later(move |_, call| {
                    let connected = socket::connect(theirs.as_fd(), &encode_unix(&path));
                    call.finish(connected.map(|()| 0));
                }),
                _ => Decision::Pass,
            });
        }
        DestinationChoice::Refused(errno) => return Ok(Decision::Answer(Err(errno))),
    }
    let wanted = (transport, destination, Purpose::Connect);
    let attempt = Attempt::new(&supervisor.connections, wanted, theirs, Caller::of(from))?;
    if transport != Transport::Udp {
        // Before the next call is received: where signals do not wait, the same caller may be back any moment.
        let connecting = Socket::Connecting(Arc::clone(&attempt));
        supervisor.connections.set(cookie, connecting);
    }
    let (nonblocking, timeout) = attempt.manner();
    let is_simple = transport != Transport::Udp && !nonblocking && supervisor.restarts.is_none();
    Ok(if is_simple {
        Decision::begin(move |supervisor, call| begin(supervisor, &attempt, call, timeout))
    } else {
        Decision::later(move |supervisor, call| connect(supervisor, &attempt, transport, call))
    })
}

/// `connect` that waits: the host is asked without delay, and who completes the attempt answers the call. A worker
/// prepares what will be needed then, and looks for signals and the end of the time.
fn begin(
    supervisor: &Supervisor,
    attempt: &Arc<Attempt>,
    call: Notification,
    timeout: Option<Duration>,
) {
    let deadline = timeout.map(|timeout| Instant::now() + timeout);
    let thread = call.thread();
    attempt.expect(call);
    supervisor.host.connect(attempt.outgoing());
    let attempt = Arc::clone(attempt);
    supervisor.workers.run(move || {
        attempt.prepare();
        attempt.watch(thread, deadline);
    });
}

/// Where on this machine a destination is that the application knows by another name: a client whose datagrams come to
/// this socket, or its own listener.
fn place_here(
    supervisor: &Supervisor,
    transport: Transport,
    destination: &Destination,
    theirs: &OwnedFd,
) -> Option<SocketAddr> {
    let Destination::Internet(address) = destination else {
        return None;
    };
    match transport {
        Transport::Unix | Transport::UnixPackets => None,
        Transport::Udp => supervisor.incoming.relay(theirs, *address),
        Transport::Tcp => {
            let place = supervisor.incoming.moved(transport, *address)?;
            let is_there = supervisor.connections.has_own(transport, place);
            is_there.then_some(place)
        }
    }
}

/// `connect` on a stream that was connected, or is connecting, already.
fn decide_again(
    supervisor: &Supervisor,
    cookie: u64,
    transport: Transport,
    theirs: &OwnedFd,
) -> Option<Decision> {
    let is_unix = matches!(transport, Transport::Unix | Transport::UnixPackets);
    let waits = is_unix || !socket::is_nonblocking(theirs.as_fd());
    let timeout = socket::timeout(theirs.as_fd(), libc::SO_SNDTIMEO);
    let mut failed = None;
    let decision = supervisor.connections.with(cookie, |known| match known {
        Socket::Connecting(attempt) if waits => {
            let attempt = Arc::clone(attempt);
            Some(Decision::later(move |_, call| attempt.wait(call, timeout)))
        }
        Socket::Connecting(_) => Some(Decision::Answer(Err(Errno::EALREADY))),
        Socket::Connected { told, .. } if !*told && transport == Transport::Tcp => {
            *told = true;
            Some(Decision::Answer(Ok(0)))
        }
        // The kernel knows that it is connected, and says so.
        Socket::Connected { .. } => Some(Decision::Pass),
        Socket::Failed(errno, attempt) => {
            failed = Some(Arc::clone(attempt));
            Some(Decision::Answer(Err(*errno)))
        }
        Socket::Datagrams(_) => None,
    })??;
    // A failure is told once; then the socket can be used again.
    if let Some(attempt) = failed {
        attempt.wait_until_refused();
        supervisor.connections.forget(cookie);
        let _ = socket::option(theirs.as_fd(), libc::SOL_SOCKET, libc::SO_ERROR);
    }
    Some(decision)
}

/// Asks the host. The call is answered when it has, or at once if its socket does not wait.
fn connect(
    supervisor: &Supervisor,
    attempt: &Arc<Attempt>,
    transport: Transport,
    call: Notification,
) {
    let (nonblocking, timeout) = attempt.manner();
    if transport == Transport::Tcp && nonblocking {
        match attempt.detach() {
            Ok(()) => call.fail(Errno::EINPROGRESS),
            Err(errno) => {
                supervisor.connections.forget(attempt.cookie());
                return call.fail(errno);
            }
        }
        return supervisor.host.connect(attempt.outgoing());
    }
    // Where signals do not wait, the caller may be back before we see it go.
    if transport == Transport::Tcp
        && supervisor.restarts.is_some()
        && let Err(errno) = attempt.detach()
    {
        supervisor.connections.forget(attempt.cookie());
        return call.fail(errno);
    }
    if transport == Transport::Udp
        && let Some(connected) = attempt.connect_to_peer()
    {
        return call.finish(connected.map(|()| 0));
    }
    supervisor.host.connect(attempt.outgoing());
    attempt.wait(call, timeout);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Local,
    Peer,
}

fn decide_name(supervisor: &Supervisor, from: &Notification, end: End) -> Result<Decision, Errno> {
    let theirs = from.copy_descriptor(from.int(0))?;
    let cookie = socket::cookie(theirs.as_fd())?;
    let known = supervisor.connections.with(cookie, |socket| match socket {
        Socket::Connecting(_) | Socket::Failed(..) => Err(Errno::ENOTCONN),
        Socket::Connected { ends, .. } => Ok(Some(ends.clone())),
        Socket::Datagrams(datagrams) => Ok(datagrams.connected.clone()),
    });
    let ends: Ends = match (known, end) {
        (Some(Ok(Some(ends))), _) => ends,
        (Some(Err(errno)), End::Peer) => return Ok(Decision::Answer(Err(errno))),
        _ => {
            let Some(bytes) = supervisor.incoming.name(&theirs, cookie, end) else {
                return Ok(Decision::Pass);
            };
            let written = write_address(from, from.argument(1), from.argument(2), &bytes);
            return Ok(Decision::Answer(written.map(|()| 0)));
        }
    };
    let domain = domain_of(theirs.as_fd())?;
    let bytes = match (end, ends.local, ends.peer) {
        (End::Local, Some(local), _) => encode_internet(local, domain),
        (End::Local, None, _) => return Ok(Decision::Pass),
        (End::Peer, _, Destination::Internet(peer)) => encode_internet(peer, domain),
        (End::Peer, _, Destination::Unix(path)) => encode_unix(&path),
    };
    let written = write_address(from, from.argument(1), from.argument(2), &bytes);
    Ok(Decision::Answer(written.map(|()| 0)))
}

/// Writes an address as the kernel does: cut to the room, and the length that it really has.
pub(crate) fn write_address(
    from: &Notification,
    address: u64,
    length_address: u64,
    bytes: &[u8],
) -> Result<(), Errno> {
    let room: i32 = from.read_plain(length_address)?;
    let room = usize::try_from(room).map_err(|_| Errno::EINVAL)?;
    let cut = bytes.get(..room.min(bytes.len())).unwrap_or_default();
    let length = u32::try_from(bytes.len()).map_err(|_| Errno::EINVAL)?;
    let memory = from.memory()?;
    memory.write(address, cut)?;
    memory.write(length_address, &length.to_ne_bytes())
}

/// `SO_ERROR` of a connection that failed while the application did not wait.
fn decide_error(supervisor: &Supervisor, from: &Notification) -> Result<Decision, Errno> {
    let theirs = from.copy_descriptor(from.int(0))?;
    let cookie = socket::cookie(theirs.as_fd())?;
    let failed = supervisor.connections.with(cookie, |socket| match socket {
        Socket::Failed(errno, attempt) => Some((*errno, Arc::clone(attempt))),
        _ => None,
    });
    let Some(Some((errno, attempt))) = failed else {
        return Ok(Decision::Pass);
    };
    attempt.wait_until_refused();
    let written = write_address(
        from,
        from.argument(3),
        from.argument(4),
        &(errno as i32).to_ne_bytes(),
    );
    // Told once, as the kernel does, and its own error with it.
    supervisor.connections.forget(cookie);
    let _ = socket::option(theirs.as_fd(), libc::SOL_SOCKET, libc::SO_ERROR);
    Ok(Decision::Answer(written.map(|()| 0)))
}
