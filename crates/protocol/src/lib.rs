//! What the two ends of a session say to each other.
//!
//! [`rpc`] is generated from `proto/session.proto`, whose head explains the whole protocol. The other modules have the
//! names of its services and hold what can be decided without doing anything: how requests become headers and back, how
//! datagrams are framed, what a `resolv.conf` means, and [which agents an operation goes to](route()).

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
pub use route::{OPERATIONS, Operation, Reach, Route, route};

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

/// The largest gRPC message that either side accepts. Bulk bytes are no messages, so only a huge environment is near it.
pub const MESSAGE_BYTES: usize = 32 * 1024 * 1024;
