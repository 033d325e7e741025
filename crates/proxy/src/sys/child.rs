//! A short-lived child of ours, for what changes a whole process.

use nix::errno::Errno;
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork};

/// Runs `work` in a child process, whose end is waited for by [`Child::wait`].
///
/// Other threads of ours may hold any lock, also the allocator's, and do not exist in the child to release it. So `work`
/// makes system calls and nothing else: no allocation, no output, no panic.
pub(crate) fn run(work: impl FnOnce()) -> Result<Child, Errno> {
    // SAFETY: by its contract `work` only makes system calls, which is all that a child of a process with several
    // threads may do.
    match unsafe { fork() }? {
        ForkResult::Child => {
            work();
            // SAFETY: it ends the process and runs nothing of ours.
            unsafe { libc::_exit(0) }
        }
        ForkResult::Parent { child } => Ok(Child(child)),
    }
}

#[derive(Debug)]
pub(crate) struct Child(nix::unistd::Pid);

impl Child {
    pub(crate) fn wait(self) {
        // If somebody else has waited for it, it has ended too.
        while waitpid(self.0, None) == Err(Errno::EINTR) {}
    }
}
