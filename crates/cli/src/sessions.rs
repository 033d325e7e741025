//! `standin sessions` and `standin session`: show and end the sessions of this machine.

mod table;
mod text;

use std::io::{self, Write as _};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use monitor::stream::Message;
use monitor::{ConfigValue, Entry, SessionInfo, State};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use crate::api::client::{Client, NoResponse};
use crate::api::folder::Folder;

/// Longer than the grace period of a session's processes.
const KILL_TIMEOUT: Duration = Duration::from_secs(15);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
pub(crate) struct SessionsDir {
    /// The folder of sockets, instead of ~/.standin/sessions
    #[arg(long, value_name = "FOLDER", global = true)]
    sessions_dir: Option<PathBuf>,
}

impl SessionsDir {
    /// The folder, which is safe if it exists.
    pub(crate) fn folder(&self) -> Result<Folder> {
        let folder = Folder::new(self.sessions_dir.as_deref())?;
        folder.check()?;
        Ok(folder)
    }
}

const LIST_EXAMPLES: &str = "\
Examples:
  standin sessions
  standin sessions --json

Sessions of root, such as those of `sudo standin exec`, are listed only for root: `sudo standin sessions`. Sessions of other
users in a cluster are listed by `standin operator session list`.";

const EXAMPLES: &str = "\
Examples:
  # show the session and its ports; the first digits of the id are enough
  standin session 5eed

  # print its events, one JSON object per line, until it ends
  standin session 5eed events --json --follow

  # print all settings with their values and reasons
  standin session 5eed config

`standin sessions` lists the ids.";

#[derive(Debug, Args)]
#[command(after_help = LIST_EXAMPLES)]
pub(crate) struct SessionsArguments {
    /// Print JSON with all details of each session
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    sessions_dir: SessionsDir,
}

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SessionArguments {
    /// The session's id, or its first digits
    id: String,
    /// By default `info`
    #[command(subcommand)]
    command: Option<SessionCommand>,
    #[command(flatten)]
    sessions_dir: SessionsDir,
}

#[derive(Debug, Subcommand)]
enum SessionCommand {
    /// Show the session: target, processes, ports, counters
    Info {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the events of the session
    Events {
        /// Print one JSON object per line
        #[arg(long)]
        json: bool,
        /// Print new events until the session ends
        #[arg(short, long)]
        follow: bool,
        /// Only events after the one with this number
        #[arg(long, value_name = "NUMBER")]
        after: Option<u64>,
    },
    /// Print files, DNS names, peers, ports and counters as JSON
    State {
        /// Also print the values of the target's variables, which may be secrets
        #[arg(long)]
        show_env_values: bool,
    },
    /// Print every setting with its value and the reason for it
    Config {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// End the session: SIGTERM to its processes, and SIGKILL after five seconds
    Kill,
}

pub(crate) fn list(arguments: &SessionsArguments) -> Result<ExitCode> {
    let folder = arguments.sessions_dir.folder()?;
    let sessions = runtime()?.block_on(all(&folder));
    if arguments.json {
        print_json(&sessions)?;
    } else if sessions.is_empty() {
        eprintln!("standin: there are no sessions; `standin exec` starts one");
    } else {
        print!("{}", table::sessions(&sessions, jiff::Timestamp::now()));
    }
    Ok(ExitCode::SUCCESS)
}

/// The info of all sessions. A session that ends meanwhile is left out.
pub(crate) async fn all(folder: &Folder) -> Vec<SessionInfo> {
    let mut sessions = Vec::new();
    for id in folder.sessions() {
        let Ok(client) = Client::new(folder, &id) else {
            continue;
        };
        match client.info().await {
            Ok(info) => sessions.push(info),
            Err(error) => match error.downcast_ref::<NoResponse>() {
                Some(reason) => sessions.push(client.unresponsive(reason)),
                None => eprintln!("standin: session {id}: {error:#}"),
            },
        }
    }
    sessions.sort_by(|one, other| one.started_at.cmp(&other.started_at));
    sessions
}

pub(crate) fn run(arguments: &SessionArguments) -> Result<ExitCode> {
    let folder = arguments.sessions_dir.folder()?;
    runtime()?.block_on(async {
        let (id, client) = Client::find(&folder, &arguments.id)?;
        let default = SessionCommand::Info { json: false };
        match arguments.command.as_ref().unwrap_or(&default) {
            SessionCommand::Info { json: true } => print_json(&client.info().await?),
            SessionCommand::Info { json: false } => {
                print!("{}", text::info(&client.info().await?));
                Ok(())
            }
            SessionCommand::Events {
                json,
                follow,
                after,
            } => events(&client, *json, *follow, *after).await,
            SessionCommand::State { show_env_values } => {
                client.supported_info().await?;
                let mut state = client.state().await?;
                if !show_env_values {
                    hide_values(&mut state);
                }
                print_json(&state)
            }
            SessionCommand::Config { json } => {
                client.supported_info().await?;
                print_config(&client.config().await?, *json)
            }
            SessionCommand::Kill => kill(&client, &folder, &id).await,
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Removes the values of environment variables, which may be secrets.
pub(crate) fn hide_values(state: &mut State) {
    for (_, value) in &mut state.env {
        value.clear();
    }
}

pub(crate) async fn kill(client: &Client, folder: &Folder, id: &str) -> Result<()> {
    client.kill().await?;
    let since = Instant::now();
    while folder.socket(id).exists() {
        if since.elapsed() > KILL_TIMEOUT {
            bail!("session {id} has not ended");
        }
        sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

async fn events(client: &Client, json: bool, follow: bool, after: Option<u64>) -> Result<()> {
    let last = client.supported_info().await?.counters.events;
    let mut seen = after.unwrap_or(0);
    let mut events = client.events(after).await?;
    while follow || seen < last {
        let Some(messages) = events.next().await else {
            break;
        };
        for message in messages {
            match message {
                Message::Event(entry) => {
                    seen = entry.seq;
                    if print_event(entry, json)?.is_break() {
                        return Ok(());
                    }
                }
                Message::Missed(count) => {
                    eprintln!("standin: {count} events were dropped because they came too quickly");
                }
                Message::Counters(_) => {}
            }
        }
    }
    Ok(())
}

/// Breaks if the reader has closed the pipe.
fn print_event(mut entry: Entry, json: bool) -> Result<ControlFlow<()>> {
    entry.event.hide_values();
    let line = if json {
        serde_json::to_string(&entry)?
    } else {
        text::event(&entry)
    };
    match writeln!(io::stdout(), "{line}") {
        Ok(()) => Ok(ControlFlow::Continue(())),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ControlFlow::Break(())),
        Err(error) => Err(error.into()),
    }
}

fn print_config(config: &[ConfigValue], json: bool) -> Result<()> {
    if json {
        return print_json(&config);
    }
    print!("{}", table::config(config));
    Ok(())
}

fn print_json(value: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}

pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the runtime does not start")
}
