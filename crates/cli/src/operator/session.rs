//! `standin operator session`: lists and ends the sessions of an operator.

use std::process::ExitCode;

use anyhow::{Result, bail};
use api::session::{Session, SessionCluster, SessionId, SessionPort, age};
use clap::{Args, Subcommand};

use super::ClusterArguments;
use crate::table;

#[derive(Debug, Subcommand)]
pub(super) enum SessionCommand {
    /// List the sessions of the cluster, the oldest first
    #[command(visible_alias = "ls")]
    List(ListArguments),
    /// End sessions and their agents. Their users are notified
    Kill(KillArguments),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  standin operator session list\n  standin operator session list --json"
)]
pub(super) struct ListArguments {
    #[command(flatten)]
    cluster: ClusterArguments,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  standin operator session kill 5eed0000c0ffee01")]
pub(super) struct KillArguments {
    /// The sessions' ids, as `standin operator session list` shows them
    #[arg(required = true, value_name = "ID", value_parser = id)]
    ids: Vec<SessionId>,
    #[command(flatten)]
    cluster: ClusterArguments,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn id(text: &str) -> Result<SessionId, &'static str> {
    SessionId::from_hexadecimal(text).ok_or("an id has up to 16 hexadecimal digits")
}

pub(super) fn run(command: &SessionCommand) -> Result<ExitCode> {
    match command {
        SessionCommand::List(arguments) => list(arguments),
        SessionCommand::Kill(arguments) => kill(arguments),
    }
}

fn list(arguments: &ListArguments) -> Result<ExitCode> {
    let sessions = arguments.cluster.with_operator(cluster::list_sessions)?;
    if arguments.json {
        let specs: Vec<_> = sessions.iter().map(|session| &session.spec).collect();
        println!("{}", serde_json::to_string_pretty(&specs)?);
        return Ok(ExitCode::SUCCESS);
    }
    if sessions.is_empty() {
        eprintln!("standin: there are no sessions");
        return Ok(ExitCode::SUCCESS);
    }
    print!("{}", lines(&sessions));
    Ok(ExitCode::SUCCESS)
}

/// A table of sessions.
pub(super) fn lines(sessions: &[Session]) -> String {
    let rows: Vec<_> = sessions
        .iter()
        .map(|session| {
            let spec = &session.spec;
            [
                spec.id.clone(),
                spec.user.clone(),
                spec.namespace.clone(),
                spec.target.clone(),
                spec.phase.clone(),
                match spec.clusters.is_empty() {
                    true => spec.pods.len().to_string(),
                    false => String::new(),
                },
                clusters(&spec.clusters),
                age(spec.duration_secs),
                ports(&spec.ports),
            ]
        })
        .collect();
    let header = [
        "ID",
        "USER",
        "NAMESPACE",
        "TARGET",
        "PHASE",
        "PODS",
        "CLUSTERS",
        "AGE",
        "PORTS",
    ];
    table::render(header, &rows)
}

/// The ports of a session's incoming traffic, with their filters.
pub(super) fn ports(ports: &[SessionPort]) -> String {
    let ports: Vec<String> = ports.iter().map(ToString::to_string).collect();
    ports.join(", ")
}

/// The clusters of a session over several, and which of them are not ready.
fn clusters(clusters: &[SessionCluster]) -> String {
    let named = clusters.iter().map(|cluster| match cluster.ready {
        true => cluster.name.clone(),
        false => format!("{} (not ready)", cluster.name),
    });
    named.collect::<Vec<_>>().join(", ")
}

fn kill(arguments: &KillArguments) -> Result<ExitCode> {
    let ended = arguments.cluster.with_operator(async |cluster| {
        let mut ended = Vec::new();
        for id in &arguments.ids {
            match cluster::end_session(cluster, *id).await {
                Ok(()) => ended.push((*id, None)),
                // The other sessions may exist.
                Err(cluster::Error::OperatorRefused(why)) => ended.push((*id, Some(why))),
                Err(error) => return Err(error),
            }
        }
        Ok(ended)
    })?;
    if arguments.json {
        let ended: Vec<_> = ended
            .iter()
            .map(|(id, error)| serde_json::json!({"id": id.to_string(), "error": error}))
            .collect();
        println!("{}", serde_json::to_string_pretty(&ended)?);
    }
    let mut failed = Vec::new();
    for (id, error) in ended {
        match error {
            None if arguments.json => {}
            None => println!("session {id} ended"),
            Some(why) => failed.push(why),
        }
    }
    match failed.is_empty() {
        true => Ok(ExitCode::SUCCESS),
        false => bail!(
            "{}; `standin operator session list` lists the sessions",
            failed.join("; ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use api::session::SessionSpec;

    use super::*;

    fn port() -> SessionPort {
        SessionPort {
            port: 80,
            protocol: SessionPort::TCP.to_owned(),
            mode: SessionPort::STEAL.to_owned(),
            filter: Some("path ^/a".to_owned()),
        }
    }

    #[test]
    fn sessions_are_listed_with_their_pods_or_their_clusters() {
        let session = |id: &str, pods: &[&str], clusters: &[(&str, bool)]| {
            let clusters = clusters.iter().map(|(name, ready)| SessionCluster {
                name: (*name).to_owned(),
                ready: *ready,
                ..SessionCluster::default()
            });
            let spec = SessionSpec {
                id: id.to_owned(),
                user: "anna".to_owned(),
                namespace: "shop".to_owned(),
                target: "deployment/web".to_owned(),
                phase: "Ready".to_owned(),
                duration_secs: 5,
                pods: pods.iter().map(|pod| (*pod).to_owned()).collect(),
                ports: pods.iter().map(|_| port()).take(1).collect(),
                clusters: clusters.collect(),
            };
            Session::new(Default::default(), spec)
        };
        let sessions = [
            session("1f", &["web-1", "web-2"], &[]),
            session("2f", &[], &[("hub", true), ("west", false)]),
        ];
        assert_eq!(
            lines(&sessions),
            "\
ID  USER  NAMESPACE  TARGET          PHASE  PODS  CLUSTERS               AGE  PORTS
1f  anna  shop       deployment/web  Ready  2                            5s   80 (steal, path ^/a)
2f  anna  shop       deployment/web  Ready        hub, west (not ready)  5s
"
        );
    }
}
