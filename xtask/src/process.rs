//! Runs other programs: prints the command line and the duration, and explains what to do when a program is missing.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, PipeReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{env, thread};

use anyhow::{Context, Result, anyhow, bail};

use crate::{duration, environment};

/// How long to wait for further output after a program exited. What the program itself wrote is in the pipe by then; only
/// something it left running can keep the pipe open.
const GRACE_FOR_OUTPUT: Duration = Duration::from_secs(2);

/// The result of a program that exited.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    /// Standard output and standard error, in the order in which they were written.
    pub(crate) output: String,
}

/// Runs a program and shows its output at once. Its standard output is redirected to standard error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    announce(command);
    let started = Instant::now();
    let status = command
        .stdout(Stdio::from(io::stderr()))
        .status()
        .map_err(|error| cannot_start(command, error))?;
    eprintln!("    ({})", duration::display(started.elapsed()));
    ensure_success(command, status)
}

/// Runs a program without announcing it and returns what it printed to standard output. Its standard error
/// is shown at once.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let finished = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| cannot_start(command, error))?;
    ensure_success(command, finished.status)?;
    String::from_utf8(finished.stdout)
        .with_context(|| format!("`{}` printed bytes that are not UTF-8", shown(command)))
}

/// Runs a program, shows its output on standard error as it comes, and keeps a copy. A program that fails is not an
/// error here: the caller evaluates its output.
pub(crate) fn tee(command: Command) -> Result<Finished> {
    announce(&command);
    let started = Instant::now();
    let finished = copy_output(command, io::stderr())?;
    eprintln!("    ({})", duration::display(started.elapsed()));
    Ok(finished)
}

/// Runs a program and copies its output, both to `copy` and into the result.
pub(crate) fn copy_output(
    mut command: Command,
    copy: impl Write + Send + 'static,
) -> Result<Finished> {
    let (reader, writer) = io::pipe().context("making a pipe")?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(writer.try_clone().context("making a pipe")?)
        .stderr(writer)
        .spawn()
        .map_err(|error| cannot_start(&command, error))?;
    let description = shown(&command);
    // The command holds our copies of the pipe's writing end, and the reader sees the end only when all are closed.
    drop(command);

    let output = Arc::new(Mutex::new(String::new()));
    let (finished_sender, finished_receiver) = mpsc::channel::<()>();
    let reader_output = Arc::clone(&output);
    thread::spawn(move || {
        copy_lines(reader, copy, &reader_output);
        drop(finished_sender);
    });

    let status = child
        .wait()
        .with_context(|| format!("waiting for `{description}`"))?;
    if finished_receiver.recv_timeout(GRACE_FOR_OUTPUT) == Err(RecvTimeoutError::Timeout) {
        eprintln!(
            "warning: something that `{description}` started is still running and keeps its output open"
        );
    }
    let output = output
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    Ok(Finished { status, output })
}

/// The exit code that corresponds to a program's exit status. A program that was killed has failed.
pub(crate) fn exit_code(status: ExitStatus) -> ExitCode {
    ExitCode::from(
        status
            .code()
            .and_then(|code| u8::try_from(code).ok())
            .unwrap_or(1),
    )
}

/// The program's path, when it is on the search path.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os(environment::PATH)?)
        .map(|folder| folder.join(name))
        .find(|candidate| is_executable(candidate))
}

/// The command line, quoted as a shell would want it, with the program's name instead of its path.
pub(crate) fn shown(command: &Command) -> String {
    std::iter::once(program_name(command.get_program()))
        .chain(command.get_args().map(quoted))
        .collect::<Vec<_>>()
        .join(" ")
}

fn announce(command: &Command) {
    match command.get_current_dir() {
        Some(folder) => eprintln!("==> {}  (in {})", shown(command), folder.display()),
        None => eprintln!("==> {}", shown(command)),
    }
}

fn copy_lines(reader: PipeReader, mut copy: impl Write, output: &Mutex<String>) {
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    while reader
        .read_until(b'\n', &mut line)
        .is_ok_and(|count| count > 0)
    {
        // A failed write to the copy must not stop the program that is being run.
        let _ = copy.write_all(&line);
        output
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push_str(&String::from_utf8_lossy(&line));
        line.clear();
    }
}

fn ensure_success(command: &Command, status: ExitStatus) -> Result<()> {
    if !status.success() {
        bail!("`{}` failed ({status})", shown(command));
    }
    Ok(())
}

fn cannot_start(command: &Command, error: io::Error) -> anyhow::Error {
    let program = program_name(command.get_program());
    if error.kind() != io::ErrorKind::NotFound {
        return anyhow!(error).context(format!("starting `{}`", shown(command)));
    }
    // A missing folder gives the same error as a missing program.
    if let Some(folder) = command.get_current_dir().filter(|folder| !folder.is_dir()) {
        return anyhow!(
            "the folder {} does not exist, so `{}` cannot run in it",
            folder.display(),
            shown(command)
        );
    }
    anyhow!("`{program}` was not found on PATH. {}", remedy(&program))
}

/// What to do when a program is missing.
pub(crate) fn remedy(program: &str) -> String {
    match program {
        "cargo" | "rustc" => "Install Rust with rustup (https://rustup.rs)".to_owned(),
        "go" => "Install Go 1.24 or newer (https://go.dev/dl) and put its bin folder on PATH".to_owned(),
        "git" => "Install it with `apt-get install git`".to_owned(),
        "node" | "python3" => {
            "Run `cargo xtask test --only packages`, which installs the Debian packages that are missing".to_owned()
        }
        "apt-get" | "dpkg-query" => {
            "Supported machines are Debian 12 and 13 and Ubuntu 22.04 and 24.04; elsewhere install the programs \
             that README.md lists and leave the phase `packages` out with --only"
                .to_owned()
        }
        _ => format!("Install `{program}` and try again"),
    }
}

fn program_name(program: &OsStr) -> String {
    Path::new(program)
        .file_name()
        .unwrap_or(program)
        .to_string_lossy()
        .into_owned()
}

fn quoted(argument: &OsStr) -> String {
    let text = argument.to_string_lossy();
    let plain =
        |character: char| character.is_ascii_alphanumeric() || "-_=./,:@%+".contains(character);
    if !text.is_empty() && text.chars().all(plain) {
        text.into_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata()
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn both_streams_are_kept_in_order_and_the_status_too() {
        let finished = copy_output(
            shell("echo one; echo two >&2; printf three; exit 7"),
            io::sink(),
        )
        .unwrap();
        assert_eq!(finished.output, "one\ntwo\nthree");
        assert_eq!(finished.status.code(), Some(7));
    }

    #[test]
    fn a_process_left_running_does_not_hold_the_caller() {
        let started = Instant::now();
        let finished = copy_output(shell("echo done; sleep 60 & echo $!"), io::sink()).unwrap();
        let (first, left_running) = finished.output.trim().split_once('\n').unwrap();
        assert_eq!(first, "done");
        assert!(started.elapsed() < Duration::from_secs(30));
        output(Command::new("kill").arg(left_running)).unwrap();
    }

    #[test]
    fn a_missing_program_is_reported_with_its_remedy() {
        let error = output(&mut Command::new("a-program-that-is-not-there")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "`a-program-that-is-not-there` was not found on PATH. Install `a-program-that-is-not-there` and try again"
        );
    }

    #[test]
    fn a_missing_folder_is_not_blamed_on_the_program() {
        let error =
            output(Command::new("sh").current_dir("/a-folder-that-is-not-there")).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("the folder /a-folder-that-is-not-there does not exist"),
            "{error}"
        );
    }

    #[test]
    fn a_failure_names_the_command_line() {
        let error = output(&mut shell("exit 3")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "`sh -c 'exit 3'` failed (exit status: 3)"
        );
    }
}
