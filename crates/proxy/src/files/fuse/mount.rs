//! A file system of our own that is mounted nowhere.
//!
//! The kernel makes a mount and gives us a descriptor of its root. It is never attached to a tree: nobody else can see
//! it, there is nothing to unmount, and it is gone with the last descriptor, however our process ends.
//!
//! Making it needs rights over a mount namespace. Who lacks them makes a user and mount namespace for a moment, in a
//! child, which hands the descriptors over. In such a mount only our own user and group have a number.

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
pub(super) struct Mounted {
    /// Where the kernel's requests come from.
    pub(super) device: OwnedFd,
    pub(super) root: OwnedFd,
    /// The only owner that files can have here; without one, they have their own.
    pub(super) only_owner: Option<(u32, u32)>,
}

/// How a mount is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    OwnRights,
    UserNamespace,
}

pub(super) fn mount() -> Result<Mounted, Errno> {
    mount_by(Way::OwnRights).or_else(|first| {
        tracing::debug!(%first, "no rights to mount; trying in a user namespace");
        mount_by(Way::UserNamespace)
    })
}

pub(super) fn mount_by(way: Way) -> Result<Mounted, Errno> {
    match way {
        Way::OwnRights => {
            let (device, root) = make(&Options::new(), true)?;
            Ok(Mounted {
                device,
                root,
                only_owner: None,
            })
        }
        Way::UserNamespace => in_user_namespace(),
    }
}

/// Text that is ready before there is a child, which cannot allocate.
struct Options {
    user: Number,
    group: Number,
    user_map: Number,
    group_map: Number,
}

impl Options {
    fn new() -> Self {
        let (user, group) = (geteuid().as_raw(), getegid().as_raw());
        let map = |id: u32| Number::text(&format!("{id} {id} 1"));
        Self {
            user: Number::text(&user.to_string()),
            group: Number::text(&group.to_string()),
            user_map: map(user),
            group_map: map(group),
        }
    }
}

/// Makes the mount with the rights of this thread. Only makes system calls.
fn make(options: &Options, others_too: bool) -> Result<(OwnedFd, OwnedFd), Errno> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let device = openat(CWD, c"/dev/fuse", flags, Mode::empty()).map_err(errno)?;
    let number = Number::of(device.as_raw_fd().unsigned_abs());
    let system = fsopen(c"fuse", FsOpenFlags::FSOPEN_CLOEXEC).map_err(errno)?;
    let settings = [
        (c"source", c"standin"),
        (c"fd", number.as_text()),
        (c"rootmode", c"40000"),
        (c"user_id", options.user.as_text()),
        (c"group_id", options.group.as_text()),
    ];
    for (key, value) in settings {
        fsconfig_set_string(system.as_fd(), key, value).map_err(errno)?;
    }
    if others_too {
        fsconfig_set_flag(system.as_fd(), c"allow_other").map_err(errno)?;
    }
    fsconfig_create(system.as_fd()).map_err(errno)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let root = fsmount(system.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes);
    Ok((device, root.map_err(errno)?))
}

fn in_user_namespace() -> Result<Mounted, Errno> {
    let options = Options::new();
    let (ours, childs) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(errno)?;
    let child = child::run(|| {
        let made = become_root_of_namespaces(&options).and_then(|()| make(&options, false));
        let _ = hand_over(childs.as_fd(), &made);
    })?;
    drop(childs);
    let received = take_over(ours.as_fd());
    child.wait();
    let (device, root) = received?;
    Ok(Mounted {
        device,
        root,
        only_owner: Some((geteuid().as_raw(), getegid().as_raw())),
    })
}

/// Only makes system calls.
fn become_root_of_namespaces(options: &Options) -> Result<(), Errno> {
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)?;
    let write_to = |path: &CStr, text: &CStr| {
        let file = openat(CWD, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
        file.and_then(|file| write(file, text.to_bytes()))
            .map(drop)
            .map_err(errno)
    };
    write_to(c"/proc/self/setgroups", c"deny")?;
    write_to(c"/proc/self/uid_map", options.user_map.as_text())?;
    write_to(c"/proc/self/gid_map", options.group_map.as_text())
}

/// Only makes system calls.
fn hand_over(
    to: BorrowedFd<'_>,
    made: &Result<(OwnedFd, OwnedFd), Errno>,
) -> Result<(), rustix::io::Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    let descriptors;
    let failure = match made {
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

fn take_over(from: BorrowedFd<'_>) -> Result<(OwnedFd, OwnedFd), Errno> {
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

/// A short text that ends with a zero, without an allocation.
struct Number([u8; 40]);

impl Number {
    fn text(text: &str) -> Self {
        let mut bytes = [0; 40];
        for (byte, from) in bytes.iter_mut().take(39).zip(text.bytes()) {
            *byte = from;
        }
        Self(bytes)
    }

    fn of(mut number: u32) -> Self {
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

    fn as_text(&self) -> &CStr {
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
    fn a_mount_is_made_in_both_ways() {
        for way in [Way::OwnRights, Way::UserNamespace] {
            let mounted = mount_by(way).unwrap();
            assert_eq!(mounted.only_owner.is_some(), way == Way::UserNamespace);
            // The kernel greets whoever will serve it.
            let mut greeting = vec![0; 16 * 1024];
            let length = File::from(mounted.device).read(&mut greeting).unwrap();
            let request = super::super::wire::Request::read(&greeting[..length]).unwrap();
            let init = matches!(
                request.operation,
                super::super::wire::Operation::Init { .. }
            );
            assert!(init, "{request:?}");
        }
    }

    #[test]
    fn numbers_are_written_without_an_allocation() {
        for number in [0, 7, 10, 4_294_967_295] {
            let text = number.to_string();
            assert_eq!(Number::of(number).as_text().to_bytes(), text.as_bytes());
        }
        assert_eq!(Number::text("5 5 1").as_text(), c"5 5 1");
    }
}
