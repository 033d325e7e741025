//! Creates a FUSE mount that is not attached to any directory tree.
//!
//! The kernel creates a mount and returns a descriptor of its root. Because the mount is never attached, other processes
//! cannot see it, there is nothing to unmount, and it disappears with its last descriptor, however this process ends.
//!
//! This needs `CAP_SYS_ADMIN` in a mount namespace. Without it, a short-lived child enters a new user and mount namespace,
//! creates the mount there, and sends the descriptors back. In such a mount only the current user and group are mapped.

use std::ffi::CStr;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use interceptor::Errno;
use nix::sched::{CloneFlags, unshare};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::write;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen,
};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::{getegid, geteuid};

use crate::sys::child;

#[derive(Debug)]
pub(super) struct FuseMount {
    /// The descriptor from which the kernel's requests are read.
    pub(super) device: OwnedFd,
    pub(super) root: OwnedFd,
    /// The only user and group that files can have in this mount. `None` if files have their real owners.
    pub(super) mapped_owner: Option<(u32, u32)>,
}

/// How a mount is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MountMethod {
    Direct,
    UserNamespace,
}

pub(super) fn mount() -> Result<FuseMount, Errno> {
    mount_with(MountMethod::Direct).or_else(|first| {
        tracing::debug!(errno = %first, "mount not permitted, retrying in a user namespace");
        mount_with(MountMethod::UserNamespace)
    })
}

pub(super) fn mount_with(method: MountMethod) -> Result<FuseMount, Errno> {
    match method {
        MountMethod::Direct => {
            let (device, root) = create_mount(&MountOptions::new(), true)?;
            Ok(FuseMount {
                device,
                root,
                mapped_owner: None,
            })
        }
        MountMethod::UserNamespace => in_user_namespace(),
    }
}

/// Texts that are formatted before the fork, because the child must not allocate.
struct MountOptions {
    user: CText,
    group: CText,
    user_map: CText,
    group_map: CText,
}

impl MountOptions {
    fn new() -> Self {
        let (user, group) = (geteuid().as_raw(), getegid().as_raw());
        let map = |id: u32| CText::from_text(&format!("{id} {id} 1"));
        Self {
            user: CText::from_text(&user.to_string()),
            group: CText::from_text(&group.to_string()),
            user_map: map(user),
            group_map: map(group),
        }
    }
}

/// Creates the mount with the rights of the current thread. Only makes system calls.
fn create_mount(options: &MountOptions, allow_other: bool) -> Result<(OwnedFd, OwnedFd), Errno> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let device = openat(CWD, c"/dev/fuse", flags, Mode::empty()).map_err(errno)?;
    let number = CText::from_number(device.as_raw_fd().unsigned_abs());
    let system = fsopen(c"fuse", FsOpenFlags::FSOPEN_CLOEXEC).map_err(errno)?;
    let settings = [
        (c"source", c"standin"),
        (c"fd", number.as_c_str()),
        (c"rootmode", c"40000"),
        (c"user_id", options.user.as_c_str()),
        (c"group_id", options.group.as_c_str()),
    ];
    for (key, value) in settings {
        fsconfig_set_string(system.as_fd(), key, value).map_err(errno)?;
    }
    if allow_other {
        fsconfig_set_flag(system.as_fd(), c"allow_other").map_err(errno)?;
    }
    fsconfig_create(system.as_fd()).map_err(errno)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let root = fsmount(system.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes);
    Ok((device, root.map_err(errno)?))
}

fn in_user_namespace() -> Result<FuseMount, Errno> {
    let options = MountOptions::new();
    let (parent_end, child_end) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(errno)?;
    let child = child::run(|| {
        let created = enter_namespaces(&options).and_then(|()| create_mount(&options, false));
        let _ = send_descriptors(child_end.as_fd(), &created);
    })?;
    drop(child_end);
    let received = receive_descriptors(parent_end.as_fd());
    child.wait();
    let (device, root) = received?;
    Ok(FuseMount {
        device,
        root,
        mapped_owner: Some((geteuid().as_raw(), getegid().as_raw())),
    })
}

/// Only makes system calls.
fn enter_namespaces(options: &MountOptions) -> Result<(), Errno> {
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)?;
    let write_to = |path: &CStr, text: &CStr| {
        let file = openat(CWD, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
        file.and_then(|file| write(file, text.to_bytes()))
            .map(drop)
            .map_err(errno)
    };
    write_to(c"/proc/self/setgroups", c"deny")?;
    write_to(c"/proc/self/uid_map", options.user_map.as_c_str())?;
    write_to(c"/proc/self/gid_map", options.group_map.as_c_str())
}

/// Only makes system calls.
fn send_descriptors(
    to: BorrowedFd<'_>,
    created: &Result<(OwnedFd, OwnedFd), Errno>,
) -> Result<(), rustix::io::Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    let descriptors;
    let failure = match created {
        Ok((device, root)) => {
            descriptors = [device.as_fd(), root.as_fd()];
            rights.push(SendAncillaryMessage::ScmRights(&descriptors));
            0
        }
        Err(errno) => *errno as i32,
    };
    let text = failure.to_ne_bytes();
    sendmsg(to, &[IoSlice::new(&text)], &mut rights, SendFlags::NOSIGNAL).map(drop)
}

fn receive_descriptors(from: BorrowedFd<'_>) -> Result<(OwnedFd, OwnedFd), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let mut text = [0; 4];
    let mut parts = [IoSliceMut::new(&mut text)];
    let received = loop {
        match recvmsg(from, &mut parts, &mut rights, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            received => break received.map_err(errno)?,
        }
    };
    if received.bytes != text.len() {
        return Err(Errno::ECHILD);
    }
    let mut descriptors = rights.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    match (
        i32::from_ne_bytes(text),
        descriptors.next(),
        descriptors.next(),
    ) {
        (0, Some(device), Some(root)) => Ok((device, root)),
        (0, ..) => Err(Errno::EMFILE),
        (failure, ..) => Err(Errno::from_raw(failure)),
    }
}

/// A short C string without an allocation.
struct CText([u8; 40]);

impl CText {
    fn from_text(text: &str) -> Self {
        let mut bytes = [0; 40];
        for (byte, from) in bytes.iter_mut().take(39).zip(text.bytes()) {
            *byte = from;
        }
        Self(bytes)
    }

    fn from_number(mut number: u32) -> Self {
        let mut digits = [0; 10];
        let mut start = digits.len();
        loop {
            start -= 1;
            digits[start] = b'0' + u8::try_from(number % 10).unwrap_or_default();
            number /= 10;
            if number == 0 {
                break;
            }
        }
        let mut bytes = [0; 40];
        let length = digits.len() - start;
        bytes[..length].copy_from_slice(&digits[start..]);
        Self(bytes)
    }

    fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }
}

fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_raw(error.raw_os_error())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read as _;

    use super::*;

    #[test]
    #[ignore = "needs root"]
    fn both_mount_methods_work() {
        for method in [MountMethod::Direct, MountMethod::UserNamespace] {
            let mounted = mount_with(method).unwrap();
            assert_eq!(
                mounted.mapped_owner.is_some(),
                method == MountMethod::UserNamespace
            );
            // The kernel's first request is INIT.
            let mut buffer = vec![0; 16 * 1024];
            let length = File::from(mounted.device).read(&mut buffer).unwrap();
            let request = super::super::wire::Request::decode(&buffer[..length]).unwrap();
            let init = matches!(
                request.operation,
                super::super::wire::Operation::Init { .. }
            );
            assert!(init, "{request:?}");
        }
    }

    #[test]
    fn numbers_are_formatted_without_an_allocation() {
        for number in [0, 7, 10, 4_294_967_295] {
            let text = number.to_string();
            assert_eq!(
                CText::from_number(number).as_c_str().to_bytes(),
                text.as_bytes()
            );
        }
        assert_eq!(CText::from_text("5 5 1").as_c_str(), c"5 5 1");
    }
}
