//! A short-lived child process, for operations that change the state of a whole process.

use nix::errno::Errno;
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork};

/// Runs `work` in a child process. [`Child::wait`] reaps it.
///
/// Other threads of this process may hold any lock, including the allocator's, and do not exist in the child to release
/// it. So `work` may only make system calls: no allocation, no output, no panic.
pub(crate) fn run(work: impl FnOnce()) -> Result<Child, Errno> {
    // SAFETY: by its contract `work` only makes system calls, which is all that a child of a process with several
    // threads may do.
    match unsafe { fork() }? {
        ForkResult::Child => {
            work();
            // SAFETY: it ends the process without running any code of this program, such as exit handlers.
            unsafe { libc::_exit(0) }
        }
        ForkResult::Parent { child } => Ok(Child(child)),
    }
}

#[derive(Debug)]
pub(crate) struct Child(nix::unistd::Pid);

impl Child {
    pub(crate) fn wait(self) {
        // Any other error means that the child was already reaped, so it has exited.
        while waitpid(self.0, None) == Err(Errno::EINTR) {}
    }
}
