//! Catches the system calls of a program, from outside, and has them answered by a [`Host`].
//!
//! The program is an ordinary child process with a seccomp filter. The filter makes chosen calls wait; we read what
//! they ask for, and answer with a value, with a real descriptor, or by letting the kernel go on. Nothing of ours runs
//! in the program, so it may be written in anything.
//!
//! ```text
//! supervisor (us) ── answers calls
//!   └─ watcher ── a fork of us; ends everything below it when we end, however we end
//!        └─ application ── and whatever it starts
//! ```
//!
//! This is no sandbox: a program that wants to escape can. It is for programs that do not know that they are elsewhere.
//!
//! # Limits
//!
//! - Programs of another architecture, in another root directory or mount namespace (`chroot`, `pivot_root`, `setns`),
//!   or with memory that we may not read, are local; [`Notice`] says so where it is no choice of theirs.
//! - Programs are started from this machine's files, and from a working directory of the target only by absolute path.
//! - A signal whose handler is without `SA_RESTART` can fail a call with `EINTR` in the microseconds until we receive it,
//!   also one that natively is never interrupted. Before Linux 5.19, until it is answered.
//! - A working directory at the target is a process's, also where threads have their own (`unshare(CLONE_FS)`) or
//!   processes share one (`CLONE_FS`). A child inherits it, unless its parent is killed before the child's first call
//!   about a file.
//! - A descriptor of a remote file that is opened with `O_PATH` is one for reading: symbolic links cannot be opened so, and
//!   files without a right to read neither.
//! - Remote paths cannot be watched; file handles, `chattr` attributes and `chroot` are refused there.
//! - Unix sockets that the program itself makes are made on this machine, whatever their path, which is told.
//! - A socket that is bound to a device of this machine is released from it to lead to the target. Who may not do that gets
//!   `ENETUNREACH`.
//! - Who may not install filters freely gives up gaining privileges: set-user-ID programs run as the caller.
//! - Limits of datagram sockets are told in the `outgoing` module, those of sockets that listen in `incoming`.
//!
//! [`Launch`] starts a program, [`Supervised`] is one that runs. The noun modules are `files`, `outgoing`,
//! `incoming` and `hostname`; the environment is an argument of [`Launch`].

#[cfg(not(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
compile_error!("the interceptor knows the system calls of Linux on x86_64 and aarch64");

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
    Answer, DestinationChoice, Host, Instead, Intent, ListenerChoice, Notice, OpenOptions,
    PathChoice, RemoteFiles, Then,
};
pub use crate::incoming::{Delivery, DeliveryRegistration, Listener, Listening, is_accepted};
pub use crate::launch::{Launch, Prepared, Signaller, Supervised};
pub use crate::metadata::{FileSystem, Metadata, Moment, SetTime, Times};
pub use crate::outgoing::{Connection, Destination, Names, Outgoing, Registration, Transport};
