//! The programs that the benches run, in one executable. It is a separate program so that it is built like users'
//! programs: optimised.
//!
//! | role | what it does |
//! |---|---|
//! | `target` | the session's target: a tree of files that only it sees, and servers |
//! | `worker` | executes requests from standard input and reports how long each took; runs bare and in a session |
//! | `relay` | a plain relay, with or without TLS, as the baseline of a chain of hops; can also reset its connections at an interval |
//! | `carrier` | a plain relay that the API server reaches as an aggregated API server |
//! | `far-end` | the carrier's other end on the developer's machine: together the baseline of an operator session's path |
//! | `clients` | many simulated sessions with an operator in one process |
//! | `http` | an application that responds to requests, or is slow or dead |
//! | `stalling` | an HTTP/2 application that responds to `GET` and reads no body |
//! | `hostile-member` | the API server of a member cluster that tries to use up what its Primary has |
//! | `proxy` | a plain HTTP proxy in front of an application |
//! | `monitor` | emits the events of a session to a monitor and measures their cost |
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program: stdout carries results, stderr carries diagnostics"
)]

mod carrier;
mod clients;
mod hostile_member;
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
    /// Execute the requests that are read from standard input
    Worker,
    /// Forward connections to another address
    Relay(relay::RelayArguments),
    /// Forward connections through a WebSocket that the API server proxies
    Carrier(carrier::CarrierArguments),
    /// Forward the connections of a carrier to another address
    FarEnd(carrier::FarEndArguments),
    /// Open sessions with an operator, as requested on standard input
    Clients(clients::ClientsArguments),
    /// Respond to HTTP requests
    Http(http1::HttpArguments),
    /// Respond to `GET` over HTTP/2, and read no body
    Stalling(http2::StallingArguments),
    /// Serve the API of a member cluster in ways that harm its Primary
    HostileMember(hostile_member::HostileMemberArguments),
    /// Forward HTTP requests to another address
    Proxy(http1::ProxyArguments),
    /// Measure the cost of monitoring a session
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
        Role::Stalling(arguments) => http2::run_stalling(&arguments),
        Role::HostileMember(arguments) => hostile_member::run(&arguments),
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
