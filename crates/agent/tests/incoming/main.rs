//! Incoming traffic of a real target, redirected to the agent and routed to sessions. Uses two network namespaces that are
//! connected by a veth pair, the target's and a client's, so it needs root.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "helpers of tests fail by panicking, as tests do"
)]

mod check;
mod conflicts;
mod connections;
mod datagrams;
mod environment;
mod faults;
mod flows;
mod link_loss;
mod load;
mod memory;
mod mesh;
mod mirror;
mod programs;
mod reclaim;
mod safety;
mod session;
mod sharing;
mod steal;
mod tls;
mod web;
