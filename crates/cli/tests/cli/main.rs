//! Tests of `standin` as a user runs it: with real processes on this machine.
//!
//! - `help`: help texts, version, completions, `diagnose`
//! - `settings`: which settings are used, and how to print them
//! - `output`: messages on standard error, on terminals and elsewhere, and logs
//! - `environment`: environment variables
//! - `exit`: exit codes, signals, job control
//! - `start_failures`: sessions that cannot start
//! - `user_errors`: common mistakes on the command line
//! - `agent_loss`: sessions that lose their agent or their target
//! - `cluster`: the clusters of a hub
//! - `containers`: podman containers as targets
//! - `build_tools`: programs outside of the session, in a directory of the target
//! - `monitor`: sessions that are monitored, recorded and ended by another process
//! - `ui`: the server of the page
//! - `magic`: the `magic` settings, with the tools that they are for
//! - `unprivileged`: a user without any rights
//! - `support`, `terminal`: shared helpers
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod agent_loss;
mod build_tools;
mod cluster;
mod containers;
mod environment;
mod exit;
mod help;
mod magic;
mod monitor;
mod output;
mod settings;
mod start_failures;
mod support;
mod terminal;
mod ui;
mod unprivileged;
mod user_errors;
