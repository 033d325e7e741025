//! Tests of an agent with a real target: a process with its own root, network, host name and user. A client calls every
//! operation of the protocol over a real HTTP/2 connection. Creating the target needs root.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "helpers of tests fail by panicking, as tests do"
)]

mod bypass;
mod client;
mod control;
mod dns;
mod env;
mod environment;
mod faults;
mod files;
mod grant;
mod memory;
mod nameserver;
mod namespaces;
mod outgoing;
