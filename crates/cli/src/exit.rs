//! The exit codes of `standin`, as shells and programs like `env` and `timeout` use them.

use std::process::ExitCode;

use nix::errno::Errno;
use proxy::LaunchError;

/// Standin itself failed: the program was not started.
pub(crate) const FAILED: u8 = 125;
/// The program was found and could not be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// The program was not found.
pub(crate) const NOT_FOUND: u8 = 127;

/// The exit code for an error.
pub(crate) fn of(error: &anyhow::Error) -> ExitCode {
    ExitCode::from(match error.downcast_ref::<LaunchError>() {
        Some(
            LaunchError::ProgramNotFound(_)
            | LaunchError::Execute {
                source: Errno::ENOENT,
                ..
            },
        ) => NOT_FOUND,
        Some(LaunchError::Execute { .. }) => NOT_EXECUTABLE,
        _ => FAILED,
    })
}
