//! Real programs in a session with a real agent, and a target with its own network namespace: DNS and connections.

#![expect(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "helpers of tests fail by panicking, as tests do"
)]

/// The target's process.
#[path = "../../../agent/tests/target/namespaces.rs"]
mod namespaces;

/// The target, its network, and a session with it.
mod environment;

/// A nameserver inside the target's network.
mod nameserver;

/// Programs in several languages, compiled once.
#[path = "../../../interceptor/tests/interceptor/programs.rs"]
mod programs;

/// DNS names, resolved by programs in many languages.
mod dns;

/// Which connections are remote, and which local.
mod filters;

/// Outgoing connections and datagrams, as a program sees them.
mod outgoing;
