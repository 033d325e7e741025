//! The target's files: a real session with a real agent, in one process.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "clippy knows test functions, but not the functions that they share"
)]

/// A target, an agent and a session, with a count of the transferred bytes.
mod environment;

/// Calls by path.
mod paths;

/// Descriptors with FUSE.
mod fuse;

/// Descriptors without FUSE.
mod memory;

/// Programs under supervision, with the session as their host.
mod programs;

/// Benchmarks against the native operation. They print numbers and check none.
mod benchmark;
