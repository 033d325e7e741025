//! `bind` and `listen`: chooses the sockets that receive the target's traffic, and subscribes them at the host.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::port_bindings::BindOutcome;
use super::{Listener, ListenerSocket, PendingListener};
use crate::Errno;
use crate::host::{ListenerChoice, Notice};
use crate::notification::Notification;
use crate::outgoing::{Transport, internet, read_address, transport_of};
use crate::supervisor::{Decision, Supervisor};
use crate::sys::socket;

pub(super) fn decide_bind(supervisor: &Supervisor, from: &Notification) -> Result<Decision, Errno> {
    let bytes = read_address(from, from.argument(1), from.uint(2))?;
    let Some(address) = internet(&bytes).filter(|address| address.port() != 0) else {
        crate::outgoing::report_unix_bind(supervisor, from, &bytes);
        return Ok(Decision::Pass);
    };
    let theirs = from.copy_descriptor(from.int(0))?;
    let Some(transport @ (Transport::Tcp | Transport::Udp)) = transport_of(&theirs) else {
        return Ok(Decision::Pass);
    };
    let choice = supervisor.host.choose_listener(transport, address);
    if choice == ListenerChoice::Local || !is_in_our_network(&theirs) {
        return Ok(Decision::Pass);
    }
    Ok(Decision::defer(move |supervisor, call| {
        match bind(supervisor, transport, &theirs, &bytes) {
            Ok(()) if transport == Transport::Udp => {
                supervisor.connections.add_own_datagrams(&theirs);
                subscribe(supervisor, transport, theirs, call);
            }
            result => {
                // Our copy is closed first, because the caller may close its own immediately.
                drop(theirs);
                call.finish(result.map(|()| 0));
            }
        }
    }))
}

fn bind(
    supervisor: &Supervisor,
    transport: Transport,
    theirs: &OwnedFd,
    bytes: &[u8],
) -> Result<(), Errno> {
    let is_own = |address| supervisor.connections.has_own(transport, address);
    let incoming = &supervisor.incoming;
    let choose_port = |address| supervisor.host.choose_port(transport, address);
    let try_bind = || {
        let bindings = &incoming.bindings;
        bindings.bind(theirs, transport, bytes, choose_port, is_own)
    };
    let bound = match try_bind() {
        Err(Errno::EADDRINUSE) if incoming.socket_copies.wait_for_stale_copies() => try_bind(),
        result => result,
    }?;
    if bound != BindOutcome::AsRequested {
        incoming.any.store(true, Ordering::Relaxed);
    }
    if let (BindOutcome::Moved(actual), Some(requested)) = (bound, internet(bytes)) {
        supervisor.host.notice(&Notice::PortMoved {
            transport,
            requested,
            actual,
        });
    }
    Ok(())
}

pub(super) fn decide_listen(
    supervisor: &Supervisor,
    from: &Notification,
) -> Result<Decision, Errno> {
    let theirs = from.copy_descriptor(from.int(0))?;
    if transport_of(&theirs) != Some(Transport::Tcp) {
        return Ok(Decision::Pass);
    }
    supervisor.connections.add_own_listener(&theirs);
    if !supervisor.settings.incoming || !is_in_our_network(&theirs) {
        return Ok(Decision::Pass);
    }
    let cookie = socket::cookie(theirs.as_fd())?;
    let listens = socket::option(theirs.as_fd(), libc::SOL_SOCKET, libc::SO_ACCEPTCONN)?;
    if listens != 0 && supervisor.incoming.get(cookie).is_some() {
        // Only the length of its queue changes.
        return Ok(Decision::Pass);
    }
    let bound = internet(&socket::local_address(theirs.as_fd())?).ok_or(Errno::EAFNOSUPPORT)?;
    let address = supervisor
        .incoming
        .bindings
        .visible_address(cookie)
        .unwrap_or(bound);
    // The kernel may choose the port only in `listen`.
    let is_known = address.port() != 0;
    if is_known && supervisor.host.choose_listener(Transport::Tcp, address) == ListenerChoice::Local
    {
        return Ok(Decision::Pass);
    }
    Ok(Decision::defer(move |supervisor, call| {
        // This comes first, so that there is a queue before there is traffic.
        if let Err(errno) = socket::listen(theirs.as_fd(), call.int(1)) {
            return call.fail(errno);
        }
        // The port may have been chosen only now.
        supervisor.connections.add_own_listener(&theirs);
        subscribe(supervisor, Transport::Tcp, theirs, call);
    }))
}

/// Subscribes to the target's traffic. The host completes the call.
fn subscribe(supervisor: &Supervisor, transport: Transport, theirs: OwnedFd, call: Notification) {
    let incoming = &supervisor.incoming;
    let created = socket::cookie(theirs.as_fd()).and_then(|cookie| {
        let bound = socket::local_address(theirs.as_fd())?;
        let bound = internet(&bound).ok_or(Errno::EAFNOSUPPORT)?;
        let visible = incoming.bindings.visible_address(cookie).unwrap_or(bound);
        ListenerSocket::new(&theirs, transport, visible)
    });
    let socket = match created {
        Ok(socket) => Arc::new(socket),
        Err(errno) => return call.fail(errno),
    };
    let choice = supervisor.host.choose_listener(transport, socket.address);
    if choice == ListenerChoice::Local {
        drop(theirs);
        return call.succeed(0);
    }
    incoming.add(&socket);
    let listener = Listener {
        socket,
        incoming: Arc::clone(incoming),
        connections: Arc::clone(&supervisor.connections),
    };
    supervisor.host.listen(PendingListener {
        listener,
        call: Some(call),
        theirs: Some(theirs),
    });
}

/// Whether a socket is in our network namespace: we cannot reach others.
fn is_in_our_network(theirs: &OwnedFd) -> bool {
    let network = |socket: &OwnedFd| socket::network_cookie(socket.as_fd()).ok();
    let ours = socket::create(libc::AF_INET, libc::SOCK_DGRAM, 0);
    ours.is_ok_and(|ours| network(&ours) == network(theirs))
}
