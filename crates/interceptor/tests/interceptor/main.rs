//! Real programs under supervision, with a simulated target.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "clippy knows test functions, but not the functions that they share"
)]

/// The simulated target: files in a temporary directory, connections to servers of this process.
mod target;

/// Programs in several languages, compiled once. A missing compiler fails the tests that need it.
mod programs;

/// Start, exit codes, signals and the end of all processes.
mod launch;

/// Environments of the supervisor: unprivileged users, restrictions, and the errors that report them.
mod environments;

/// Remote files: single calls, and real programs.
mod files;

/// The host name and the domain name.
mod hostname;

/// Connections and datagrams to addresses that only the target reaches.
mod outgoing;

/// Servers whose clients connect to the target.
mod incoming;

/// Unusual uses of sockets.
mod sockets;

/// Signals, with and without `SA_RESTART`.
mod signals;

/// The overhead of supervision.
mod speed;

/// The same tour in many languages.
mod languages;

/// All kinds of processes and threads.
mod processes;

/// Debuggers on supervised programs.
mod debuggers;
