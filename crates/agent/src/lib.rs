//! The agent: the part of a session that runs next to the target.
//!
//! An [`Agent`] serves the session protocol for one target process on any byte stream. It acts as the target would: with the
//! target's root directory, credentials and network namespace. All buffers are bounded. A body is only read when the other
//! side has consumed the data before, so a slow reader slows down only its own stream.
//!
//! | module | what it does |
//! |---|---|
//! | [`agent`](mod@agent) | the agent: a target, its thread pools and its grant |
//! | [`connection`] | one client's HTTP/2 connection: routes gRPC calls and raw streams |
//! | [`control`] | `Hello` and `Ping` |
//! | [`env`](mod@env) | the target's environment, as the kernel keeps it |
//! | [`files`] | file operations: paths resolve inside the target's root, on threads with the target's credentials |
//! | [`dns`] | DNS lookups with the target's configuration |
//! | [`outgoing`] | outgoing sockets: created by a thread in the target's network namespace, polled by the runtime |
//! | [`incoming`] | incoming traffic: redirects ports of the target to the agent, and steals or mirrors it for sessions |
//! | [`grant`] | enforces the policy for sessions |
//! | [`target`], [`container`], [`identity`], [`user_namespace`] | finds the target; its credentials and namespaces |
//! | [`workers`] | thread pools whose threads have the target's credentials or namespaces |
//! | [`sys`] | system calls that need `unsafe` |

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

pub use agent::Agent;
pub use container::process_of_container;
pub use error::{Error, Result};
pub use incoming::{
    AllClaims, ClaimedPort, ClientReachability, PatternVisibility, ReachabilityWatch,
};
pub use splitter::Memory;
pub use user_namespace::enter_user_namespace_of;
