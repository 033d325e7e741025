//! Events about closed sockets.
//!
//! `close` is not intercepted: programs call it too often, and a process that exits does not call it at all. Instead, the
//! kernel reports each socket of this network that is destroyed (`sock_diag(7)`). This needs no privileges.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use crate::Errno;
use crate::socket_table;
use crate::sys::socket;

/// The multicast groups of `sock_diag` for destroyed TCP and UDP sockets of both address families.
const GROUPS: [i32; 4] = [1, 2, 3, 4];

/// Receives an event when a TCP or UDP socket without a peer, such as a listener, is closed. The descriptor is readable
/// when there are events.
#[derive(Debug)]
pub struct CloseEvents {
    socket: OwnedFd,
}

impl CloseEvents {
    /// Only sockets that are closed afterwards are reported.
    ///
    /// # Errors
    /// The kernel does not support it, or a socket cannot be created.
    pub fn open() -> Result<Self, Errno> {
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK;
        let socket = socket::create(libc::AF_NETLINK, kind, libc::NETLINK_SOCK_DIAG)?;
        // The filter comes first: a busy machine closes thousands of connections per second.
        socket::attach_filter(socket.as_fd(), &mut socket_table::without_peer_filter())?;
        // The kernel skips sockets without an address of their own. It chooses one for an address of zeros.
        let mut address = [0; size_of::<libc::sockaddr_nl>()];
        let family = u16::try_from(libc::AF_NETLINK).map_err(|_| Errno::EAFNOSUPPORT)?;
        address[..2].copy_from_slice(&family.to_ne_bytes());
        socket::bind(socket.as_fd(), &address)?;
        for group in GROUPS {
            socket::set_option(
                socket.as_fd(),
                libc::SOL_NETLINK,
                libc::NETLINK_ADD_MEMBERSHIP,
                group,
            )?;
        }
        Ok(Self { socket })
    }

    /// The cookie of the next closed socket. Never blocks.
    ///
    /// # Errors
    /// `EAGAIN` when there is no event, and `ENOBUFS` when events were lost.
    pub fn next(&self) -> Result<u64, Errno> {
        let mut message = [0; 4096];
        loop {
            let length = nix::unistd::read(&self.socket, &mut message)?;
            let message = message.get(..length).unwrap_or_default();
            if let Some(cookie) = socket_table::cookie_of(message) {
                return Ok(cookie);
            }
        }
    }
}

impl AsRawFd for CloseEvents {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl AsFd for CloseEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    /// Waits for the event of a socket. Returns the cookies that were reported before it: other tests of this process
    /// close sockets as well.
    fn wait_for(events: &CloseEvents, cookie: u64) -> Vec<u64> {
        let mut before = Vec::new();
        loop {
            match events.next() {
                Ok(closed) if closed == cookie => return before,
                Ok(closed) => before.push(closed),
                Err(Errno::EAGAIN) => {
                    let mut readable = [PollFd::new(events.as_fd(), PollFlags::POLLIN)];
                    poll(&mut readable, PollTimeout::NONE).unwrap();
                }
                Err(errno) => panic!("{errno}"),
            }
        }
    }

    #[test]
    fn closed_listeners_are_reported_by_their_cookies() {
        let events = CloseEvents::open().unwrap();
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let cookie = socket::cookie(listener.as_fd()).unwrap();
            drop(listener);
            wait_for(&events, cookie);
            let datagrams = UdpSocket::bind(address).unwrap();
            let cookie = socket::cookie(datagrams.as_fd()).unwrap();
            drop(datagrams);
            wait_for(&events, cookie);
        }
    }

    #[test]
    fn closed_connections_are_not_reported() {
        let events = CloseEvents::open().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let client_cookie = socket::cookie(client.as_fd()).unwrap();
        drop(client);
        let cookie = socket::cookie(listener.as_fd()).unwrap();
        drop(listener);
        assert!(!wait_for(&events, cookie).contains(&client_cookie));
    }
}
