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
//! [`Launch`] starts a program, [`Supervised`] is one that runs. The noun modules are `files`, `outgoing` and
//! `hostname`; the environment is an argument of [`Launch`].

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
mod launch;
pub mod measure;
mod metadata;
mod notification;
mod outgoing;
mod process;
mod restarts;
mod supervisor;
mod sys;
mod syscalls;
mod workers;

pub use nix::errno::Errno;

pub use crate::diagnose::{Diagnosis, check, diagnose};
pub use crate::directory::Directory;
pub use crate::error::Error;
pub use crate::host::{
    Answer, Host, Instead, Intent, Notice, OpenOptions, PathChoice, RemoteFiles,
};
pub use crate::launch::{Launch, Prepared, Signaller, Supervised};
pub use crate::metadata::{FileSystem, Metadata, Moment, SetTime, Times};
pub use crate::outgoing::{Connection, Destination, Names, Outgoing, Registration, Transport};
