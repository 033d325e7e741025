//! `standin` as its user meets it: real processes on this machine.
//!
//! - `help`: what the program says about itself
//! - `settings`: which settings are used, and how to see them
//! - `talk`: what is said on standard error, on terminals and elsewhere, and in logs
//! - `environment`: variables of all kinds
//! - `endings`: exit codes, signals, job control
//! - `faults`: sessions that cannot be
//! - `mistakes`: what people get wrong, and are told
//! - `life`: sessions that lose their agent or their target
//! - `containers`: containers of podman as targets
//! - `monitor`: sessions that are watched, recorded and ended by others
//! - `magic`: what settings add by themselves, with the tools that they are for
//! - `unprivileged`: a user without any rights
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod containers;
mod endings;
mod environment;
mod faults;
mod help;
mod life;
mod magic;
mod mistakes;
mod monitor;
mod settings;
mod talk;
mod terminal;
mod unprivileged;
mod world;
