//! The part of a session that runs beside the target.
//!
//! An [`Agent`] knows one target process and serves the session protocol for it on any byte stream. What it does, it does
//! as the target would:
//!
//! - [`files`]: paths resolve inside the target's root, by threads that have the target's user, groups and capabilities;
//! - [`outgoing`] and [`dns`]: sockets are made by a thread inside the target's network namespace, and driven by the
//!   runtime that everything else runs on, so thousands of connections need no threads of their own;
//! - [`env`](mod@env): as the kernel keeps it;
//! - [`incoming`]: what arrives at chosen ports of the target reaches the agent first, and whoever asked for it.
//!
//! Nothing is buffered without a bound. A body is only read when the other side takes what was read before, so a slow
//! reader slows its own source down and nobody else.

mod agent;
mod connection;
mod container;
mod control;
mod dns;
mod env;
mod error;
mod files;
mod grant;
mod identity;
pub mod incoming;
mod outgoing;
mod sys;
mod target;
mod user_namespace;
mod workers;

pub use agent::{Agent, raise_descriptor_limit};
pub use container::process_of_container;
pub use error::{Error, Result};
pub use incoming::{AllHeld, HeldPort, Patterns, Presence, Reachable};
pub use user_namespace::enter_user_namespace_of;
