//! Targets in user namespaces: rootless containers, and processes of `unshare --user`.
//!
//! Such a namespace belongs to an unprivileged user. A process of that user may enter it and then has all capabilities
//! inside the namespace, and none outside.

use std::fs;
use std::os::fd::AsFd as _;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::thread::{CapabilitySet, LinkNameSpaceType, capabilities, move_into_link_name_space};

use crate::{Error, Result};

/// Enters the user namespace of a process, if it is not our own and we lack the capabilities that make this unnecessary. The
/// kernel requires that the calling process has only one thread.
///
/// It is not an error if the namespace cannot be entered: the agent reports missing permissions later.
pub fn enter_user_namespace_of(pid: u32) -> Result<()> {
    let own = capabilities(None).map_err(|source| Error::Agent {
        action: "read its own capabilities",
        hint: "run it on Linux 5.10 or newer",
        source,
    })?;
    if own.effective.contains(CapabilitySet::SYS_ADMIN) {
        return Ok(());
    }
    let path = format!("/proc/{pid}/ns/user");
    let theirs = fs::read_link(&path);
    if theirs.is_err() || theirs.ok() == fs::read_link("/proc/self/ns/user").ok() {
        return Ok(());
    }
    let entered =
        openat(CWD, &path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).and_then(|namespace| {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::User))
        });
    if let Err(errno) = entered {
        tracing::debug!(%errno, "entering the target's user namespace failed");
    }
    Ok(())
}
