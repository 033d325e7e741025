//! Intercepts the system calls of a program from another process, and lets a [`Host`] perform them.
//!
//! The program is an ordinary child process with a seccomp filter. The filter suspends selected calls (seccomp user
//! notification). The supervisor reads their arguments and completes them with a value, with a real descriptor, or by
//! letting the kernel execute them. No code of ours runs inside the program, so it may be written in any language.
//!
//! ```text
//! supervisor (this process) ── completes calls
//!   └─ watcher ── a fork of the supervisor; kills everything below it when the supervisor ends, for any reason
//!        └─ application ── and all processes that it starts
//! ```
//!
//! This is not a sandbox: a program that wants to escape can. It is meant for programs that are unaware of it.
//!
//! # Modules
//!
//! | module | what it does |
//! |---|---|
//! | `launch` | starts a program under supervision: [`Launch`], [`PreparedLaunch`], [`SupervisedProcess`] |
//! | `supervisor`, `notification`, `workers` | receive the intercepted calls, read their arguments, complete them |
//! | `restarts` | matches calls that are repeated after a signal, on kernels before Linux 5.19 |
//! | `filter`, `syscalls` | the seccomp filter, and the table of system calls |
//! | `host` | the [`Host`] and [`RemoteFiles`] traits: what is remote, and how it is performed |
//! | `files` | calls about files: path resolution, and the operations on remote files |
//! | `outgoing` | outgoing connections and datagrams |
//! | `incoming` | listening sockets, and connections that the host delivers to them |
//! | `hostname` | the host name and the domain name: `uname`, `sethostname`, `setdomainname`, and their files in `/proc` |
//! | `process` | state of the application's processes, and the programs that they execute |
//! | `socket_table` | queries for the kernel's sockets (`sock_diag`, `/proc/net`) |
//! | `directory`, `metadata` | a local directory as [`RemoteFiles`]; file metadata |
//! | `diagnose`, [`measure`], `error` | checks of the kernel, measurement of the overhead, errors |
//! | `sys` | all `unsafe` code: wrappers of single system calls |
//!
//! # Limits
//!
//! - Programs of another architecture, in another root directory or mount namespace (`chroot`, `pivot_root`, `setns`),
//!   or with memory that we may not read, are local. A [`Notice`] reports the cases that the program did not choose.
//! - Programs are executed from the files of this machine. In a working directory on the target they can only be
//!   executed by absolute path.
//! - A skipped program whose working directory is on the target is executed in the directory with the same path on this
//!   machine. If there is none, or if another process traces the caller, `execve` fails with `EREMOTE`, and a
//!   [`Notice`] reports it.
//! - A signal whose handler lacks `SA_RESTART` can fail a call with `EINTR` in the microseconds before we receive the
//!   call, even a call that is natively never interrupted. Before Linux 5.19 this is possible until the call is
//!   completed.
//! - A working directory on the target belongs to a process, even if its threads have their own (`unshare(CLONE_FS)`)
//!   or several processes share one (`CLONE_FS`). A child inherits it, unless its parent is killed before the child's
//!   first call about a file.
//! - A remote file that is opened with `O_PATH` gets a readable descriptor instead: symbolic links and files without
//!   read permission cannot be opened in this mode.
//! - `/proc/sys/kernel/hostname` and `domainname` are read-only; the names are set with `sethostname` and
//!   `setdomainname`. A UTS namespace of its own has the names of the session until one is set in it.
//! - Remote paths cannot be watched; file handles, `chattr` attributes and `chroot` are refused for them.
//! - Unix sockets that the program binds are created on this machine, regardless of their path; a [`Notice`] reports
//!   remote paths.
//! - A socket that is bound to a network device of this machine is unbound from it when it is connected to the target.
//!   If we lack the permission for that, the call fails with `ENETUNREACH`.
//! - An unprivileged supervisor must set `no_new_privs`: set-user-ID programs then run with the privileges of the
//!   caller.
//! - The limits of datagram sockets are documented in the `outgoing` module, those of listening sockets in `incoming`.

#[cfg(not(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
compile_error!("the interceptor supports only Linux on x86_64 and aarch64");

mod diagnose;
mod directory;
mod error;
mod files;
mod filter;
mod host;
mod hostname;
mod incoming;
mod launch;
pub mod measure;
mod metadata;
mod notification;
mod outgoing;
mod process;
mod restarts;
mod socket_table;
mod supervisor;
mod sys;
mod syscalls;
mod workers;

pub use nix::errno::Errno;

pub use crate::diagnose::{Diagnosis, check, diagnose};
pub use crate::directory::Directory;
pub use crate::error::Error;
pub use crate::host::{
    CallResult, Completion, DestinationChoice, Disposition, Host, Intent, ListenerChoice, Notice,
    OpenOptions, PathChoice, RemoteFiles,
};
pub use crate::incoming::{
    AppConnection, CloseEvents, IncomingRegistration, Listener, PendingListener, is_accepted,
};
pub use crate::launch::{Launch, PreparedLaunch, Signaller, SupervisedProcess};
pub use crate::metadata::{FileSystemStats, Metadata, SetTime, Times, Timestamp};
pub use crate::outgoing::{
    Destination, OutgoingConnection, OutgoingRegistration, PendingConnection, SocketAddresses,
    Transport,
};
