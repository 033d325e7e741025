//! `standin cluster add` and `token`: connect another cluster to a hub.

mod instructions;

use std::io::{self, IsTerminal as _};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use api::hub::{Cluster, ClusterState, NewCluster, RegistrationToken, TokenRequest, path};
use axum::http::StatusCode;
use clap::{Args, ValueEnum};
use serde::Serialize;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use self::instructions::{Instructions, Onboarding};
use super::client::{HubClient, cluster_path};
use super::error::{self, HubError};
use super::list::state_name;
use super::{HubArguments, cluster_name};
use crate::exec::Progress;

const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Until every replica of a hub knows a new cluster.
const PROPAGATION_TIMEOUT: Duration = Duration::from_secs(10);
const PROPAGATION_INTERVAL: Duration = Duration::from_millis(200);
const DEFAULT_NAMESPACE: &str = "standin-tunnel-agent";

#[derive(Debug, Args)]
#[command(after_help = ADD_EXAMPLES)]
pub(super) struct AddArguments {
    /// The cluster's name at the hub. It may be registered already
    #[arg(value_name = "NAME", value_parser = cluster_name)]
    name: String,
    /// A label for people and tools, such as `region=eu`; can be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// Wait until the agent is connected
    #[arg(long)]
    wait: bool,
    /// The longest time to wait, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 900, requires = "wait")]
    timeout: u64,
    /// The namespace for the agent in the new cluster
    #[arg(long, value_name = "NAMESPACE", default_value = DEFAULT_NAMESPACE, value_parser = cluster_name)]
    agent_namespace: String,
    /// Your context of the new cluster, for the printed commands
    #[arg(long, value_name = "CONTEXT")]
    agent_context: Option<String>,
    /// Print a token as well, for a machine on which this program is not installed
    #[arg(long)]
    print_token: bool,
    /// How to print what to run
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text)]
    output: Output,
    #[command(flatten)]
    hub: HubArguments,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
}

const ADD_EXAMPLES: &str = "\
Examples:
  # print what to run on the new cluster, and wait until it is connected
  standin cluster add prod-eu --wait

  # with the context of the new cluster in the printed commands
  standin cluster add prod-eu --agent-context prod-eu-admin

  # for a program
  standin cluster add prod-eu --output json

The agent registers with a token that is valid for one cluster, for 15 minutes and for one agent. The printed commands pipe it from
`standin cluster token` into a Secret, so it is neither on the screen nor in the history of a shell. If the agent has to register
again, delete the Secret and run them again.";

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  standin cluster token prod-eu | kubectl create secret generic standin-tunnel-agent-token \\
    --namespace standin-tunnel-agent --from-file=token=/dev/stdin

The token is valid for one cluster, for 15 minutes and for one agent. Used with the name of another cluster, it is lost.")]
pub(super) struct TokenArguments {
    /// The cluster, which is registered
    #[arg(value_name = "NAME", value_parser = cluster_name)]
    name: String,
    /// Print JSON, with the time at which the token expires
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    hub: HubArguments,
}

/// The JSON output of `add`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Added<'added> {
    cluster: &'added Cluster,
    #[serde(flatten)]
    instructions: &'added Instructions,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<&'added RegistrationToken>,
}

fn label(text: &str) -> Result<(String, String), &'static str> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("a label is KEY=VALUE, as in region=eu"),
    }
}

pub(super) async fn add(arguments: &AddArguments) -> Result<ExitCode> {
    let (login, client) = arguments.hub.connect().await?;
    let name = &arguments.name;
    let description = client.describe().await?;
    let onboarding = Onboarding {
        cluster: name,
        hub: &login.address,
        description: &description,
        namespace: &arguments.agent_namespace,
        context: arguments.agent_context.as_deref(),
        pastes_token: arguments.print_token,
    };
    // Before the cluster is registered, since nothing could be run with an incomplete description.
    let instructions = onboarding.instructions()?;
    let cluster = register(arguments, &client).await?;
    let token = match arguments.print_token {
        true => Some(first_token(name, &client).await?),
        false => None,
    };
    match arguments.output {
        Output::Json if arguments.wait => {}
        Output::Json => print_json(&cluster, &instructions, token.as_ref())?,
        Output::Text => print!(
            "{}",
            instructions.text(&cluster, &login.address, token.as_ref())
        ),
    }
    if !arguments.wait {
        return Ok(ExitCode::SUCCESS);
    }
    if cluster.state == ClusterState::Connected {
        eprintln!("standin: {name} is connected already");
    }
    let connected = wait_until_connected(&cluster, &client, arguments.timeout).await?;
    match arguments.output {
        Output::Json => print_json(&connected, &instructions, token.as_ref())?,
        Output::Text => {
            let context = format!("{}/{name}", login.address);
            println!("{name} is connected");
            println!(
                "next: `standin cluster kubeconfig --cluster {name}`, then `kubectl --context {context} get pods`"
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print_json(
    cluster: &Cluster,
    instructions: &Instructions,
    token: Option<&RegistrationToken>,
) -> Result<()> {
    let added = Added {
        cluster,
        instructions,
        token,
    };
    println!("{}", serde_json::to_string_pretty(&added)?);
    Ok(())
}

/// Registers the cluster, unless it is registered.
async fn register(arguments: &AddArguments, client: &HubClient) -> Result<Cluster> {
    let new = NewCluster {
        name: arguments.name.clone(),
        labels: arguments.labels.iter().cloned().collect(),
    };
    match client.post(path::CLUSTERS, &new, &error::ADD).await {
        Err(error) if error.status() == Some(StatusCode::CONFLICT) => {
            let path = cluster_path(&new.name);
            Ok(client.get(&path, &error::GET).await?)
        }
        cluster => Ok(cluster?),
    }
}

async fn new_token(name: &str, client: &HubClient) -> Result<RegistrationToken, HubError> {
    let request = TokenRequest {
        cluster: name.to_owned(),
    };
    client.post(path::TOKENS, &request, &error::TOKEN).await
}

/// A token for a cluster that was registered a moment ago.
async fn first_token(name: &str, client: &HubClient) -> Result<RegistrationToken, HubError> {
    let deadline = Instant::now() + PROPAGATION_TIMEOUT;
    loop {
        match new_token(name, client).await {
            Err(error) if is_unknown(&error) && Instant::now() < deadline => {
                sleep(PROPAGATION_INTERVAL).await;
            }
            token => return token,
        }
    }
}

fn is_unknown(error: &HubError) -> bool {
    error.status() == Some(StatusCode::NOT_FOUND)
}

pub(super) async fn token(arguments: &TokenArguments) -> Result<ExitCode> {
    let (_, client) = arguments.hub.connect().await?;
    let name = &arguments.name;
    let token = match new_token(name, &client).await {
        Err(error) => return Err(client.explain_unknown(name, error).await),
        Ok(token) => token,
    };
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&token)?);
    } else if io::stdout().is_terminal() {
        println!("{}", token.token);
        eprintln!(
            "standin: valid until {}, for {}",
            token.expires_at.0, token.cluster
        );
    } else {
        // Without a line end, which would become a part of a Secret.
        print!("{}", token.token);
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits for the agent, and reports each change. A hub that is away for a moment does not end it.
async fn wait_until_connected(
    registered: &Cluster,
    client: &HubClient,
    seconds: u64,
) -> Result<Cluster> {
    let name = &registered.name;
    let path = cluster_path(name);
    let started = Instant::now();
    let deadline = started + Duration::from_secs(seconds);
    let mut report = Report::new(name, describe(registered));
    loop {
        match timeout_at(deadline, client.get::<Cluster>(&path, &error::GET)).await {
            Ok(Ok(cluster)) if cluster.state == ClusterState::Connected => return Ok(cluster),
            Ok(Ok(cluster)) => report.update(describe(&cluster)),
            Ok(Err(error)) if error.is_transient() => {
                report.update(error_chain::error_chain(&error));
            }
            Ok(Err(error)) if is_unknown(&error) && started.elapsed() < PROPAGATION_TIMEOUT => {}
            Ok(Err(error)) if is_unknown(&error) => bail!("{name} was removed meanwhile"),
            Ok(Err(error)) => return Err(error.into()),
            Err(_) => {}
        }
        if Instant::now() >= deadline {
            bail!(
                "{name} is not connected after {seconds} s ({last}); `kubectl logs` of the agent shows what it tries, and \
                 `standin cluster list` what the hub knows",
                last = report.last
            );
        }
        sleep_until(deadline.min(Instant::now() + POLL_INTERVAL)).await;
    }
}

/// What a user sees while waiting: one line on a terminal, and a line for each change elsewhere.
struct Report<'cluster> {
    name: &'cluster str,
    progress: Progress,
    is_terminal: bool,
    last: String,
}

impl<'cluster> Report<'cluster> {
    fn new(name: &'cluster str, first: String) -> Self {
        let is_terminal = io::stderr().is_terminal();
        let report = Self {
            name,
            progress: Progress::new(!is_terminal),
            is_terminal,
            last: first,
        };
        report.progress.step("waiting for the agent");
        report.show();
        report
    }

    fn update(&mut self, now: String) {
        if now != self.last {
            self.last = now;
            self.show();
        }
    }

    fn show(&self) {
        let Self { name, last, .. } = self;
        match self.is_terminal {
            true => self
                .progress
                .rename(format!("waiting for the agent of {name} ({last})")),
            false => eprintln!("standin: waiting for the agent of {name} ({last})"),
        }
    }
}

impl Drop for Report<'_> {
    fn drop(&mut self) {
        self.progress.clear();
    }
}

fn describe(cluster: &Cluster) -> String {
    let state = state_name(cluster.state);
    match &cluster.message {
        Some(message) => format!("{state}: {message}"),
        None => state.to_owned(),
    }
}
