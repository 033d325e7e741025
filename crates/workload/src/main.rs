//! What the benches measure, as a program of its own that is built as users' programs are: optimised.
//!
//! - `target` is the process that is stood in for: files in a tree of its own, and servers beside them.
//! - `worker` does what it is told on standard input, and says how long it took. It runs bare and in a session.
//! - `relay` is a plain relay, with or without TLS: what a chain of hops costs without us. It can also cut what it
//!   carries every now and then.
//! - `carrier` is a plain relay that the API server reaches as one of its own, and `far-end` its other end on the
//!   developer's machine: what the way of an operator's session costs without us.
//! - `clients` has as many sessions with an operator as it is told, in one process.
//! - `http` is an application that answers requests, healthy or not, and `proxy` a plain proxy in front of one.
//! - `monitor` does to a session's monitor what a session does, and says what that costs.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program: stdout carries results, stderr carries talk"
)]

mod carrier;
mod clients;
mod http1;
mod http2;
mod monitor;
mod relay;
mod target;
mod worker;

use std::process::ExitCode;

use clap::Parser;

#[derive(Debug, Parser)]
#[command(name = "workload")]
enum Role {
    /// Serve files and connections, in a mount namespace of its own
    Target(target::TargetArguments),
    /// Do what standard input says
    Worker,
    /// Carry connections to another place
    Relay(relay::RelayArguments),
    /// Carry connections to a WebSocket that comes through the API server
    Carrier(carrier::CarrierArguments),
    /// Carry what comes through a carrier to another place
    FarEnd(carrier::FarEndArguments),
    /// Have sessions with an operator, as standard input says
    Clients(clients::ClientsArguments),
    /// Answer HTTP requests
    Http(http1::HttpArguments),
    /// Carry HTTP requests to another place
    Proxy(http1::ProxyArguments),
    /// Measure what it costs a session to be watched
    Monitor(monitor::MonitorArguments),
}

fn main() -> ExitCode {
    let result = match Role::parse() {
        Role::Target(arguments) => target::run(&arguments),
        Role::Worker => worker::run(),
        Role::Relay(arguments) => relay::run(arguments),
        Role::Carrier(arguments) => carrier::run(arguments),
        Role::FarEnd(arguments) => carrier::run_far_end(arguments),
        Role::Clients(arguments) => clients::run(arguments),
        Role::Http(arguments) => http1::run(arguments),
        Role::Proxy(arguments) => http1::run_proxy(arguments),
        Role::Monitor(arguments) => monitor::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("workload: {error:#}");
            ExitCode::FAILURE
        }
    }
}
