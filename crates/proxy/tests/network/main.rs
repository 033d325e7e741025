//! Real programs in a session with a real agent, beside a target that has its own network: names and connections.

#![expect(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests fail by panicking, as tests do"
)]

/// The target's process.
#[path = "../../../agent/tests/target/namespaces.rs"]
mod namespaces;

/// The target, its network, and a session with it.
mod world;

/// A nameserver inside the target's network.
mod nameserver;

/// Programs in several languages, compiled once; a language that is not there is said and skipped.
#[path = "../../../interceptor/tests/interceptor/programs.rs"]
mod programs;

/// Names, resolved by programs in many languages.
mod names;

/// Which connections leave from where.
mod filters;

/// Connections and datagrams: what a program sees of them.
mod outgoing;
