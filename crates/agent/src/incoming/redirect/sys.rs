//! Socket options and control messages that no safe crate wraps.

#![expect(
    unsafe_code,
    reason = "transparent sockets have no other interface; each call says why it is sound"
)]

use std::io;
use std::mem::{self, MaybeUninit};
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd as _};

use libc::{c_int, c_void};
use rustix::io::{Errno, Result};

/// Lets the socket use addresses that do not belong to this namespace (`IP_TRANSPARENT`).
pub(super) fn set_transparent(socket: impl AsFd, ipv6: bool) -> Result<()> {
    match ipv6 {
        false => set_option(socket, libc::SOL_IP, libc::IP_TRANSPARENT),
        true => set_option(socket, libc::SOL_IPV6, libc::IPV6_TRANSPARENT),
    }
}

/// Makes the kernel pass the original destination address with each datagram.
pub(super) fn set_receive_destination(socket: impl AsFd, ipv6: bool) -> Result<()> {
    match ipv6 {
        false => set_option(socket, libc::SOL_IP, libc::IP_RECVORIGDSTADDR),
        true => set_option(socket, libc::SOL_IPV6, libc::IPV6_RECVORIGDSTADDR),
    }
}

/// Sets a mark on every packet of the socket.
pub(super) fn set_mark(socket: impl AsFd, mark: u32) -> Result<()> {
    set_value(socket, libc::SOL_SOCKET, libc::SO_MARK, mark)
}

fn set_option(socket: impl AsFd, level: c_int, name: c_int) -> Result<()> {
    set_value(socket, level, name, 1)
}

fn set_value(socket: impl AsFd, level: c_int, name: c_int, value: u32) -> Result<()> {
    // SAFETY: the pointer is to a number of the size that is passed, which lives until the call returns.
    let outcome = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            (&raw const value).cast::<c_void>(),
            length_of(size_of::<u32>()),
        )
    };
    if outcome == 0 {
        Ok(())
    } else {
        Err(last_error())
    }
}

/// A buffer for control messages, aligned as their headers require.
#[repr(C, align(8))]
struct Control([u8; 128]);

/// The length and addresses of a received datagram.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) length: usize,
    pub(super) peer: SocketAddr,
    pub(super) original_destination: SocketAddr,
}

/// Receives a datagram from a socket that has [`set_receive_destination`].
pub(super) fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Received> {
    let mut control = Control([0; 128]);
    let mut peer = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut buffers = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: all fields of this C structure, its private padding too, may be zero.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_name = peer.as_mut_ptr().cast();
    message.msg_namelen = length_of(size_of::<libc::sockaddr_storage>());
    message.msg_iov = &raw mut buffers;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = size_of::<Control>() as _;
    // SAFETY: every pointer in the message is to memory of the length beside it that lives longer than the call.
    let length = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, 0) };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: it was zeroed, which is a valid value, and the kernel has written at most its length.
    let peer = address(unsafe { peer.assume_init_ref() });
    // SAFETY: the message is as the kernel left it, and the memory that it points to is still there.
    let original_destination = unsafe { destination(&message) };
    match (peer, original_destination) {
        (Some(peer), Some(original_destination)) => Ok(Received {
            length,
            peer,
            original_destination,
        }),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Finds the original destination in the control messages.
///
/// # Safety
///
/// The control buffer of the message must be one that the kernel has filled.
unsafe fn destination(message: &libc::msghdr) -> Option<SocketAddr> {
    // SAFETY: by this function's contract.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: not null, so it is a whole header inside of the buffer.
        let control = unsafe { &*header };
        let size = match (control.cmsg_level, control.cmsg_type) {
            (libc::SOL_IP, libc::IP_ORIGDSTADDR) => size_of::<libc::sockaddr_in>(),
            (libc::SOL_IPV6, libc::IPV6_ORIGDSTADDR) => size_of::<libc::sockaddr_in6>(),
            _ => 0,
        };
        if size > 0 {
            let mut storage = MaybeUninit::<libc::sockaddr_storage>::zeroed();
            // SAFETY: the kernel writes this message with an address of this size, and the storage has room for any.
            unsafe {
                let data = libc::CMSG_DATA(header);
                data.copy_to_nonoverlapping(storage.as_mut_ptr().cast(), size);
                return address(storage.assume_init_ref());
            }
        }
        // SAFETY: the header is one of this message.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    None
}

/// Sends a datagram from an address that need not be the socket's own. The source port is the socket's.
pub(super) fn send(
    socket: impl AsFd,
    payload: &[u8],
    from: SocketAddr,
    to: SocketAddr,
) -> io::Result<usize> {
    let (mut storage, length) = storage(to);
    let mut control = Control([0; 128]);
    let mut buffers = libc::iovec {
        iov_base: payload.as_ptr().cast_mut().cast(),
        iov_len: payload.len(),
    };
    // SAFETY: all fields of this C structure, its private padding too, may be zero.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_name = (&raw mut storage).cast();
    message.msg_namelen = length;
    message.msg_iov = &raw mut buffers;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    match from {
        SocketAddr::V4(from) => {
            let packet_info = libc::in_pktinfo {
                ipi_ifindex: 0,
                ipi_spec_dst: ipv4(*from.ip()),
                ipi_addr: ipv4(*from.ip()),
            };
            put(&mut message, libc::SOL_IP, libc::IP_PKTINFO, packet_info);
        }
        SocketAddr::V6(from) => {
            let packet_info = libc::in6_pktinfo {
                ipi6_addr: ipv6(*from.ip()),
                ipi6_ifindex: from.scope_id() as _,
            };
            put(
                &mut message,
                libc::SOL_IPV6,
                libc::IPV6_PKTINFO,
                packet_info,
            );
        }
    }
    // SAFETY: every pointer in the message is to memory of the length beside it that lives longer than the call. The
    // payload is only read.
    let sent = unsafe { libc::sendmsg(socket.as_fd().as_raw_fd(), &raw const message, 0) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Sets `value` as the only control message. The message's control buffer must be a [`Control`], which has room for it.
fn put<T: Copy>(message: &mut libc::msghdr, level: c_int, kind: c_int, value: T) {
    let size = length_of(size_of::<T>());
    // SAFETY: the macros only calculate; the header and the value after it fit the buffer, which is aligned for both.
    unsafe {
        message.msg_controllen = libc::CMSG_SPACE(size) as _;
        let header = libc::CMSG_FIRSTHDR(message);
        (*header).cmsg_level = level;
        (*header).cmsg_type = kind;
        (*header).cmsg_len = libc::CMSG_LEN(size) as _;
        libc::CMSG_DATA(header).cast::<T>().write_unaligned(value);
    }
}

fn address(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match c_int::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says which address it is, and the storage is aligned for all.
            let address = unsafe { &*(&raw const *storage).cast::<libc::sockaddr_in>() };
            let ip = IpAddr::from(address.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddr::new(ip, u16::from_be(address.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let address = unsafe { &*(&raw const *storage).cast::<libc::sockaddr_in6>() };
            Some(SocketAddr::V6(SocketAddrV6::new(
                address.sin6_addr.s6_addr.into(),
                u16::from_be(address.sin6_port),
                address.sin6_flowinfo,
                address.sin6_scope_id,
            )))
        }
        _ => None,
    }
}

fn storage(address: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: all fields of this C structure may be zero.
    let mut storage: libc::sockaddr_storage = unsafe { mem::zeroed() };
    let pointer = &raw mut storage;
    let size = match address {
        SocketAddr::V4(address) => {
            // SAFETY: the storage has room for any address and is aligned for all.
            unsafe { pointer.cast::<libc::sockaddr_in>().write(c_ipv4(address)) };
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(address) => {
            // SAFETY: as above.
            unsafe { pointer.cast::<libc::sockaddr_in6>().write(c_ipv6(address)) };
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, length_of(size))
}

fn c_ipv4(address: SocketAddrV4) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as _,
        sin_port: address.port().to_be(),
        sin_addr: ipv4(*address.ip()),
        sin_zero: [0; 8],
    }
}

fn c_ipv6(address: SocketAddrV6) -> libc::sockaddr_in6 {
    libc::sockaddr_in6 {
        sin6_family: libc::AF_INET6 as _,
        sin6_port: address.port().to_be(),
        sin6_flowinfo: address.flowinfo(),
        sin6_addr: ipv6(*address.ip()),
        sin6_scope_id: address.scope_id(),
    }
}

fn ipv4(address: std::net::Ipv4Addr) -> libc::in_addr {
    libc::in_addr {
        s_addr: u32::from_ne_bytes(address.octets()),
    }
}

fn ipv6(address: std::net::Ipv6Addr) -> libc::in6_addr {
    libc::in6_addr {
        s6_addr: address.octets(),
    }
}

/// Converts the size of a C structure, which always fits.
fn length_of(size: usize) -> libc::socklen_t {
    libc::socklen_t::try_from(size).unwrap_or(libc::socklen_t::MAX)
}

fn last_error() -> Errno {
    crate::error::errno_of(&io::Error::last_os_error())
}
