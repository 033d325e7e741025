//! An agent beside a real target: a process with its own root, network, hostname and user. Every operation of the protocol
//! is driven by a client over a real HTTP/2 connection. Needs root, and says so where it is not.

#![expect(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "helpers of tests fail by panicking, as tests do"
)]

mod client;
mod control;
mod dns;
mod env;
mod faults;
mod files;
mod grant;
mod nameserver;
mod namespaces;
mod outgoing;
mod world;
