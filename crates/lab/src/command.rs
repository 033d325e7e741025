//! Runs other programs, with errors that show their output.

use std::env;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::error::{Error, ErrorContext as _, Result};

/// How many of the last lines of a failed program's output an error shows.
const MAX_OUTPUT_LINES: usize = 15;

/// A `cargo` command at the top of a repository: the cargo that runs this program, or else the one on the PATH.
///
/// The variables that `cargo run` and `cargo test` set for their own package are removed. A dependency whose build script
/// reads them would be rebuilt, with all of its dependents, whenever cargo is called alternately from here and from a
/// shell.
pub fn cargo(repository: &Path) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(repository);
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// Runs a command to its end and returns its standard output.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("run `{}`", shown(command)))?;
    checked(command, &output)
}

/// Like [`run`], with text for standard input.
pub(crate) fn run_with_input(command: &mut Command, input: &str) -> Result<String> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("run `{}`", shown(command)))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that exits before it has read its input reports the reason itself.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child
        .wait_with_output()
        .with_context(|| format!("wait for `{}`", shown(command)))?;
    checked(command, &output)
}

/// The last lines of a text, for an error message.
pub(crate) fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// The command as a user would type it.
pub(crate) fn shown(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        text.push(' ');
        text.push_str(&argument.to_string_lossy());
    }
    text
}

fn checked(command: &Command, output: &Output) -> Result<String> {
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(stdout);
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let shown_output = if stderr.trim().is_empty() {
        stdout.as_str()
    } else {
        &stderr
    };
    Err(Error::Command {
        command: shown(command),
        status: output.status.to_string(),
        output: tail(shown_output, MAX_OUTPUT_LINES),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_failing_program_shows_its_output() {
        let error = run(Command::new("sh").args(["-c", "echo first; echo second >&2; exit 3"]))
            .expect_err("exit code 3");
        let text = error.to_string();
        assert!(text.contains("exit status: 3"), "{text}");
        assert!(text.contains("| second"), "{text}");
    }

    #[test]
    fn input_reaches_the_program() {
        assert_eq!(
            run_with_input(&mut Command::new("cat"), "hello").unwrap(),
            "hello"
        );
    }

    #[test]
    fn the_tail_is_the_last_lines() {
        assert_eq!(tail("a\nb\nc", 2), "b\nc");
        assert_eq!(tail("a", 5), "a");
    }
}
