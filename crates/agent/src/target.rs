//! The target: a process, referenced by a pidfd, so that reuse of its PID is detected.

use std::fs;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::identity::Identity;
use crate::{Error, Result};

#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) pid: u32,
    process: OwnedFd,
    /// The target's root directory.
    pub(crate) root: OwnedFd,
    pub(crate) network: Namespace,
    pub(crate) uts: Namespace,
    pub(crate) identity: Identity,
}

/// A namespace that threads may have to enter.
#[derive(Debug)]
pub(crate) enum Namespace {
    /// The agent is in the same one. Entering it is unnecessary, and would need capabilities.
    Shared,
    Other(LinkNameSpaceType, OwnedFd),
}

impl Target {
    pub(crate) fn find(pid: u32) -> Result<Self> {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let number = number.ok_or(Error::NoTarget(pid))?;
        let process = pidfd_open(number, PidfdFlags::empty()).map_err(|_| Error::NoTarget(pid))?;
        let found = Self::inspect(pid, process);
        match found {
            Ok(target) if target.has_exited() => Err(Error::NoTarget(pid)),
            // A zombie still has a directory in /proc, with unreadable content.
            Err(Error::Agent {
                source: Errno::NOENT | Errno::SRCH,
                ..
            }) => Err(Error::NoTarget(pid)),
            found => found,
        }
    }

    fn inspect(pid: u32, process: OwnedFd) -> Result<Self> {
        let stat = fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
        if is_kernel_thread(&String::from_utf8_lossy(&stat)) {
            return Err(Error::KernelThread(pid));
        }
        let status = fs::read_to_string(format!("/proc/{pid}/status"))
            .map_err(|error| unreadable(crate::error::errno_of(&error)))?;
        let user_namespace = Namespace::of(pid, "user", LinkNameSpaceType::User)?;
        let identity = Identity::parse(&status, matches!(user_namespace, Namespace::Shared))
            .ok_or(Error::NoTarget(pid))?;
        Ok(Self {
            pid,
            process,
            root: open(
                format!("/proc/{pid}/root"),
                OFlags::PATH | OFlags::DIRECTORY,
            )?,
            network: Namespace::of(pid, "net", LinkNameSpaceType::Network)?,
            uts: Namespace::of(pid, "uts", LinkNameSpaceType::HostNameAndNISDomainName)?,
            identity,
        })
    }

    pub(crate) fn has_exited(&self) -> bool {
        let mut descriptors = [PollFd::new(&self.process, PollFlags::IN)];
        let no_wait = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        matches!(poll(&mut descriptors, Some(&no_wait)), Ok(ready) if ready > 0)
    }

    /// Fails if the target has exited.
    pub(crate) fn require(&self) -> Result<()> {
        if self.has_exited() {
            return Err(Error::TargetGone(self.pid));
        }
        Ok(())
    }
}

impl Namespace {
    fn of(pid: u32, name: &str, kind: LinkNameSpaceType) -> Result<Self> {
        let path = format!("/proc/{pid}/ns/{name}");
        let read = |path: &str| {
            fs::read_link(path).map_err(|error| unreadable(crate::error::errno_of(&error)))
        };
        if read(&path)? == read(&format!("/proc/self/ns/{name}"))? {
            return Ok(Self::Shared);
        }
        Ok(Self::Other(kind, open(path, OFlags::RDONLY)?))
    }

    /// Permanently moves the calling thread into the namespace.
    pub(crate) fn enter(&self) -> Result<()> {
        let Self::Other(kind, descriptor) = self else {
            return Ok(());
        };
        use std::os::fd::AsFd as _;
        move_into_link_name_space(descriptor.as_fd(), Some(*kind)).map_err(|source| Error::Agent {
            action: "enter a namespace of the target",
            hint: "it needs the capability SYS_ADMIN (use sudo), or must be started inside the target's pod",
            source,
        })
    }
}

fn open(path: String, flags: OFlags) -> Result<OwnedFd> {
    openat(CWD, path, flags | OFlags::CLOEXEC, Mode::empty()).map_err(unreadable)
}

fn unreadable(source: Errno) -> Error {
    let hint = if rustix::process::geteuid().is_root() {
        "it is root, and lacks the capability SYS_PTRACE, as in many containers, or the kernel protects the target: add the \
         capability, or choose another target"
    } else {
        "it needs the capability SYS_PTRACE, or the target's own user: use sudo, or be that user"
    };
    Error::Agent {
        action: "inspect the target",
        hint,
        source,
    }
}

/// Checks the flags in `/proc/<pid>/stat`.
fn is_kernel_thread(stat: &str) -> bool {
    const PF_KTHREAD: u64 = 0x0020_0000;
    // The process name may contain any characters, also parentheses.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let flags = fields.split_whitespace().nth(6);
    flags
        .and_then(|flags| flags.parse::<u64>().ok())
        .is_some_and(|flags| flags & PF_KTHREAD != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_threads_are_detected_by_their_flags() {
        assert!(is_kernel_thread("2 (kthreadd) S 0 0 0 0 -1 2129984 0 0"));
        assert!(!is_kernel_thread(
            "77 (odd) 2 (name) S 1 77 77 0 -1 4194560 0 0"
        ));
        assert!(!is_kernel_thread(""));
    }
}
