//! Anonymous network namespaces: they exist as long as a process in them or a descriptor of them does.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::process::Command;
use std::thread;

use nix::sched::{CloneFlags, setns, unshare};

use super::WireError;

/// A new network namespace, which ends when this value is dropped.
#[derive(Debug)]
pub(super) struct NetworkNamespace {
    handle: OwnedFd,
}

impl NetworkNamespace {
    pub(super) fn create() -> Result<Self, WireError> {
        let failed = |source| WireError::Namespace {
            action: "create",
            source,
        };
        in_own_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| failed(errno.into()))?;
            let handle = File::open("/proc/thread-self/ns/net").map_err(failed)?;
            Ok(Self {
                handle: handle.into(),
            })
        })
    }
}

impl AsFd for NetworkNamespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

/// Runs `work` in a network namespace. It runs in its own thread, so the caller's namespace does not change.
///
/// Sockets that it opens stay in the namespace wherever they are used later, and so do the programs that it starts.
pub(super) fn in_namespace<T: Send>(
    namespace: BorrowedFd<'_>,
    work: impl FnOnce() -> Result<T, WireError> + Send,
) -> Result<T, WireError> {
    in_own_thread(|| {
        setns(namespace, CloneFlags::CLONE_NEWNET).map_err(|errno| WireError::Namespace {
            action: "enter",
            source: errno.into(),
        })?;
        work()
    })
}

/// Runs `ip` with these arguments in the network namespace of the calling thread.
pub(super) fn ip(arguments: &str) -> Result<(), WireError> {
    let output = Command::new("ip")
        .args(arguments.split_whitespace())
        .output()
        .map_err(WireError::IpNotRun)?;
    if output.status.success() {
        return Ok(());
    }
    Err(WireError::IpFailed {
        arguments: arguments.to_owned(),
        message: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    })
}

/// A path under which another process, such as `ip`, can open a namespace of which only we have a descriptor.
pub(super) fn proc_path(namespace: BorrowedFd<'_>) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd())
}

fn in_own_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| match scope.spawn(work).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}
