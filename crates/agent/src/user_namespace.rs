//! Targets that an ordinary user made for himself: rootless containers, and whatever `unshare --user` starts.
//!
//! Such a target lives in a user namespace that belongs to its user. Whoever is that user may enter the namespace and
//! then has every right over what is inside, and none over the rest of the machine.

use std::fs;
use std::os::fd::AsFd as _;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::thread::{CapabilitySet, LinkNameSpaceType, capabilities, move_into_link_name_space};

use crate::{Error, Result};

/// Enters the user namespace of a process, when it is another one than ours and we have no rights over the machine that
/// would make this needless. Must be called while there is only one thread: the kernel demands it.
///
/// What cannot be entered is left alone: the agent says later which right it misses.
pub fn enter_user_namespace_of(pid: u32) -> Result<()> {
    let own = capabilities(None).map_err(|source| Error::Agent {
        action: "read its own rights",
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
        tracing::debug!(%errno, "the target's user namespace is not ours to enter");
    }
    Ok(())
}
