//! The protocol between the client and the agents of a session.
//!
//! The head of `proto/session.proto` explains the whole protocol. This crate has the generated types and the pure functions
//! around them: it does no I/O.
//!
//! | module | what it does |
//! |---|---|
//! | [`rpc`] | messages, clients and servers, generated from `proto/session.proto` |
//! | [`control`] | protocol version and features |
//! | [`env`](mod@env) | parses a process's environment |
//! | [`files`] | headers of file streams, references to files |
//! | [`dns`] | `resolv.conf`, hosts file, DNS messages |
//! | [`outgoing`] | headers of outgoing connections, framing of datagrams |
//! | [`incoming`] | headers of incoming connections |
//! | [`failure`] | errors in gRPC statuses and in headers |
//! | [`grant`] | the policy for a session |
//! | [`route()`] | which agents receive an operation |
//! | [`stream`] | reads and writes headers of raw streams |

pub mod control;
pub mod dns;
pub mod env;
mod error;
pub mod failure;
pub mod files;
pub mod grant;
pub mod incoming;
pub mod outgoing;
mod route;
pub mod stream;

pub use error::{Error, Result};
pub use route::{Fanout, OPERATIONS, Operation, Route, route};

/// Messages, clients and servers of `proto/session.proto`.
#[allow(
    unreachable_pub,
    clippy::allow_attributes_without_reason,
    clippy::needless_pass_by_value,
    clippy::missing_errors_doc,
    clippy::wildcard_imports,
    missing_debug_implementations,
    reason = "the code is generated"
)]
pub mod rpc {
    tonic::include_proto!("standin.session.v1");
}

/// `proto/session.proto`, compiled: an encoded `FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/session.bin"));

/// The largest gRPC message that either side accepts. Bulk data is not sent in messages, so only a huge environment comes
/// close to it.
pub const MAX_MESSAGE_BYTES: usize = 32 * 1024 * 1024;
