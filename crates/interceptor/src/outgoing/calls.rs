//! Calls about connections: which of them we handle, and their results.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::address::{Parsed, encode_internet, encode_unix, parse};
use super::attempt::{Attempt, Purpose};
use super::connection::Caller;
use super::relay::domain_of;
use super::{
    ConnectionEnds, Destination, SocketState, Transport, choose, datagrams, transport_of, unix,
};
use crate::Errno;
use crate::host::DestinationChoice;
use crate::notification::Notification;
use crate::supervisor::{Decision, Supervisor};
use crate::sys::socket::{self, MAX_ADDRESS_LENGTH};
use crate::syscalls::Call;

/// Decides how to handle a call, as far as that is possible without blocking.
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
        Call::Socket => Ok(Decision::defer(datagrams::create)),
        Call::GetPeerName if any || any_incoming => {
            decide_address(supervisor, notification, ConnectionEnd::Peer)
        }
        Call::GetSocketName if any || any_incoming => {
            decide_address(supervisor, notification, ConnectionEnd::Local)
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

/// Reads a socket address from the memory of the caller.
pub(crate) fn read_address(
    from: &Notification,
    address: u64,
    length: u32,
) -> Result<Vec<u8>, Errno> {
    let length = (length as usize).min(MAX_ADDRESS_LENGTH);
    from.read_bytes(address, length)
}

fn decide_connect(supervisor: &Supervisor, from: &Notification) -> Result<Decision, Errno> {
    let bytes = read_address(from, from.argument(1), from.uint(2))?;
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
        // A datagram socket gets another port, so the relay sockets of its peers no longer reach it.
        supervisor.connections.forget(cookie);
        return Ok(match attempt {
            Some(attempt) => Decision::defer(move |_, call| {
                attempt.cancel();
                call.pass();
            }),
            None => Decision::Pass,
        });
    };
    if let Some(decision) = decide_reconnect(supervisor, cookie, transport, &theirs) {
        return Ok(decision);
    }
    let (destination, detached) = unix::resolve_destination(supervisor, from, destination);
    if let Some(local) = local_address_of(supervisor, transport, &destination, &theirs) {
        supervisor.connections.disconnect(cookie);
        return Ok(Decision::defer(move |_, call| {
            let connected = domain_of(theirs.as_fd()).and_then(|domain| {
                socket::connect(theirs.as_fd(), &encode_internet(local, domain))
            });
            call.finish(connected.map(|()| 0));
        }));
    }
    match choose(supervisor, transport, &destination) {
        DestinationChoice::Remote => {}
        DestinationChoice::Local => {
            supervisor.connections.disconnect(cookie);
            return Ok(match destination {
                // The kernel would resolve the path against another working directory.
                Destination::Unix(path) if detached => Decision::defer(move |_, call| {
                    let connected = socket::connect(theirs.as_fd(), &encode_unix(&path));
                    call.finish(connected.map(|()| 0));
                }),
                _ => Decision::Pass,
            });
        }
        DestinationChoice::Refused(errno) => return Ok(Decision::Complete(Err(errno))),
    }
    let request = (transport, destination, Purpose::Connect);
    let attempt = Attempt::new(&supervisor.connections, request, theirs, Caller::of(from))?;
    if transport != Transport::Udp {
        // Recorded before the next call is received: where signals interrupt calls, the same caller may call again at
        // any moment.
        let connecting = SocketState::Connecting(Arc::clone(&attempt));
        supervisor.connections.set(cookie, connecting);
    }
    let (nonblocking, timeout) = attempt.blocking_mode();
    let is_simple = transport != Transport::Udp && !nonblocking && supervisor.restarts.is_none();
    Ok(if is_simple {
        Decision::start(move |supervisor, call| {
            start_blocking_connect(supervisor, &attempt, call, timeout);
        })
    } else {
        Decision::defer(move |supervisor, call| connect(supervisor, &attempt, transport, call))
    })
}

/// Starts a blocking `connect`: the host is called immediately, and the thread that completes the attempt completes the
/// call. A worker prepares the local connection meanwhile, and watches for signals and the timeout.
fn start_blocking_connect(
    supervisor: &Supervisor,
    attempt: &Arc<Attempt>,
    call: Notification,
    timeout: Option<Duration>,
) {
    let deadline = timeout.map(|timeout| Instant::now() + timeout);
    let thread = call.thread();
    attempt.set_waiting_call(call);
    supervisor.host.connect(attempt.pending_connection());
    let attempt = Arc::clone(attempt);
    supervisor.workers.run(move || {
        attempt.prepare_listener();
        attempt.watch_caller(thread, deadline);
    });
}

/// The local address for a destination that has another address for the application: a client whose datagrams this
/// socket receives, or the application's own listener.
fn local_address_of(
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
        Transport::Udp => supervisor.incoming.relay_for_client(theirs, *address),
        Transport::Tcp => {
            let local = supervisor.incoming.actual_address(transport, *address)?;
            let is_listening = supervisor.connections.has_own(transport, local);
            is_listening.then_some(local)
        }
    }
}

/// Handles `connect` on a stream that is already connected or connecting.
fn decide_reconnect(
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
        SocketState::Connecting(attempt) if waits => {
            let attempt = Arc::clone(attempt);
            Some(Decision::defer(move |_, call| attempt.wait(call, timeout)))
        }
        SocketState::Connecting(_) => Some(Decision::Complete(Err(Errno::EALREADY))),
        SocketState::Connected { reported, .. } if !*reported && transport == Transport::Tcp => {
            *reported = true;
            Some(Decision::Complete(Ok(0)))
        }
        // The kernel knows that it is connected, and returns that error.
        SocketState::Connected { .. } => Some(Decision::Pass),
        SocketState::Failed(errno, attempt) => {
            failed = Some(Arc::clone(attempt));
            Some(Decision::Complete(Err(*errno)))
        }
        SocketState::Datagrams(_) => None,
    })??;
    // A failure is reported once; then the socket can be used again.
    if let Some(attempt) = failed {
        attempt.wait_until_refused();
        supervisor.connections.forget(cookie);
        let _ = socket::option(theirs.as_fd(), libc::SOL_SOCKET, libc::SO_ERROR);
    }
    Some(decision)
}

/// Calls the host. The call is completed with the result, or immediately if the socket is nonblocking.
fn connect(
    supervisor: &Supervisor,
    attempt: &Arc<Attempt>,
    transport: Transport,
    call: Notification,
) {
    let (nonblocking, timeout) = attempt.blocking_mode();
    if transport == Transport::Tcp && nonblocking {
        match attempt.detach() {
            Ok(()) => call.fail(Errno::EINPROGRESS),
            Err(errno) => {
                supervisor.connections.forget(attempt.cookie());
                return call.fail(errno);
            }
        }
        return supervisor.host.connect(attempt.pending_connection());
    }
    // Where signals interrupt calls, the caller may call again before we notice the interruption.
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
    supervisor.host.connect(attempt.pending_connection());
    attempt.wait(call, timeout);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionEnd {
    Local,
    Peer,
}

fn decide_address(
    supervisor: &Supervisor,
    from: &Notification,
    end: ConnectionEnd,
) -> Result<Decision, Errno> {
    let theirs = from.copy_descriptor(from.int(0))?;
    let cookie = socket::cookie(theirs.as_fd())?;
    let known = supervisor.connections.with(cookie, |socket| match socket {
        SocketState::Connecting(_) | SocketState::Failed(..) => Err(Errno::ENOTCONN),
        SocketState::Connected { ends, .. } => Ok(Some(ends.clone())),
        SocketState::Datagrams(datagrams) => Ok(datagrams.connected.clone()),
    });
    let ends: ConnectionEnds = match (known, end) {
        (Some(Ok(Some(ends))), _) => ends,
        (Some(Err(errno)), ConnectionEnd::Peer) => return Ok(Decision::Complete(Err(errno))),
        _ => {
            let Some(bytes) = supervisor.incoming.visible_address(&theirs, cookie, end) else {
                return Ok(Decision::Pass);
            };
            let written = write_address(from, from.argument(1), from.argument(2), &bytes);
            return Ok(Decision::Complete(written.map(|()| 0)));
        }
    };
    let domain = domain_of(theirs.as_fd())?;
    let bytes = match (end, ends.local, ends.peer) {
        (ConnectionEnd::Local, Some(local), _) => encode_internet(local, domain),
        (ConnectionEnd::Local, None, _) => return Ok(Decision::Pass),
        (ConnectionEnd::Peer, _, Destination::Internet(peer)) => encode_internet(peer, domain),
        (ConnectionEnd::Peer, _, Destination::Unix(path)) => encode_unix(&path),
    };
    let written = write_address(from, from.argument(1), from.argument(2), &bytes);
    Ok(Decision::Complete(written.map(|()| 0)))
}

/// Writes an address like the kernel: truncated to the buffer, with its full length.
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
        SocketState::Failed(errno, attempt) => Some((*errno, Arc::clone(attempt))),
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
    // Reported once, like the kernel does; the kernel's own error is cleared with it.
    supervisor.connections.forget(cookie);
    let _ = socket::option(theirs.as_fd(), libc::SOL_SOCKET, libc::SO_ERROR);
    Ok(Decision::Complete(written.map(|()| 0)))
}
