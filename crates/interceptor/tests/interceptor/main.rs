//! Real programs under supervision, against a made-up target.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "clippy knows test functions, but not the functions that they share"
)]

/// The made-up target: files from a temporary folder, connections to servers of this process.
mod target;

/// Programs in several languages, compiled once; a language that is not there is said and skipped.
mod programs;

/// Starting, exit codes, signals, the end of everything.
mod launch;

/// Where supervision happens: who may, where it is forbidden, and what is then said.
mod surroundings;

/// Remote files, one call at a time and as programs use them.
mod files;

/// Connections and datagrams to where only the target reaches.
mod outgoing;

/// Servers, whose clients are the target's.
mod incoming;

/// Unusual things that programs do to sockets.
mod sockets;

/// Signals, with and without `SA_RESTART`.
mod signals;

/// What supervision costs.
mod speed;

/// The same tour through programs in many languages.
mod languages;

/// Every way to make a process or a thread.
mod processes;

/// Debuggers on programs under supervision.
mod debuggers;
