//! Real programs under supervision, against a made-up target.

/// The made-up target: files from a temporary folder, connections to servers of this process.
mod target;

/// Programs in several languages, compiled once; a language that is not there is said and skipped.
mod programs;

/// Starting, exit codes, signals, the end of everything.
mod launch;

/// Remote files, one call at a time and as programs use them.
mod files;

/// Connections and datagrams to where only the target reaches.
mod outgoing;
