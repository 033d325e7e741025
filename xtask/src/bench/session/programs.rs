//! The programs of the bench: builds, starts, controls and stops them.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;

use crate::bench::Extent;
use crate::{process, workspace};

/// The number of KiB in a MiB.
const KIBIBYTE: f64 = 1024.0;

#[derive(Clone, Debug)]
pub(in crate::bench) struct Programs {
    pub(in crate::bench) standin: PathBuf,
    pub(in crate::bench) standind: PathBuf,
    pub(in crate::bench) workload: PathBuf,
    /// A static program that prints one word. `None` without Go.
    pub(in crate::bench) hello: Option<PathBuf>,
}

impl Programs {
    /// Builds everything, as the caller and never as root.
    pub(in crate::bench) fn build() -> Result<()> {
        let root = workspace::root()?;
        let packages = [
            "--package",
            "cli",
            "--package",
            "server",
            "--package",
            "workload",
        ];
        process::run(
            lab::cargo(&root)
                .args(["build", "--release", "--locked"])
                .args(packages),
        )?;
        if process::find_program("go").is_none() {
            eprintln!("Go is not installed: the start of a static Go program is not measured");
            return Ok(());
        }
        process::run(
            Command::new("go")
                .args(["build", "-o"])
                .arg(Self::folder()?.join("hello-go"))
                .arg(root.join("xtask/src/bench/session/hello.go"))
                .env("CGO_ENABLED", "0"),
        )
    }

    /// The programs of the given folder, or else those of [`Programs::build`].
    pub(in crate::bench) fn find(extent: &Extent) -> Result<Self> {
        let folder = match &extent.programs {
            Some(folder) => std::path::absolute(folder)?,
            None => Self::folder()?,
        };
        Ok(Self {
            standin: folder.join("standin"),
            standind: folder.join("standind"),
            workload: folder.join("workload"),
            hello: Some(folder.join("hello-go")).filter(|path| path.is_file()),
        })
    }

    fn folder() -> Result<PathBuf> {
        Ok(workspace::target()?.join("release"))
    }
}

/// The log of the programs of the last run.
pub(in crate::bench) fn log_path() -> Result<PathBuf> {
    Ok(workspace::target()?.join("bench-session.log"))
}

/// The log file, which all programs share.
pub(in crate::bench) fn log() -> Result<File> {
    let path = log_path()?;
    let log = File::options().create(true).append(true).open(&path);
    log.with_context(|| format!("opening {}", path.display()))
}

/// A program that runs until this is dropped.
#[derive(Debug)]
pub(in crate::bench) struct Program {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Program {
    /// Starts a program, and waits for its first line.
    pub(in crate::bench) fn start(command: Command) -> Result<(Self, String)> {
        let shown = process::shown(&command);
        let mut program = Self::spawn(command)?;
        let line = program.line()?;
        if line.is_empty() {
            let log = log_path()?;
            bail!(
                "`{shown}` exited before it was ready; its log is {}",
                log.display()
            );
        }
        Ok((program, line))
    }

    pub(in crate::bench) fn spawn(mut command: Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log()?)
            .spawn()
            .with_context(|| format!("starting `{}`", process::shown(&command)))?;
        let output = child.stdout.take().context("a program has no output")?;
        Ok(Self {
            child,
            output: BufReader::new(output),
        })
    }

    pub(in crate::bench) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends the program, and returns its last line.
    pub(in crate::bench) fn end(mut self) -> Result<String> {
        drop(self.child.stdin.take());
        self.line()
    }

    pub(in crate::bench) fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// Ends a program by closing its input; one that hangs is killed.
pub(in crate::bench) fn end(child: &mut Child) {
    drop(child.stdin.take());
    for _ in 0..100 {
        if let Ok(Some(_)) = child.try_wait() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// Measured values by name.
pub(in crate::bench) type Numbers = HashMap<String, Vec<f64>>;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Response {
    Done(Numbers),
    Failed(String),
}

/// A worker that executes one request after the other.
#[derive(Debug)]
pub(in crate::bench) struct Worker(Program);

impl Worker {
    pub(in crate::bench) fn start(command: Command) -> Result<Self> {
        Program::spawn(command).map(Self)
    }

    /// Waits for the line of a worker that says that it serves.
    pub(in crate::bench) fn wait_until_ready(&mut self) -> Result<()> {
        let line = self.0.line()?;
        match line.trim() {
            "ready" => Ok(()),
            _ => bail!(
                "the program did not start; its log is {}",
                log_path()?.display()
            ),
        }
    }

    /// Sends a request without reading its response. After this the worker can only be ended.
    pub(in crate::bench) fn send(&mut self, request: &Value) -> Result<()> {
        let input = self.0.child.stdin.as_mut().context("no input")?;
        writeln!(input, "{request}").context("the worker has exited")
    }

    /// Sends a request, and returns all values of its response.
    pub(in crate::bench) fn call(&mut self, request: &Value) -> Result<Numbers> {
        self.send(request)?;
        let line = self.0.line()?;
        match serde_json::from_str(&line) {
            Ok(Response::Done(numbers)) => Ok(numbers),
            Ok(Response::Failed(why)) => bail!("{request}: {why}"),
            Err(error) => {
                let log = log_path()?;
                bail!(
                    "{request}: the worker responded with {line:?}: {error}; its log is {}",
                    log.display()
                )
            }
        }
    }

    /// Sends a request, and returns the values of one name.
    pub(in crate::bench) fn measure(&mut self, request: &Value, name: &str) -> Result<Vec<f64>> {
        let mut numbers = self.call(request)?;
        numbers
            .remove(name)
            .with_context(|| format!("{request}: there is no {name} in the response"))
    }

    pub(in crate::bench) fn pid(&self) -> u32 {
        self.0.pid()
    }
}

/// The proportional set size (PSS) of a process and of its children that run the same program, in MiB.
pub(in crate::bench) fn memory(pid: u32) -> Result<f64> {
    let program = fs::read_link(format!("/proc/{pid}/exe"))?;
    let mut total = own_memory(pid)?;
    let mut below = String::new();
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        below += &fs::read_to_string(thread?.path().join("children"))?;
    }
    let below = below.split_whitespace();
    for child in below.filter_map(|child| child.parse().ok()) {
        if fs::read_link(format!("/proc/{child}/exe")).is_ok_and(|other| other == program) {
            total += own_memory(child)?;
        }
    }
    Ok(total)
}

/// Forgets the peak memory of a process so far.
pub(in crate::bench) fn reset_peak_memory(pid: u32) -> Result<()> {
    fs::write(format!("/proc/{pid}/clear_refs"), "5").context("resetting the peak memory")
}

/// The peak of the resident memory of a process since its reset, in MiB.
pub(in crate::bench) fn peak_memory(pid: u32) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    kibibytes(&text, "VmHWM:").map(|kibibytes| kibibytes / KIBIBYTE)
}

fn own_memory(pid: u32) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    kibibytes(&text, "Pss:").map(|kibibytes| kibibytes / KIBIBYTE)
}

/// The number of a line that begins with this name.
fn kibibytes(text: &str, name: &str) -> Result<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next());
    let number = number.with_context(|| format!("the kernel does not report {name}"))?;
    Ok(number.parse()?)
}

/// The kernel's clock ticks per second.
const TICKS: f64 = 100.0;

/// The CPU time of a process, in seconds.
pub(in crate::bench) fn processor_seconds(pid: u32) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // After the name, which is in brackets: the 14th and the 15th field are those of the program and of the kernel.
    let fields = text.rsplit(')').next().unwrap_or_default();
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: f64 = ticks.map(str::parse::<f64>).sum::<Result<f64, _>>()?;
    Ok(ticks / TICKS)
}
