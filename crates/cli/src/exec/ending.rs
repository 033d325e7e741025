//! How `standin` ends: as the program ended.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitCode, ExitStatus};

use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{Signal, raise};

use crate::sys;

/// The program's exit code. Of a signal that ended the program we die ourselves, so that a shell sees what it would have
/// seen; where that is impossible, the code is the one that a shell would show.
pub(super) fn end_as(status: ExitStatus) -> ExitCode {
    if let Some(number) = status.signal() {
        if let Ok(signal) = Signal::try_from(number) {
            die_of(signal);
        }
        return code(128 + number);
    }
    code(status.code().unwrap_or(1))
}

fn code(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

/// Returns when the signal ends nobody.
fn die_of(signal: Signal) {
    // The program has left a core if it wanted to. One of ours would be in its place.
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    sys::release(signal);
    let _ = raise(signal);
}
