//! Socket options and addresses that have no safe wrapper elsewhere.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;

use super::check_int;

/// The size of a buffer for any address.
pub(crate) const MAX_ADDRESS_LENGTH: usize = size_of::<libc::sockaddr_storage>();

/// Takes ownership of a descriptor that the kernel just installed in this process, for example with a message.
pub(crate) fn own(number: RawFd) -> OwnedFd {
    // SAFETY: the kernel created it for us, so it has no other owner.
    unsafe { OwnedFd::from_raw_fd(number) }
}

pub(crate) fn create(domain: i32, kind: i32, protocol: i32) -> Result<OwnedFd, Errno> {
    // SAFETY: plain numbers.
    let number = check_int(unsafe { libc::socket(domain, kind | libc::SOCK_CLOEXEC, protocol) })?;
    Ok(own(number))
}

/// Reads an `int` option.
pub(crate) fn option(socket: BorrowedFd<'_>, level: i32, name: i32) -> Result<i32, Errno> {
    let mut bytes = [0; 4];
    read_option(socket, level, name, &mut bytes)?;
    Ok(i32::from_ne_bytes(bytes))
}

/// The cookie of the socket, which is never reused.
pub(crate) fn cookie(socket: BorrowedFd<'_>) -> Result<u64, Errno> {
    const SO_COOKIE: i32 = 57;
    let mut bytes = [0; 8];
    read_option(socket, libc::SOL_SOCKET, SO_COOKIE, &mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// The cookie of the socket's network namespace. Since Linux 5.14.
pub(crate) fn network_cookie(socket: BorrowedFd<'_>) -> Result<u64, Errno> {
    const SO_NETNS_COOKIE: i32 = 71;
    let mut bytes = [0; 8];
    read_option(socket, libc::SOL_SOCKET, SO_NETNS_COOKIE, &mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Reads a timeout option (`SO_RCVTIMEO`, `SO_SNDTIMEO`); `None` for no timeout.
pub(crate) fn timeout(socket: BorrowedFd<'_>, name: i32) -> Option<std::time::Duration> {
    let mut bytes = [0; 16];
    read_option(socket, libc::SOL_SOCKET, name, &mut bytes).ok()?;
    let (seconds, microseconds) = bytes.split_at(8);
    let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
    let timeout = std::time::Duration::from_secs(number(seconds))
        + std::time::Duration::from_micros(number(microseconds));
    (!timeout.is_zero()).then_some(timeout)
}

fn read_option(
    socket: BorrowedFd<'_>,
    level: i32,
    name: i32,
    value: &mut [u8],
) -> Result<(), Errno> {
    let mut length = address_length(value);
    // SAFETY: a buffer with its length.
    check_int(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            name,
            value.as_mut_ptr().cast(),
            &raw mut length,
        )
    })
    .map(drop)
}

pub(crate) fn set_option(
    socket: BorrowedFd<'_>,
    level: i32,
    name: i32,
    value: i32,
) -> Result<(), Errno> {
    write_option(socket, level, name, &value.to_ne_bytes())
}

/// Makes closing the socket reset the connection.
pub(crate) fn reset_on_close(socket: BorrowedFd<'_>) {
    let on_and_zero_seconds = [1, 0, 0, 0, 0, 0, 0, 0];
    // If this fails, the connection is closed in order, which is the best alternative.
    let _ = write_option(
        socket,
        libc::SOL_SOCKET,
        libc::SO_LINGER,
        &on_and_zero_seconds,
    );
}

fn write_option(socket: BorrowedFd<'_>, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
    // SAFETY: a buffer with its length.
    check_int(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            value.as_ptr().cast(),
            address_length(value),
        )
    })
    .map(drop)
}

/// Attaches a classic BPF program that chooses the messages which the socket receives.
pub(crate) fn attach_filter(
    socket: BorrowedFd<'_>,
    program: &mut [libc::sock_filter],
) -> Result<(), Errno> {
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| Errno::EINVAL)?,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the kernel copies the program during the call.
    check_int(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    })
    .map(drop)
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "addresses and options are a few bytes long"
)]
fn address_length(bytes: &[u8]) -> libc::socklen_t {
    bytes.len() as libc::socklen_t
}

/// `address` is the encoded `sockaddr`.
pub(crate) fn bind(socket: BorrowedFd<'_>, address: &[u8]) -> Result<(), Errno> {
    // SAFETY: a buffer with its length.
    check_int(unsafe {
        libc::bind(
            socket.as_raw_fd(),
            address.as_ptr().cast(),
            address_length(address),
        )
    })
    .map(drop)
}

pub(crate) fn connect(socket: BorrowedFd<'_>, address: &[u8]) -> Result<(), Errno> {
    // SAFETY: a buffer with its length.
    check_int(unsafe {
        libc::connect(
            socket.as_raw_fd(),
            address.as_ptr().cast(),
            address_length(address),
        )
    })
    .map(drop)
}

pub(crate) fn listen(socket: BorrowedFd<'_>, backlog: i32) -> Result<(), Errno> {
    // SAFETY: plain numbers.
    check_int(unsafe { libc::listen(socket.as_raw_fd(), backlog) }).map(drop)
}

/// A listener stops to listen; a connection stops to receive.
pub(crate) fn shutdown_read(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: plain numbers.
    check_int(unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RD) }).map(drop)
}

/// Accepts a connection. Returns it with its peer address.
pub(crate) fn accept(
    socket: BorrowedFd<'_>,
    nonblocking: bool,
) -> Result<(OwnedFd, Vec<u8>), Errno> {
    let nonblocking = if nonblocking { libc::SOCK_NONBLOCK } else { 0 };
    let mut address = [0_u8; MAX_ADDRESS_LENGTH];
    let mut length = address_length(&address);
    // SAFETY: a buffer with its length.
    let number = check_int(unsafe {
        libc::accept4(
            socket.as_raw_fd(),
            address.as_mut_ptr().cast(),
            &raw mut length,
            libc::SOCK_CLOEXEC | nonblocking,
        )
    })?;
    Ok((own(number), cut(&address, length)))
}

/// Listens on any port of localhost, and returns the port. Only makes system calls.
pub(crate) fn listen_on_any_port(socket: BorrowedFd<'_>) -> Result<u16, Errno> {
    let mut address: libc::sockaddr_in = super::memory::zeroed();
    address.sin_family = libc::AF_INET as libc::sa_family_t;
    address.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
    bind(socket, super::memory::bytes_of(&address))?;
    listen(socket, 128)?;
    let mut length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    // SAFETY: a structure with its length.
    check_int(unsafe {
        libc::getsockname(
            socket.as_raw_fd(),
            (&raw mut address).cast(),
            &raw mut length,
        )
    })?;
    Ok(u16::from_be(address.sin_port))
}

/// `accept` with a buffer for an address. Only makes system calls.
pub(crate) fn accept_any(socket: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let mut address = [0_u8; MAX_ADDRESS_LENGTH];
    let mut length = address_length(&address);
    // SAFETY: a buffer with its length.
    let number = check_int(unsafe {
        libc::accept4(
            socket.as_raw_fd(),
            address.as_mut_ptr().cast(),
            &raw mut length,
            libc::SOCK_CLOEXEC,
        )
    })?;
    Ok(own(number))
}

/// `getpeername`. Only makes system calls.
pub(crate) fn call_getpeername(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    peer(socket).map(drop)
}

/// The peer address, and its length.
fn peer(socket: BorrowedFd<'_>) -> Result<([u8; MAX_ADDRESS_LENGTH], libc::socklen_t), Errno> {
    let mut address = [0_u8; MAX_ADDRESS_LENGTH];
    let mut length = address_length(&address);
    // SAFETY: a buffer with its length.
    check_int(unsafe {
        libc::getpeername(
            socket.as_raw_fd(),
            address.as_mut_ptr().cast(),
            &raw mut length,
        )
    })?;
    Ok((address, length))
}

pub(crate) fn local_address(socket: BorrowedFd<'_>) -> Result<Vec<u8>, Errno> {
    let mut address = [0_u8; MAX_ADDRESS_LENGTH];
    let mut length = address_length(&address);
    // SAFETY: a buffer with its length.
    check_int(unsafe {
        libc::getsockname(
            socket.as_raw_fd(),
            address.as_mut_ptr().cast(),
            &raw mut length,
        )
    })?;
    Ok(cut(&address, length))
}

pub(crate) fn peer_address(socket: BorrowedFd<'_>) -> Result<Vec<u8>, Errno> {
    let (address, length) = peer(socket)?;
    Ok(cut(&address, length))
}

fn cut(address: &[u8], length: libc::socklen_t) -> Vec<u8> {
    let length = (length as usize).min(address.len());
    address.get(..length).unwrap_or_default().to_vec()
}

/// Sends without blocking and without `SIGPIPE`; to `address` if it is not empty.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    data: &[u8],
    flags: i32,
    address: &[u8],
) -> Result<usize, Errno> {
    let to = if address.is_empty() {
        std::ptr::null()
    } else {
        address.as_ptr()
    };
    // SAFETY: buffers with their lengths.
    Errno::result(unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            data.as_ptr().cast(),
            data.len(),
            flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            to.cast(),
            address_length(address),
        )
    })
    .map(isize::unsigned_abs)
}

/// Blocking `sendmsg`. Only makes system calls.
pub(crate) fn send_message(socket: BorrowedFd<'_>, data: &[u8]) -> Result<usize, Errno> {
    let mut vector = libc::iovec {
        iov_base: data.as_ptr().cast_mut().cast(),
        iov_len: data.len(),
    };
    let mut header: libc::msghdr = super::memory::zeroed();
    header.msg_iov = &raw mut vector;
    header.msg_iovlen = 1;
    // SAFETY: the header points to a buffer with its length, which is only read.
    Errno::result(unsafe {
        libc::sendmsg(socket.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL)
    })
    .map(isize::unsigned_abs)
}

/// A received message.
#[derive(Debug)]
pub(crate) struct Message {
    /// The length that the kernel returns, which with `MSG_TRUNC` may exceed the buffer.
    pub(crate) length: usize,
    pub(crate) address: Vec<u8>,
    pub(crate) control: Vec<u8>,
    pub(crate) flags: i32,
}

/// Receives without blocking.
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    data: &mut [u8],
    control_room: usize,
    flags: i32,
) -> Result<Message, Errno> {
    let mut address = [0_u8; MAX_ADDRESS_LENGTH];
    // Eight-byte integers, because control messages must be aligned.
    let mut control = vec![0_u64; control_room.div_ceil(8)];
    let mut vector = libc::iovec {
        iov_base: data.as_mut_ptr().cast(),
        iov_len: data.len(),
    };
    let mut header: libc::msghdr = super::memory::zeroed();
    header.msg_name = address.as_mut_ptr().cast();
    header.msg_namelen = address_length(&address);
    header.msg_iov = &raw mut vector;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = control_room as _;
    let flags = flags | libc::MSG_DONTWAIT;
    // SAFETY: the header points to buffers of this stack frame with their lengths.
    let length =
        Errno::result(unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) })?;
    let control: Vec<u8> = control.iter().flat_map(|word| word.to_ne_bytes()).collect();
    #[expect(
        clippy::unnecessary_cast,
        reason = "the type of the field differs between C libraries"
    )]
    let control_length = header.msg_controllen as usize;
    Ok(Message {
        length: length.unsigned_abs(),
        address: cut(&address, header.msg_namelen),
        control: control.get(..control_length).unwrap_or_default().to_vec(),
        flags: header.msg_flags,
    })
}

/// Reads the status flags of the open file, which all duplicates of the descriptor share.
pub(crate) fn is_nonblocking(socket: BorrowedFd<'_>) -> bool {
    // SAFETY: plain numbers.
    let flags = unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_GETFL) };
    flags != -1 && flags & libc::O_NONBLOCK != 0
}

/// Sets whether calls on the open file block.
pub(crate) fn set_nonblocking(socket: BorrowedFd<'_>, nonblocking: bool) -> Result<(), Errno> {
    // SAFETY: plain numbers.
    let flags = check_int(unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_GETFL) })?;
    let flags = if nonblocking {
        flags | libc::O_NONBLOCK
    } else {
        flags & !libc::O_NONBLOCK
    };
    // SAFETY: plain numbers.
    check_int(unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_SETFL, flags) }).map(drop)
}
