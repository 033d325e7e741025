//! The target's files: a real session with a real agent, in one process.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "clippy knows test functions, but not the functions that they share"
)]

/// A target, an agent and a session; how many bytes travel.
mod world;

/// What is asked and done by name.
mod names;

/// Descriptors through FUSE.
mod fuse;

/// Descriptors without FUSE.
mod memory;

/// Programs under supervision, with the session as their host.
mod programs;

/// What it costs, beside the bare operation. For reading, not for judging.
mod speed;
