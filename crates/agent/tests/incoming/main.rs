//! A real target's traffic, redirected to the agent and given to sessions: two network namespaces with a cable between them,
//! the target's and a client's. Needs root, and says so where it is not.

#![expect(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "helpers of tests fail by panicking, as tests do"
)]

mod check;
mod conflicts;
mod connections;
mod datagrams;
mod faults;
mod flows;
mod line;
mod load;
mod mesh;
mod mirror;
mod programs;
mod returning;
mod safety;
mod session;
mod sharing;
mod steal;
mod tls;
mod web;
mod world;
