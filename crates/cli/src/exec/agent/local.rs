//! An agent on this machine, for one session. It ends when this process ends, however that happens: it watches its standard
//! input.

use std::collections::VecDeque;
use std::env;
use std::fs::File;
use std::future::Future;
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::environment::{AGENT_PROGRAM, AGENT_TOKEN};
use crate::exec::log::Verbosity;
use crate::exec::target::LocalTarget;

/// How long an agent may take until it prints its address. Usually it takes milliseconds.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an agent may take to exit.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// How many of the last lines of the agent's output are kept, to explain an unexpected exit.
const MAX_LAST_LINES: usize = 5;
const MAX_LINE_LENGTH: u64 = 4096;

pub(super) type Ended = Pin<Box<dyn Future<Output = String> + Send>>;

pub(super) struct LocalAgent {
    pub(super) address: SocketAddr,
    pub(super) token: String,
    /// The target's process.
    pub(super) process: u32,
    /// Closing it ends the agent.
    input: Option<ChildStdin>,
    /// Completes when the agent has exited.
    watcher: JoinHandle<()>,
    /// Dropped to let the watcher kill the agent.
    kill: Option<oneshot::Sender<()>>,
}

/// The last lines of the agent's output, written by the task that reads it.
type LastLines = Arc<Mutex<VecDeque<String>>>;

impl LocalAgent {
    /// Starts an agent beside a process. The returned future completes when the agent has ended.
    pub(super) async fn start(
        process: u32,
        target: &LocalTarget,
        verbosity: Verbosity,
    ) -> Result<(Self, Ended)> {
        let program = program()?;
        let token = new_token()?;
        let mut child = command(target.start(&program), process, &token, verbosity)
            .spawn()
            .with_context(|| format!("cannot start the agent's program {}", program.display()))?;
        let input = child.stdin.take();
        let output = child.stdout.take().context("it has no output")?;
        let errors = child.stderr.take().context("it has no output for errors")?;
        let last_lines = LastLines::default();
        let reader = tokio::spawn(read_log(errors, Arc::clone(&last_lines)));
        let started = timeout(START_TIMEOUT, first_line(output)).await;
        let (line, output) = match started {
            Ok(Ok(line)) => line,
            Ok(Err(error)) => return Err(error.into()),
            Err(_) => bail!(
                "{} did not print its address within {} s; is it the agent, standind? See {AGENT_PROGRAM}",
                program.display(),
                START_TIMEOUT.as_secs()
            ),
        };
        if line.is_empty() {
            let _ = child.wait().await;
            let _ = reader.await;
            bail!(
                "{}",
                exit_message(&last_lines)
                    .unwrap_or_else(|| format!("{} exited without a message", program.display()))
            );
        }
        let address = line.trim().strip_prefix("listening on ");
        let Some(address) = address.and_then(|address| address.parse().ok()) else {
            bail!(
                "{} printed `{}` instead of its address: it is not the agent, standind, of this release. Set {AGENT_PROGRAM} to its path",
                program.display(),
                line.trim().escape_debug()
            );
        };
        tracing::info!(%target, process, %address, "agent listening");
        let (kill, killed) = oneshot::channel();
        let (end_sender, ended) = oneshot::channel();
        let watcher = tokio::spawn(watch(child, output, last_lines, killed, end_sender));
        let agent = LocalAgent {
            address,
            token,
            process,
            input,
            watcher,
            kill: Some(kill),
        };
        let ended = async move {
            match ended.await {
                Ok(reason) => reason,
                Err(_) => std::future::pending().await,
            }
        };
        Ok((agent, Box::pin(ended)))
    }

    /// Ends it and waits until it has exited.
    pub(super) async fn end(mut self) {
        drop(self.input.take());
        if timeout(END_TIMEOUT, &mut self.watcher).await.is_err() {
            drop(self.kill.take());
            let _ = (&mut self.watcher).await;
        }
    }
}

fn command(
    start: std::process::Command,
    process: u32,
    token: &str,
    verbosity: Verbosity,
) -> Command {
    let mut command = Command::from(start);
    command
        .args(["agent", "--end-with-input"])
        .args(["--log", &verbosity.level().to_string()])
        .args(["--process", &process.to_string()])
        .env(AGENT_TOKEN, token)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Signals of the terminal for the program must not end the agent.
        .process_group(0)
        .kill_on_drop(true);
    command
}

/// Waits for the exit of an agent, and sends the reason unless it was killed.
async fn watch(
    mut child: Child,
    output: ChildStdout,
    last_lines: LastLines,
    killed: oneshot::Receiver<()>,
    end_sender: oneshot::Sender<String>,
) {
    let status = tokio::select! {
        status = child.wait() => status,
        _ = killed => {
            let _ = child.kill().await;
            return;
        }
    };
    drop(output);
    let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
    let message = exit_message(&last_lines).map_or_else(String::new, |text| format!(", {text}"));
    tracing::info!(status, "agent exited");
    let _ = end_sender.send(format!("{status}{message}"));
}

/// The agent's own message about its exit, or its last line.
fn exit_message(last_lines: &LastLines) -> Option<String> {
    let lines = last_lines.lock();
    let own = |line: &&String| line.starts_with("standind: ");
    let line = lines.iter().rfind(own).or_else(|| lines.back())?;
    Some(line.trim_start_matches("standind: ").to_owned())
}

async fn first_line(output: ChildStdout) -> std::io::Result<(String, ChildStdout)> {
    let mut reader = BufReader::new(output.take(MAX_LINE_LENGTH));
    let mut line = Vec::new();
    reader.read_until(b'\n', &mut line).await?;
    let line = String::from_utf8_lossy(&line).into_owned();
    Ok((line, reader.into_inner().into_inner()))
}

/// Copies the agent's output to the log of the session. It must not appear on the terminal.
async fn read_log(errors: impl AsyncRead + Unpin, last_lines: LastLines) {
    let mut lines = BufReader::new(errors).split(b'\n');
    while let Ok(Some(line)) = lines.next_segment().await {
        let line = String::from_utf8_lossy(&line).into_owned();
        tracing::info!(target: "agent", %line, "agent output");
        let mut lines = last_lines.lock();
        if lines.len() == MAX_LAST_LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }
}

/// The agent's program: named by an environment variable, or in the folder of this one.
pub(crate) fn program() -> Result<PathBuf> {
    if let Some(program) = env::var_os(AGENT_PROGRAM) {
        return Ok(PathBuf::from(program));
    }
    let beside = env::current_exe()
        .context("finding this program")?
        .with_file_name("standind");
    if beside.is_file() {
        return Ok(beside);
    }
    bail!(
        "the agent's program is not in the folder of standin at {}; set {AGENT_PROGRAM} to its path",
        beside.display()
    )
}

/// A secret for this session only.
fn new_token() -> Result<String> {
    let mut bytes = [0_u8; 16];
    random(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Fills the buffer with cryptographically secure random bytes.
pub(super) fn random(bytes: &mut [u8]) -> Result<()> {
    File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(bytes))
        .context("cannot read random bytes from /dev/urandom")
}

/// Not derived: the token is a secret.
impl std::fmt::Debug for LocalAgent {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = formatter.debug_struct("LocalAgent");
        debug.field("address", &self.address);
        debug
            .field("process", &self.process)
            .finish_non_exhaustive()
    }
}
