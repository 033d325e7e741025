//! The local part of a connection: the application's own socket, connected to one of ours.
//!
//! A connection whose remote side is not established yet must not look connected. A blocking `connect` is simply not
//! completed. For a nonblocking one, the application's socket is connected to ours and filled until it is not writable,
//! which is how a connecting socket looks. When the remote side is established, we read exactly the filler data; when
//! it fails, we reset the connection.
//!
//! The receive buffer must be small, or the filler takes megabytes; but a socket that starts with a locked small buffer
//! never gets a large window. So the listener's buffer is small and unlocked, which determines the window scale of the
//! connection, and the accepted socket's buffer is locked until the filler is read. Afterwards both are returned to the
//! kernel's auto-tuning, or the application's own value is restored.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::address::{encode_internet, internet};
use crate::Errno;
use crate::sys::socket;

/// `SO_BUF_LOCK`, since Linux 5.16: which buffer sizes were set explicitly and are not auto-tuned.
const SO_BUF_LOCK: i32 = 72;
const SEND_LOCKED: i32 = 1;
const SMALL_BUFFER: i32 = 4096;
const DEFAULT_BUFFER: i32 = 65_536;
/// The timeout for events within this machine.
const LOCAL_TIMEOUT_MILLISECONDS: u16 = 10_000;

/// Our end of a local connection.
#[derive(Debug)]
pub(super) struct Relay {
    pub(super) ours: OwnedFd,
    filled: usize,
    /// The original send buffer of the application's socket, and whether the application set it explicitly.
    send_buffer: i32,
    send_locked: bool,
}

/// How the application's socket looks until the remote side is established.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InitialState {
    Connected,
    /// Not writable.
    Connecting,
}

pub(crate) fn domain_of(socket: BorrowedFd<'_>) -> Result<i32, Errno> {
    socket::option(socket, libc::SOL_SOCKET, libc::SO_DOMAIN)
}

/// Unbinds the application's socket from a network device of this machine. The connection leaves from the target, and
/// through such a device the socket would never reach ours.
///
/// # Errors
/// When we lack the permission: the kernel requires `CAP_NET_RAW`.
pub(super) fn release_from_device(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    const SO_BINDTOIFINDEX: i32 = 62;
    const NONE: i32 = 0;
    /// The same in every network namespace.
    const LOOPBACK: i32 = 1;
    match socket::option(socket, libc::SOL_SOCKET, SO_BINDTOIFINDEX) {
        Err(_) | Ok(NONE | LOOPBACK) => Ok(()),
        Ok(device) => {
            let released = socket::set_option(socket, libc::SOL_SOCKET, SO_BINDTOIFINDEX, NONE);
            released.map_err(|errno| {
                tracing::warn!(%errno, device, "cannot unbind socket from network device");
                Errno::ENETUNREACH
            })
        }
    }
}

impl Relay {
    /// Connects the application's socket to ours.
    pub(super) fn connect(
        theirs: &OwnedFd,
        destination: Option<SocketAddr>,
        state: InitialState,
    ) -> Result<Self, Errno> {
        let listener = RelayListener::open(SocketKind::of(theirs)?, destination, state)?;
        Self::connect_through(theirs, listener, state)
    }

    /// Like [`connect`](Self::connect), with a listener that was opened in advance.
    pub(super) fn connect_through(
        theirs: &OwnedFd,
        RelayListener {
            kind: SocketKind { domain, .. },
            listener,
            address,
        }: RelayListener,
        state: InitialState,
    ) -> Result<Self, Errno> {
        let send_buffer = socket::option(theirs.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF)?;
        let locked = socket::option(theirs.as_fd(), libc::SOL_SOCKET, SO_BUF_LOCK).unwrap_or(0);
        let send_locked = locked & SEND_LOCKED != 0;
        if state == InitialState::Connecting {
            socket::set_option(theirs.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, 1)?;
        }
        let made = Self::connect_to(theirs, domain, &listener, &address).and_then(|ours| {
            let mut relay = Self {
                ours,
                filled: 0,
                send_buffer,
                send_locked,
            };
            if state == InitialState::Connecting {
                relay.fill(theirs)?;
            }
            Ok(relay)
        });
        if made.is_err() && state == InitialState::Connecting {
            restore_send_buffer(theirs, send_buffer, send_locked);
        }
        made
    }

    /// Returns our end.
    fn connect_to(
        theirs: &OwnedFd,
        domain: i32,
        listener: &OwnedFd,
        address: &[u8],
    ) -> Result<OwnedFd, Errno> {
        if domain != libc::AF_UNIX {
            // Otherwise nothing is sent until the application writes.
            let option = libc::TCP_FASTOPEN_CONNECT;
            let _ = socket::set_option(theirs.as_fd(), libc::IPPROTO_TCP, option, 0);
        }
        match socket::connect(theirs.as_fd(), address) {
            Ok(()) => {}
            Err(Errno::EINPROGRESS | Errno::EINTR) => {
                wait(theirs.as_fd(), PollFlags::POLLOUT)?;
                match socket::option(theirs.as_fd(), libc::SOL_SOCKET, libc::SO_ERROR)? {
                    0 => {}
                    error => return Err(Errno::from_raw(error)),
                }
            }
            Err(errno) => return Err(errno),
        }
        accept(listener, theirs, domain)
    }

    fn fill(&mut self, theirs: &OwnedFd) -> Result<(), Errno> {
        let ours = self.ours.as_fd();
        socket::set_option(ours, libc::SOL_SOCKET, libc::SO_RCVBUF, SMALL_BUFFER)?;
        loop {
            // Received data must be acknowledged immediately, or a delayed acknowledgement makes the socket writable
            // later.
            let _ = socket::set_option(ours, libc::IPPROTO_TCP, libc::TCP_QUICKACK, 1);
            match socket::send(theirs.as_fd(), &[0; 4096], 0, &[]) {
                Ok(count) => self.filled += count,
                Err(Errno::EAGAIN) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
    }

    /// The remote side is established: makes the application's socket writable and restores its settings.
    pub(super) fn settle(&mut self, theirs: &OwnedFd) -> Result<(), Errno> {
        if self.filled == 0 {
            return Ok(());
        }
        // This comes first, because it makes the socket writable: from then on it must look as before. Data that the
        // application writes comes after the filler that we read here.
        self.restore_send_buffer(theirs);
        let ours = self.ours.as_fd();
        socket::set_option(ours, libc::SOL_SOCKET, libc::SO_RCVBUF, DEFAULT_BUFFER)?;
        let _ = socket::set_option(ours, libc::SOL_SOCKET, SO_BUF_LOCK, 0);
        let mut buffer = [0; 4096];
        while self.filled > 0 {
            let wanted = self.filled.min(buffer.len());
            wait(ours, PollFlags::POLLIN)?;
            let into = buffer.get_mut(..wanted).unwrap_or_default();
            match nix::unistd::read(ours, into) {
                Ok(0) => return Err(Errno::ECONNABORTED),
                Ok(count) => self.filled -= count,
                Err(Errno::EINTR | Errno::EAGAIN) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Restores the original send buffer of the application's socket.
    pub(super) fn restore_send_buffer(&self, theirs: &OwnedFd) {
        restore_send_buffer(theirs, self.send_buffer, self.send_locked);
    }

    /// The remote side failed: resets the connection.
    pub(super) fn reset(self, theirs: Option<&OwnedFd>) {
        socket::reset_on_close(self.ours.as_fd());
        drop(self.ours);
        // Not earlier: with a larger buffer the socket would look connected.
        if let Some(theirs) = theirs {
            restore_send_buffer(theirs, self.send_buffer, self.send_locked);
        }
    }
}

fn restore_send_buffer(theirs: &OwnedFd, send_buffer: i32, locked: bool) {
    // The kernel doubles the value. A smaller buffer than before is the worst that can happen.
    let half = send_buffer / 2;
    let _ = socket::set_option(theirs.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, half);
    if !locked {
        let _ = socket::set_option(theirs.as_fd(), libc::SOL_SOCKET, SO_BUF_LOCK, 0);
    }
}

/// The domain and type of the application's socket.
#[derive(Debug, Clone, Copy)]
pub(super) struct SocketKind {
    domain: i32,
    kind: i32,
}

impl SocketKind {
    pub(super) fn of(theirs: &OwnedFd) -> Result<Self, Errno> {
        Ok(Self {
            domain: domain_of(theirs.as_fd())?,
            kind: socket::option(theirs.as_fd(), libc::SOL_SOCKET, libc::SO_TYPE)?,
        })
    }
}

/// Listens for one connection.
#[derive(Debug)]
pub(super) struct RelayListener {
    kind: SocketKind,
    listener: OwnedFd,
    /// Encoded for a socket of this kind.
    address: Vec<u8>,
}

impl RelayListener {
    pub(super) fn open(
        kind: SocketKind,
        destination: Option<SocketAddr>,
        state: InitialState,
    ) -> Result<Self, Errno> {
        if kind.domain == libc::AF_UNIX {
            let listener = socket::create(kind.domain, kind.kind, 0)?;
            // Binding an empty address makes the kernel choose an abstract one.
            socket::bind(listener.as_fd(), &super::address::encode_unix("".as_ref()))?;
            socket::listen(listener.as_fd(), 1)?;
            let address = socket::local_address(listener.as_fd())?;
            return Ok(Self {
                kind,
                listener,
                address,
            });
        }
        let (listener, address) = loopback(kind.domain, kind.kind, destination)?;
        if state == InitialState::Connecting {
            socket::set_option(
                listener.as_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVBUF,
                SMALL_BUFFER,
            )?;
            let _ = socket::set_option(listener.as_fd(), libc::SOL_SOCKET, SO_BUF_LOCK, 0);
        }
        socket::listen(listener.as_fd(), 1)?;
        Ok(Self {
            kind,
            listener,
            address,
        })
    }
}

/// Opens a socket of ours on a free loopback port. Returns it with its address, encoded for a socket of this family.
pub(super) fn loopback(
    domain: i32,
    kind: i32,
    destination: Option<SocketAddr>,
) -> Result<(OwnedFd, Vec<u8>), Errno> {
    let version6 = domain == libc::AF_INET6 && destination.is_some_and(|to| to.is_ipv6());
    let bound = |version6: bool| {
        let (family, address) = if version6 {
            (libc::AF_INET6, SocketAddr::from((Ipv6Addr::LOCALHOST, 0)))
        } else {
            (libc::AF_INET, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
        };
        let ours = socket::create(family, kind, 0)?;
        socket::bind(ours.as_fd(), &encode_internet(address, family))?;
        Ok(ours)
    };
    let ours = match bound(version6) {
        // This machine may have no IPv6; most IPv6 sockets support IPv4 too.
        Err(_) if version6 => bound(false)?,
        result => result?,
    };
    let address = socket::local_address(ours.as_fd())?;
    let address = internet(&address).ok_or(Errno::EAFNOSUPPORT)?;
    Ok((ours, encode_internet(address, domain)))
}

/// Accepts the application's connection and no other.
fn accept(listener: &OwnedFd, theirs: &OwnedFd, domain: i32) -> Result<OwnedFd, Errno> {
    let expected = socket::local_address(theirs.as_fd())?;
    loop {
        wait(listener.as_fd(), PollFlags::POLLIN)?;
        let (ours, from) = socket::accept(listener.as_fd(), false)?;
        if domain == libc::AF_UNIX || internet(&from) == internet(&expected) {
            return Ok(ours);
        }
    }
}

fn wait(socket: BorrowedFd<'_>, events: PollFlags) -> Result<(), Errno> {
    loop {
        let mut waiting = [PollFd::new(socket, events)];
        match poll(&mut waiting, PollTimeout::from(LOCAL_TIMEOUT_MILLISECONDS)) {
            Ok(0) => return Err(Errno::ETIMEDOUT),
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}
