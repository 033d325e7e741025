//! The local half of a connection: the application's own socket, connected to one of ours.
//!
//! A connection whose remote half is not there yet must not look connected. `connect` that waits simply is not
//! answered. For one that does not wait, the application's socket is connected to ours and filled until it is not
//! writable, which is how a socket looks while it connects. When the remote half is there, we read exactly what was
//! filled in; when it fails, we reset.
//!
//! The receiving buffer must be small, or filling takes megabytes; but a socket that starts with a locked small buffer
//! never gets a large window. So the listener's buffer is small and unlocked, which gives the connection its window
//! scale, and the accepted socket's is locked until the filling is read. Both are given back to the kernel's tuning
//! then, or the application's own value is restored.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::address::{encode_internet, internet};
use crate::Errno;
use crate::sys::socket;

/// `SO_BUF_LOCK`, since Linux 5.16: which buffer sizes were set by hand and are not tuned.
const SO_BUF_LOCK: i32 = 72;
const SEND_LOCKED: i32 = 1;
const SMALL: i32 = 4096;
const USUAL: i32 = 65_536;
/// How long the kernel may take for what happens within this machine.
const LOCAL_MILLISECONDS: u16 = 10_000;

/// Our end of a local connection.
#[derive(Debug)]
pub(super) struct Relay {
    pub(super) ours: OwnedFd,
    filled: usize,
    /// The send buffer of the application's socket as it was, and whether the application chose it.
    send_buffer: i32,
    send_locked: bool,
}

/// How the application's socket looks until the remote half is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    Connected,
    /// Not writable.
    Connecting,
}

pub(crate) fn domain_of(socket: BorrowedFd<'_>) -> Result<i32, Errno> {
    socket::option(socket, libc::SOL_SOCKET, libc::SO_DOMAIN)
}

/// Lets go of a device of this machine to which the application has bound its socket. The connection leaves from the
/// target, and through such a device its socket would never reach ours.
///
/// # Errors
/// When we may not, because the kernel lets only those do it who may use any device.
pub(super) fn release_from_device(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    const SO_BINDTOIFINDEX: i32 = 62;
    const NONE: i32 = 0;
    /// The same in every network.
    const LOOPBACK: i32 = 1;
    match socket::option(socket, libc::SOL_SOCKET, SO_BINDTOIFINDEX) {
        Err(_) | Ok(NONE | LOOPBACK) => Ok(()),
        Ok(device) => {
            let released = socket::set_option(socket, libc::SOL_SOCKET, SO_BINDTOIFINDEX, NONE);
            released.map_err(|errno| {
                tracing::warn!(%errno, device, "a socket that is bound to a device cannot lead to the target");
                Errno::ENETUNREACH
            })
        }
    }
}

impl Relay {
    /// Connects the application's socket to us.
    pub(super) fn connect(
        theirs: &OwnedFd,
        destination: Option<SocketAddr>,
        look: Look,
    ) -> Result<Self, Errno> {
        let listener = Listener::open(Kind::of(theirs)?, destination, look)?;
        Self::connect_through(theirs, listener, look)
    }

    /// The same, to a listener that was opened for it.
    pub(super) fn connect_through(
        theirs: &OwnedFd,
        Listener {
            kind: Kind { domain, .. },
            listener,
            address,
        }: Listener,
        look: Look,
    ) -> Result<Self, Errno> {
        let send_buffer = socket::option(theirs.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF)?;
        let locked = socket::option(theirs.as_fd(), libc::SOL_SOCKET, SO_BUF_LOCK).unwrap_or(0);
        let send_locked = locked & SEND_LOCKED != 0;
        if look == Look::Connecting {
            socket::set_option(theirs.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, 1)?;
        }
        let made = Self::connect_to(theirs, domain, &listener, &address).and_then(|ours| {
            let mut relay = Self {
                ours,
                filled: 0,
                send_buffer,
                send_locked,
            };
            if look == Look::Connecting {
                relay.fill(theirs)?;
            }
            Ok(relay)
        });
        if made.is_err() && look == Look::Connecting {
            give_back(theirs, send_buffer, send_locked);
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
        socket::set_option(ours, libc::SOL_SOCKET, libc::SO_RCVBUF, SMALL)?;
        loop {
            // What was received must be acknowledged at once, or the socket becomes writable when it is later.
            let _ = socket::set_option(ours, libc::IPPROTO_TCP, libc::TCP_QUICKACK, 1);
            match socket::send(theirs.as_fd(), &[0; 4096], 0, &[]) {
                Ok(count) => self.filled += count,
                Err(Errno::EAGAIN) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
    }

    /// The remote half is there: the application's socket becomes writable, and is as if nothing had been.
    pub(super) fn settle(&mut self, theirs: &OwnedFd) -> Result<(), Errno> {
        if self.filled == 0 {
            return Ok(());
        }
        // First, because it is what makes the socket writable: from then on it looks as it did before. What the
        // application writes comes after what we read here.
        self.give_back(theirs);
        let ours = self.ours.as_fd();
        socket::set_option(ours, libc::SOL_SOCKET, libc::SO_RCVBUF, USUAL)?;
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

    /// Gives the application's socket the send buffer that it had.
    pub(super) fn give_back(&self, theirs: &OwnedFd) {
        give_back(theirs, self.send_buffer, self.send_locked);
    }

    /// The remote half failed.
    pub(super) fn reset(self, theirs: Option<&OwnedFd>) {
        socket::reset_on_close(self.ours.as_fd());
        drop(self.ours);
        // Not before: with a larger buffer the socket would look connected.
        if let Some(theirs) = theirs {
            give_back(theirs, self.send_buffer, self.send_locked);
        }
    }
}

fn give_back(theirs: &OwnedFd, send_buffer: i32, locked: bool) {
    // The kernel doubles what it is given. A smaller buffer than before is the worst that can happen.
    let half = send_buffer / 2;
    let _ = socket::set_option(theirs.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, half);
    if !locked {
        let _ = socket::set_option(theirs.as_fd(), libc::SOL_SOCKET, SO_BUF_LOCK, 0);
    }
}

/// What the application's socket is, as `socket` was called.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind {
    domain: i32,
    kind: i32,
}

impl Kind {
    pub(super) fn of(theirs: &OwnedFd) -> Result<Self, Errno> {
        Ok(Self {
            domain: domain_of(theirs.as_fd())?,
            kind: socket::option(theirs.as_fd(), libc::SOL_SOCKET, libc::SO_TYPE)?,
        })
    }
}

/// Waits for one connection.
#[derive(Debug)]
pub(super) struct Listener {
    kind: Kind,
    listener: OwnedFd,
    /// For a socket of this kind.
    address: Vec<u8>,
}

impl Listener {
    pub(super) fn open(
        kind: Kind,
        destination: Option<SocketAddr>,
        look: Look,
    ) -> Result<Self, Errno> {
        if kind.domain == libc::AF_UNIX {
            let listener = socket::create(kind.domain, kind.kind, 0)?;
            // An address without a name makes the kernel choose an abstract one.
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
        if look == Look::Connecting {
            socket::set_option(listener.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, SMALL)?;
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

/// A socket of ours bound to a free loopback port, and its address for a socket of this family.
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
        // This machine may have no IPv6; most IPv6 sockets speak IPv4 too.
        Err(_) if version6 => bound(false)?,
        result => result?,
    };
    let address = socket::local_address(ours.as_fd())?;
    let address = internet(&address).ok_or(Errno::EAFNOSUPPORT)?;
    Ok((ours, encode_internet(address, domain)))
}

/// Accepts the application's connection and nobody else's.
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
        match poll(&mut waiting, PollTimeout::from(LOCAL_MILLISECONDS)) {
            Ok(0) => return Err(Errno::ETIMEDOUT),
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}
