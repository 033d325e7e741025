//! Ends `standin` like the program ended.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitCode, ExitStatus};

use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{Signal, raise};

use crate::sys;

/// The program's exit code. If a signal ended the program, this process ends itself by the same signal, so that a shell sees
/// the same status as without `standin`. If that is impossible, the code is the one that a shell would show.
pub(super) fn exit_like(status: ExitStatus) -> ExitCode {
    if let Some(number) = status.signal() {
        if let Ok(signal) = Signal::try_from(number) {
            raise_default(signal);
        }
        return code(128 + number);
    }
    code(status.code().unwrap_or(1))
}

fn code(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

/// Returns if the signal does not end the process.
fn raise_default(signal: Signal) {
    // The program has written its own core dump. Another one could overwrite it.
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    sys::release(signal);
    let _ = raise(signal);
}
