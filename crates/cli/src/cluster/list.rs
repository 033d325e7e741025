//! `standin cluster list`: the clusters of a hub.

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use api::hub::{Cluster, ClusterState};
use api::session::age;
use clap::{Args, ValueEnum};
use jiff::Timestamp;
use tokio::time::sleep;

use super::HubArguments;
use super::client::HubClient;
use crate::table;

const POLL_INTERVAL: Duration = Duration::from_secs(2);
const CLEAR_SCREEN: &str = "\x1b[H\x1b[2J";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct ListArguments {
    /// How to print the clusters
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Table)]
    output: Output,
    /// Print the clusters again whenever something has changed
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    hub: HubArguments,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Table,
    /// With more columns
    Wide,
    Json,
}

const EXAMPLES: &str = "\
Examples:
  standin cluster list
  standin cluster list --output wide --watch
  standin cluster list --output json | jq '.[] | select(.state != \"connected\") | .name'

States:
  pending       no agent has registered yet: `standin cluster add NAME` prints what to run
  connected     the cluster can be used; SINCE is how long
  disconnected  its agent has no tunnel now; MESSAGE says why, as far as the hub knows
  revoked       its certificates were revoked: the agent has to register again

CERTIFICATE is the time until the agent's certificate expires. The agent renews it when a third of its life is left.
With --output json --watch, each line is a list of all clusters.";

pub(super) async fn run(arguments: &ListArguments) -> Result<ExitCode> {
    let (_, client) = arguments.hub.connect().await?;
    if arguments.watch {
        watch(arguments, &client).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let clusters = client.list().await?;
    match arguments.output {
        Output::Json => println!("{}", serde_json::to_string_pretty(&clusters)?),
        _ if clusters.is_empty() => {
            eprintln!("standin: the hub has no clusters yet; `standin cluster add NAME` adds one");
        }
        output => print!("{}", text(&clusters, output, Timestamp::now())),
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints until the program is interrupted. A hub that is away for a moment does not end it.
async fn watch(arguments: &ListArguments, client: &HubClient) -> Result<()> {
    let is_terminal = io::stdout().is_terminal();
    let mut printed = String::new();
    let mut failure = String::new();
    loop {
        match client.list().await {
            Ok(clusters) => {
                failure.clear();
                let text = match arguments.output {
                    Output::Json => format!("{}\n", serde_json::to_string(&clusters)?),
                    output => text(&clusters, output, Timestamp::now()),
                };
                if text != printed {
                    let mut output = io::stdout();
                    let clear = match is_terminal && arguments.output != Output::Json {
                        true => CLEAR_SCREEN,
                        false => "",
                    };
                    write!(output, "{clear}{text}")?;
                    output.flush()?;
                    printed = text;
                }
            }
            Err(error) if error.is_transient() => {
                let error = error_chain::error_chain(&error);
                if error != failure {
                    eprintln!("standin: {error}");
                    failure = error;
                }
            }
            Err(error) => return Err(error.into()),
        }
        sleep(POLL_INTERVAL).await;
    }
}

fn text(clusters: &[Cluster], output: Output, now: Timestamp) -> String {
    match output {
        Output::Wide => wide(clusters, now),
        Output::Table | Output::Json => narrow(clusters, now),
    }
}

fn narrow(clusters: &[Cluster], now: Timestamp) -> String {
    let rows: Vec<_> = clusters
        .iter()
        .map(|cluster| columns(cluster, now))
        .collect();
    table::render(
        ["NAME", "STATE", "SINCE", "AGENT", "CERTIFICATE", "MESSAGE"],
        &rows,
    )
}

fn wide(clusters: &[Cluster], now: Timestamp) -> String {
    let rows: Vec<_> = clusters
        .iter()
        .map(|cluster| {
            let [name, state, since, agent, certificate, message] = columns(cluster, now);
            let labels = cluster
                .labels
                .iter()
                .map(|(key, value)| format!("{key}={value}"));
            let last_seen = cluster
                .last_seen
                .as_ref()
                .map(|time| since_then(time.0, now));
            [
                name,
                state,
                since,
                last_seen.unwrap_or_default(),
                agent,
                cluster.kubernetes_version.clone().unwrap_or_default(),
                certificate,
                cluster.replicas.join(", "),
                match cluster.from_values {
                    true => "values".to_owned(),
                    false => "run time".to_owned(),
                },
                labels.collect::<Vec<_>>().join(", "),
                message,
            ]
        })
        .collect();
    let header = [
        "NAME",
        "STATE",
        "SINCE",
        "LAST SEEN",
        "AGENT",
        "KUBERNETES",
        "CERTIFICATE",
        "REPLICAS",
        "REGISTERED BY",
        "LABELS",
        "MESSAGE",
    ];
    table::render(header, &rows)
}

fn columns(cluster: &Cluster, now: Timestamp) -> [String; 6] {
    let since = match cluster.state {
        ClusterState::Connected => cluster
            .connected_since
            .as_ref()
            .map(|time| age_of(time.0, now)),
        _ => None,
    };
    let certificate = cluster.certificate_expires_at.as_ref();
    [
        cluster.name.clone(),
        state_name(cluster.state).to_owned(),
        since.unwrap_or_default(),
        cluster.agent_version.clone().unwrap_or_default(),
        certificate
            .map(|time| until(time.0, now))
            .unwrap_or_default(),
        cluster.message.clone().unwrap_or_default(),
    ]
}

pub(super) fn state_name(state: ClusterState) -> &'static str {
    match state {
        ClusterState::Pending => "pending",
        ClusterState::Connected => "connected",
        ClusterState::Disconnected => "disconnected",
        ClusterState::Revoked => "revoked",
    }
}

fn seconds_between(from: Timestamp, to: Timestamp) -> u64 {
    u64::try_from(to.duration_since(from).as_secs()).unwrap_or(0)
}

/// The clocks of the hub and of this machine may differ a little.
fn age_of(time: Timestamp, now: Timestamp) -> String {
    age(seconds_between(time, now))
}

fn since_then(time: Timestamp, now: Timestamp) -> String {
    format!("{} ago", age_of(time, now))
}

fn until(time: Timestamp, now: Timestamp) -> String {
    match time <= now {
        true => format!("expired {}", since_then(time, now)),
        false => age(seconds_between(now, time)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn clusters() -> Vec<Cluster> {
        let clusters = json!([
            {
                "name": "prod-eu", "backend": "agent", "state": "connected", "fromValues": true,
                "labels": { "region": "eu" },
                "connectedSince": "2026-01-02T00:00:00Z", "lastSeen": "2026-01-02T02:59:58Z",
                "agentVersion": "0.1.0", "kubernetesVersion": "v1.34.1",
                "certificateExpiresAt": "2026-03-02T00:00:00Z", "replicas": ["hub-0", "hub-1"],
            },
            {
                "name": "prod-us", "backend": "agent", "state": "disconnected", "fromValues": false,
                "connectedSince": "2026-01-01T00:00:00Z", "lastSeen": "2026-01-02T02:50:00Z",
                "agentVersion": "0.1.0",
                "certificateExpiresAt": "2026-01-02T02:57:00Z",
                "message": "its certificate has expired",
            },
            { "name": "new", "backend": "agent", "state": "pending", "fromValues": false },
        ]);
        serde_json::from_value(clusters).unwrap()
    }

    #[test]
    fn clusters_are_shown_as_tables() {
        let now = "2026-01-02T03:00:00Z".parse().unwrap();
        assert_eq!(
            text(&clusters(), Output::Table, now),
            "\
NAME     STATE         SINCE  AGENT  CERTIFICATE     MESSAGE
prod-eu  connected     3h     0.1.0  58d
prod-us  disconnected         0.1.0  expired 3m ago  its certificate has expired
new      pending
"
        );
        assert_eq!(
            text(&clusters(), Output::Wide, now),
            "\
NAME     STATE         SINCE  LAST SEEN  AGENT  KUBERNETES  CERTIFICATE     REPLICAS      REGISTERED BY  LABELS     MESSAGE
prod-eu  connected     3h     2s ago     0.1.0  v1.34.1     58d             hub-0, hub-1  values         region=eu
prod-us  disconnected         10m ago    0.1.0              expired 3m ago                run time                  its certificate has expired
new      pending                                                                          run time
"
        );
    }

    #[test]
    fn clocks_may_differ() {
        let now = "2026-01-01T23:59:58Z".parse().unwrap();
        assert!(text(&clusters(), Output::Table, now).contains("connected     0s"));
    }
}
