//! Runs the programs that build images.

use std::process::{Command, Output, Stdio};

use super::ImageError;

/// How many of the last lines of a program's standard error an error shows.
const MAX_STDERR_LINES: usize = 6;

/// Runs the program to its end and returns its standard output.
pub(crate) fn output_of(command: &mut Command) -> Result<String, ImageError> {
    let output =
        command
            .stdin(Stdio::null())
            .output()
            .map_err(|source| ImageError::CommandNotStarted {
                program: program_of(command),
                source,
            })?;
    check(command, &output)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs `producer | consumer`. The consumer's failure is reported first, because it usually is what makes the
/// producer fail.
pub(crate) fn pipe(producer: &mut Command, consumer: &mut Command) -> Result<(), ImageError> {
    let mut producing = producer
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|source| ImageError::CommandNotStarted {
            program: program_of(producer),
            source,
        })?;
    if let Some(stream) = producing.stdout.take() {
        consumer.stdin(stream);
    }
    let consumed = consumer.output();
    // The consumer's `Command` keeps the reading end of the pipe open until its input is replaced. Without this, a
    // producer whose consumer did not start would block forever.
    consumer.stdin(Stdio::null());
    let produced = producing.wait();

    let output = consumed.map_err(|source| ImageError::CommandNotStarted {
        program: program_of(consumer),
        source,
    })?;
    check(consumer, &output)?;
    let status = produced.map_err(|source| ImageError::CommandNotStarted {
        program: program_of(producer),
        source,
    })?;
    if status.success() {
        return Ok(());
    }
    Err(ImageError::CommandFailed {
        program: program_of(producer),
        status,
        message: "it exited before its output was complete".to_owned(),
    })
}

fn check(command: &Command, output: &Output) -> Result<(), ImageError> {
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = stderr.trim().lines().collect();
    let first_kept = lines.len().saturating_sub(MAX_STDERR_LINES);
    Err(ImageError::CommandFailed {
        program: program_of(command),
        status: output.status,
        message: lines[first_kept..].join("; "),
    })
}

fn program_of(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}
