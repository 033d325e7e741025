//! `standin exec`: a program as the stand-in for a target.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Instant;
use std::{env, fs};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use config::{EnvFile, Layers, Settings, Style, Surroundings, Target};
use link::{Link, Redial, TcpDialer, Token};
use proxy::{Launch, Session};
use tokio::signal::unix::{SignalKind, signal};

use crate::verify;

/// Variables with our prefix that are not settings.
const OTHER_VARIABLES: &[&str] = &[
    "STANDIN_AGENT_PROGRAM",
    "STANDIN_AGENT_TOKEN",
    "STANDIN_LAB_DIR",
];
/// The agent's program, when it is not beside this one.
const AGENT_PROGRAM: &str = "STANDIN_AGENT_PROGRAM";

/// Examples:
///
///   standin exec -t process/4711 -- python3 server.py
///
///   standin exec -f standin.yaml -- npm start
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct ExecArguments {
    /// What to stand in for: process/<pid>
    #[arg(short, long)]
    target: Option<String>,
    /// A configuration file: JSON, YAML or TOML
    #[arg(short = 'f', long = "config-file", value_name = "FILE")]
    config_file: Option<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(crate) fn run(arguments: &ExecArguments) -> Result<ExitCode> {
    let started = Instant::now();
    let settings = load_settings(arguments)?;
    let runtime = tokio::runtime::Runtime::new().context("the runtime does not start")?;
    let pid = match settings
        .target
        .as_ref()
        .and_then(|target| target.path.as_ref())
    {
        Some(Target::Process(pid)) => *pid,
        Some(_) => bail!("only targets of the form process/<pid> work so far"),
        None => bail!("name a target: `standin exec -t process/<pid> -- COMMAND`"),
    };
    let token = new_token()?;
    let agent = LocalAgent::start(pid, &token)?;
    let session = runtime.block_on(connect(&agent, &token, &settings, &arguments.command))?;
    let local = env::vars_os()
        .map(|(name, value)| (name.into_vec(), value.into_vec()))
        .collect();
    let environment = runtime.block_on(session.environment(local))?;
    let (program, rest) = arguments.command.split_first().context("name a program")?;
    let mut supervised = Launch::new(program)
        .arguments(rest)
        .environment(environment)
        .start(Arc::new(session))
        .with_context(|| format!("cannot run {}", program.display()))?;
    eprintln!(
        "standin: stands in for process/{pid} after {} ms",
        started.elapsed().as_millis()
    );
    let signaller = supervised
        .signaller()
        .map_err(|errno| anyhow!("the program cannot be watched: {errno}"))?;
    runtime.spawn(async move {
        // Ctrl-C reaches the program by itself, through the terminal. We live on to see how it ends.
        let (Ok(mut interrupt), Ok(mut terminate)) = (
            signal(SignalKind::interrupt()),
            signal(SignalKind::terminate()),
        ) else {
            return;
        };
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => { let _ = signaller.signal(libc::SIGTERM); }
            }
        }
    });
    let status = supervised.wait().context("the program was lost")?;
    drop(supervised);
    drop(agent);
    runtime.shutdown_background();
    Ok(exit_code(status))
}

/// From the file, the environment and the flags, each before the one in front of it.
fn load_settings(arguments: &ExecArguments) -> Result<Settings> {
    let mut layers = Layers::new();
    if let Some(file) = &arguments.config_file {
        let (text, format) = verify::read(file)?;
        layers = layers.file(&file.display().to_string(), &text, format);
    }
    let variables = env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    layers = layers.variables(variables, OTHER_VARIABLES);
    if let Some(target) = &arguments.target {
        layers = layers.flag("--target", "target", target);
    }
    match layers.resolve() {
        Ok(resolved) => Ok(resolved.settings),
        Err(report) => Err(anyhow!("{}", report.render(Style::Plain))),
    }
}

async fn connect(
    agent: &LocalAgent,
    token: &str,
    settings: &Settings,
    command: &[OsString],
) -> Result<Session> {
    let link_settings = link::Settings {
        token: Token::new(token.as_bytes())?,
        redial: Redial::default(),
        ..link::Settings::default()
    };
    let link = Link::connect(TcpDialer::new(agent.address), link_settings).await?;
    let env_file = match &settings.feature.env.env_file {
        Some(file) => {
            let text = fs::read_to_string(file)
                .with_context(|| format!("cannot read the env file {file}"))?;
            EnvFile::parse(&text).map_err(|errors| {
                let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
                anyhow!(
                    "the env file {file} cannot be used:\n  {}",
                    lines.join("\n  ")
                )
            })?
        }
        None => EnvFile::default(),
    };
    Ok(Session::start(link, token, settings, &env_file, &surroundings(command)).await?)
}

/// What is around the process on this machine, so that it finds its own code and its own files.
fn surroundings(command: &[OsString]) -> Surroundings {
    let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec();
    let variable = |name: &str| env::var_os(name).map(|value| bytes(Path::new(&value)));
    let program = command
        .first()
        .map(PathBuf::from)
        .filter(|program| program.is_absolute());
    Surroundings {
        home: variable("HOME"),
        working_directory: env::current_dir().ok().map(|folder| bytes(&folder)),
        temporary: variable("TMPDIR"),
        code: program
            .and_then(|program| program.parent().map(bytes))
            .into_iter()
            .collect(),
    }
}

/// An agent on this machine, for one session. It ends with us, however we end: it watches its standard input.
struct LocalAgent {
    process: Child,
    address: SocketAddr,
}

impl LocalAgent {
    fn start(pid: u32, token: &str) -> Result<Self> {
        let program = agent_program()?;
        let mut process = Command::new(&program)
            .args(["agent", "--end-with-input", "--process", &pid.to_string()])
            .env("STANDIN_AGENT_TOKEN", token)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start the agent {}", program.display()))?;
        let mut line = String::new();
        let output = process.stdout.take().context("the agent has no output")?;
        BufReader::new(output).read_line(&mut line)?;
        let address = line
            .trim()
            .strip_prefix("listening on ")
            .and_then(|address| address.parse().ok());
        match address {
            Some(address) => Ok(LocalAgent { process, address }),
            None => {
                let _ = process.kill();
                let _ = process.wait();
                bail!("the agent beside process/{pid} did not start; what it said is above")
            }
        }
    }
}

impl Drop for LocalAgent {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

fn agent_program() -> Result<PathBuf> {
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
        "standind is not beside standin at {}; set {AGENT_PROGRAM} to its path",
        beside.display()
    )
}

/// A secret of this session alone.
fn new_token() -> Result<String> {
    let mut bytes = [0_u8; 16];
    std::io::Read::read_exact(&mut fs::File::open("/dev/urandom")?, &mut bytes)
        .context("no randomness")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// As a shell tells it: the program's own code, or 128 and the signal that ended it.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal))
        .unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
