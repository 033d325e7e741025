//! Errors that occur before the application runs.

use std::path::PathBuf;

use nix::errno::Errno;

/// Why a program could not be started under supervision. [`Error::hint`] tells what to do next.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("no program {} on this machine", .0.display())]
    ProgramNotFound(PathBuf),

    #[error("cannot run {}", program.display())]
    Execute { program: PathBuf, source: Errno },

    #[error("cannot change to the directory {}", directory.display())]
    Directory { directory: PathBuf, source: Errno },

    #[error("{0} contains a zero byte")]
    ZeroByte(&'static str),

    #[error("this process is itself supervised, and the kernel allows one supervisor per process")]
    Nested,

    #[error("this kernel has no seccomp user notification")]
    NoUserNotification,

    #[error("this environment forbids seccomp user notification")]
    Forbidden { source: Errno },

    #[error("the memory of our own child cannot be read")]
    Unreadable { source: Errno },

    #[error("no /proc is mounted")]
    NoProc { source: Errno },

    #[error("cannot hand over the seccomp listener")]
    HandOver { source: Errno },

    #[error("the application's process ended before it was supervised")]
    EndedEarly,

    #[error("cannot {what}")]
    System { what: &'static str, source: Errno },
}

impl Error {
    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::ProgramNotFound(_) => {
                "Check the spelling. Programs always come from this machine, never from the target; give a path if it is not in PATH."
            }
            Self::Execute { .. } => {
                "Check that the file is a program for this machine and that you may execute it."
            }
            Self::Directory { .. } => {
                "The directory in which a program starts must exist on this machine."
            }
            Self::ZeroByte(_) => "Arguments, variables and paths end at a zero byte; remove it.",
            Self::Nested => {
                "Start the second program outside of the first `standin exec`, or without `standin exec`: it is supervised already."
            }
            Self::NoUserNotification => {
                "Linux 5.9 or newer built with CONFIG_SECCOMP_FILTER is needed; `standin diagnose` lists what this machine has."
            }
            Self::Forbidden { .. } => {
                "In a container, allow the seccomp system call: podman and docker take --security-opt seccomp=unconfined, a Kubernetes pod seccompProfile type Unconfined. `standin diagnose` lists what this machine has."
            }
            Self::Unreadable { .. } => {
                "Reading a child's memory needs kernel.yama.ptrace_scope below 2 (`sysctl kernel.yama.ptrace_scope=1`), or the capability SYS_PTRACE; in a container also that process_vm_readv is allowed."
            }
            Self::NoProc { .. } => {
                "Processes are inspected through /proc: `mount -t proc proc /proc`, or start the container with it."
            }
            Self::HandOver { .. } => {
                "Too many files are open; raise the limit with `ulimit -n` or close some."
            }
            Self::EndedEarly => {
                "Something killed it; the kernel log (dmesg) may say what, for example lack of memory."
            }
            Self::System { .. } => {
                "The machine may be out of memory, processes or files: see `ulimit -a`."
            }
        }
    }
}
