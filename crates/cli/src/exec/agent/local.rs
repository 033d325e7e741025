//! An agent on this machine, for one session. It ends with us, however we end: it watches its standard input.

use std::collections::VecDeque;
use std::env;
use std::fs::File;
use std::future::Future;
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::environment::{AGENT_PROGRAM, AGENT_TOKEN};
use crate::exec::log::Verbosity;
use crate::exec::target::LocalTarget;

/// How long an agent may take to say where it listens. It takes milliseconds.
const START: Duration = Duration::from_secs(10);
/// How long an agent may take to end once nobody needs it.
const END: Duration = Duration::from_secs(2);
/// The last lines that an agent said, for when it ends without being asked to.
const LAST_WORDS: usize = 5;
/// No line of an agent is longer.
const LINE: u64 = 4096;

pub(super) type Ended = Pin<Box<dyn Future<Output = String> + Send>>;

pub(super) struct LocalAgent {
    pub(super) address: SocketAddr,
    pub(super) token: String,
    /// The target's.
    pub(super) process: u32,
    /// Closing it ends the agent.
    input: Option<ChildStdin>,
    /// Ends with the agent.
    watcher: JoinHandle<()>,
    /// From us to the watcher: it has waited long enough.
    kill: Option<oneshot::Sender<()>>,
}

/// What the agent said last, from the task that reads it to those who explain its end.
type LastWords = Arc<Mutex<VecDeque<String>>>;

impl LocalAgent {
    /// Starts an agent beside a process. What it returns along ends when the agent does.
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
        let last_words = LastWords::default();
        let reader = tokio::spawn(read_words(errors, Arc::clone(&last_words)));
        let started = timeout(START, first_line(output)).await;
        let (line, output) = match started {
            Ok(Ok(line)) => line,
            Ok(Err(error)) => return Err(error.into()),
            Err(_) => bail!(
                "{} did not say within {} s where it listens; is it the agent, standind? See {AGENT_PROGRAM}",
                program.display(),
                START.as_secs()
            ),
        };
        if line.is_empty() {
            let _ = child.wait().await;
            let _ = reader.await;
            bail!(
                "{}",
                ending(&last_words)
                    .unwrap_or_else(|| format!("{} ended without a word", program.display()))
            );
        }
        let address = line.trim().strip_prefix("listening on ");
        let Some(address) = address.and_then(|address| address.parse().ok()) else {
            bail!(
                "{} said `{}` and not where it listens: it is not the agent, standind, of this release. Set {AGENT_PROGRAM} to its path",
                program.display(),
                line.trim().escape_debug()
            );
        };
        tracing::info!(%target, process, %address, "an agent listens");
        let (kill, killed) = oneshot::channel();
        let (tell_end, ended) = oneshot::channel();
        let watcher = tokio::spawn(watch(child, output, last_words, killed, tell_end));
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

    /// Ends it and waits for its end.
    pub(super) async fn end(mut self) {
        drop(self.input.take());
        if timeout(END, &mut self.watcher).await.is_err() {
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
        // What the terminal sends to the program must not end the agent.
        .process_group(0)
        .kill_on_drop(true);
    command
}

/// Waits for the end of an agent, and says why it ended unless it was asked to.
async fn watch(
    mut child: Child,
    output: ChildStdout,
    last_words: LastWords,
    killed: oneshot::Receiver<()>,
    tell_end: oneshot::Sender<String>,
) {
    let status = tokio::select! {
        status = child.wait() => status,
        _ = killed => {
            let _ = child.kill().await;
            return;
        }
    };
    drop(output);
    let how = status.map_or_else(|error| error.to_string(), |status| status.to_string());
    let words = ending(&last_words).map_or_else(String::new, |words| format!(", {words}"));
    tracing::info!(how, "the agent has ended");
    let _ = tell_end.send(format!("{how}{words}"));
}

/// What an agent said about its own end.
fn ending(last_words: &LastWords) -> Option<String> {
    let words = last_words.lock().unwrap_or_else(PoisonError::into_inner);
    let own = |line: &&String| line.starts_with("standind: ");
    let line = words.iter().rfind(own).or_else(|| words.back())?;
    Some(line.trim_start_matches("standind: ").to_owned())
}

async fn first_line(output: ChildStdout) -> std::io::Result<(String, ChildStdout)> {
    let mut reader = BufReader::new(output.take(LINE));
    let mut line = Vec::new();
    reader.read_until(b'\n', &mut line).await?;
    let line = String::from_utf8_lossy(&line).into_owned();
    Ok((line, reader.into_inner().into_inner()))
}

/// What an agent says belongs into our log, and never on the terminal.
async fn read_words(errors: impl AsyncRead + Unpin, last_words: LastWords) {
    let mut lines = BufReader::new(errors).split(b'\n');
    while let Ok(Some(line)) = lines.next_segment().await {
        let line = String::from_utf8_lossy(&line).into_owned();
        tracing::info!(target: "agent", "{line}");
        let mut words = last_words.lock().unwrap_or_else(PoisonError::into_inner);
        if words.len() == LAST_WORDS {
            words.pop_front();
        }
        words.push_back(line);
    }
}

/// The agent's program: named by a variable, or beside this one.
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
        "the agent's program is not beside standin at {}; set {AGENT_PROGRAM} to its path",
        beside.display()
    )
}

/// A secret of this session alone.
fn new_token() -> Result<String> {
    let mut bytes = [0_u8; 16];
    random(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Fills bytes that nobody can guess.
pub(super) fn random(bytes: &mut [u8]) -> Result<()> {
    File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(bytes))
        .context("no randomness")
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
