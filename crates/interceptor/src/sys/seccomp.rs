//! The seccomp listener: receives notifications and responds to them.

use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use libc::{seccomp_notif, seccomp_notif_addfd, seccomp_notif_resp};
use nix::errno::Errno;

use super::{check, check_int};

/// `SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP`, since Linux 6.6: caller and supervisor wake each other on the same CPU.
const SYNC_WAKE_UP: libc::c_ulong = 1;

/// A system call that is suspended until there is a response.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReceivedCall {
    pub(crate) id: u64,
    /// The calling thread in the supervisor's PID namespace; zero if it is not visible there.
    pub(crate) thread: libc::pid_t,
    pub(crate) number: libc::c_int,
    pub(crate) architecture: u32,
    pub(crate) arguments: [u64; 6],
}

pub(crate) fn receive(listener: BorrowedFd<'_>) -> Result<ReceivedCall, Errno> {
    // SAFETY: the structure consists of integers, for which zero is valid; the kernel requires zeros.
    let mut notification: seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes a `seccomp_notif` to a buffer of that type that outlives the call.
    check_int(unsafe {
        libc::ioctl(
            listener.as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_RECV,
            &raw mut notification,
        )
    })?;
    Ok(ReceivedCall {
        id: notification.id,
        thread: notification.pid.cast_signed(),
        number: notification.data.nr,
        architecture: notification.data.arch,
        arguments: notification.data.args,
    })
}

/// Responds with a value, or with an error if `error` is not zero. `error` is positive.
pub(crate) fn send(listener: BorrowedFd<'_>, id: u64, value: i64, error: i32) -> Result<(), Errno> {
    respond(
        listener,
        &seccomp_notif_resp {
            id,
            val: value,
            error: -error,
            flags: 0,
        },
    )
}

/// Lets the kernel execute the call as if it were not intercepted.
pub(crate) fn send_continue(listener: BorrowedFd<'_>, id: u64) -> Result<(), Errno> {
    respond(
        listener,
        &seccomp_notif_resp {
            id,
            val: 0,
            error: 0,
            #[expect(
                clippy::cast_possible_truncation,
                reason = "the constant is 1; libc gives it a wider type than the field"
            )]
            flags: libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
        },
    )
}

fn respond(listener: BorrowedFd<'_>, response: &seccomp_notif_resp) -> Result<(), Errno> {
    // SAFETY: the kernel reads a `seccomp_notif_resp` from a reference to one.
    check_int(unsafe {
        libc::ioctl(
            listener.as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_SEND,
            std::ptr::from_ref(response),
        )
    })
    .map(drop)
}

/// Whether the caller of a notification is still suspended.
pub(crate) fn is_valid(listener: BorrowedFd<'_>, id: u64) -> bool {
    // SAFETY: the kernel reads a `u64` from a reference to one.
    let result = unsafe {
        libc::ioctl(
            listener.as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_ID_VALID,
            &raw const id,
        )
    };
    result == 0
}

/// The number of an installed descriptor in the calling process.
#[derive(Debug, Clone, Copy)]
pub(crate) enum DescriptorSlot {
    /// The lowest free number, as the kernel would choose.
    Lowest,
    /// This number, replacing an open descriptor.
    At(u32),
}

/// Installs a copy of `descriptor` in the calling process and responds with its number, atomically if the kernel
/// supports it.
pub(crate) fn send_descriptor(
    listener: BorrowedFd<'_>,
    id: u64,
    descriptor: RawFd,
    slot: DescriptorSlot,
    close_on_exec: bool,
) -> Result<(), Errno> {
    const SETFD: u32 = 1;
    const SEND: u32 = 2;
    let (flags, newfd) = match slot {
        DescriptorSlot::Lowest => (SEND, 0),
        DescriptorSlot::At(number) => (SEND | SETFD, number),
    };
    let request = seccomp_notif_addfd {
        id,
        flags,
        srcfd: descriptor.cast_unsigned(),
        newfd,
        newfd_flags: if close_on_exec {
            libc::O_CLOEXEC.cast_unsigned()
        } else {
            0
        },
    };
    match add_descriptor(listener, &request) {
        // Before Linux 5.14 this takes two steps.
        Err(Errno::EINVAL) => {
            let number = add_descriptor(
                listener,
                &seccomp_notif_addfd {
                    flags: flags & !SEND,
                    ..request
                },
            )?;
            send(listener, id, i64::from(number), 0)
        }
        result => result.map(drop),
    }
}

fn add_descriptor(
    listener: BorrowedFd<'_>,
    request: &seccomp_notif_addfd,
) -> Result<libc::c_int, Errno> {
    // SAFETY: the kernel reads a `seccomp_notif_addfd` from a reference to one.
    check_int(unsafe {
        libc::ioctl(
            listener.as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_ADDFD,
            std::ptr::from_ref(request),
        )
    })
}

/// Enables wake-up on the same CPU. False if this kernel does not support it.
pub(crate) fn enable_sync_wake_up(listener: BorrowedFd<'_>) -> bool {
    // SAFETY: the argument is a plain number.
    let result = unsafe {
        libc::ioctl(
            listener.as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS,
            SYNC_WAKE_UP,
        )
    };
    result == 0
}

/// Whether this kernel can install a descriptor and respond in one step. It returns different errors for an unknown
/// flag and for an unknown notification.
pub(crate) fn supports_descriptor_reply(listener: BorrowedFd<'_>) -> bool {
    let request = seccomp_notif_addfd {
        id: 0,
        flags: 2,
        srcfd: listener.as_raw_fd().cast_unsigned(),
        newfd: 0,
        newfd_flags: 0,
    };
    add_descriptor(listener, &request) != Err(Errno::EINVAL)
}

/// Whether the kernel supports user notification, with the structure sizes that we were built with.
pub(crate) fn notification_sizes_match() -> Result<bool, Errno> {
    let mut sizes = libc::seccomp_notif_sizes {
        seccomp_notif: 0,
        seccomp_notif_resp: 0,
        seccomp_data: 0,
    };
    // SAFETY: the kernel writes a `seccomp_notif_sizes` to a buffer of that type.
    check(unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_GET_NOTIF_SIZES,
            0,
            &raw mut sizes,
        )
    })?;
    Ok(
        usize::from(sizes.seccomp_notif) == size_of::<seccomp_notif>()
            && usize::from(sizes.seccomp_notif_resp) == size_of::<seccomp_notif_resp>(),
    )
}
