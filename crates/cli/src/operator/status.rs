//! `standin operator status`: which operator there is, how it is, and who uses it.

use std::process::ExitCode;

use anyhow::Result;
use api::MirrordOperator;
use clap::Args;
use cluster::OperatorReplicas;
use serde::Serialize;

use super::{Where, age};
use crate::table;

const OURS: &str = env!("CARGO_PKG_VERSION");

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  standin operator status\n  standin operator status --json | jq .version"
)]
pub(super) struct StatusArguments {
    #[command(flatten)]
    place: Where,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What is told, as a program reads it.
#[derive(Debug, Serialize)]
struct Told<'told> {
    version: &'told str,
    namespace: &'told str,
    protocol: &'told str,
    features: &'told [String],
    /// Nothing, where the user may not see them.
    replicas: Option<OperatorReplicas>,
    sessions: &'told [api::operator::RunningSession],
}

pub(super) fn run(arguments: &StatusArguments) -> Result<ExitCode> {
    let (operator, replicas) = arguments.place.ask(async |cluster| {
        let operator = cluster::operator(cluster).await?;
        let replicas = cluster::operator_replicas(cluster, &operator).await?;
        Ok((operator, replicas))
    })?;
    if arguments.json {
        let told = Told {
            version: &operator.spec.operator_version,
            namespace: &operator.spec.operator_namespace,
            protocol: &operator.spec.protocol_version,
            features: &operator.spec.supported_features,
            replicas,
            sessions: &operator.status.sessions,
        };
        println!("{}", serde_json::to_string_pretty(&told)?);
    } else {
        print!("{}", describe(&operator, replicas));
    }
    Ok(ExitCode::SUCCESS)
}

fn describe(operator: &MirrordOperator, replicas: Option<OperatorReplicas>) -> String {
    let (spec, status) = (&operator.spec, &operator.status);
    let version = match spec.operator_version.as_str() {
        OURS => format!("{OURS}, as this standin"),
        theirs => format!(
            "{theirs}; this standin is {OURS}: use the same release if a session is refused"
        ),
    };
    let replicas = match replicas {
        Some(OperatorReplicas { ready, wanted }) => format!("{ready} of {wanted} ready"),
        None => format!(
            "not known: you may not see deployments in {}",
            spec.operator_namespace
        ),
    };
    let mut text = String::new();
    for (name, value) in [
        ("version", version.as_str()),
        ("namespace", &spec.operator_namespace),
        ("replicas", &replicas),
        ("features", &spec.supported_features.join(", ")),
        ("sessions", &status.sessions.len().to_string()),
    ] {
        text += &format!("{name:9}  {value}\n");
    }
    if !status.sessions.is_empty() {
        let rows: Vec<_> = status
            .sessions
            .iter()
            .map(|session| {
                [
                    session.id.clone(),
                    session.user.clone(),
                    session.namespace.clone().unwrap_or_default(),
                    session.target.clone(),
                    age(session.duration_secs),
                ]
            })
            .collect();
        let header = ["ID", "USER", "NAMESPACE", "TARGET", "AGE"];
        text += &format!("\n{}", table::render(header, &rows));
    }
    text
}

#[cfg(test)]
mod tests {
    use api::operator::{MirrordOperatorSpec, MirrordOperatorStatus, RunningSession};

    use super::*;

    #[test]
    fn an_operator_is_told_in_lines() {
        let spec = MirrordOperatorSpec {
            operator_version: OURS.to_owned(),
            operator_namespace: "standin".to_owned(),
            supported_features: vec!["ProxyApi".to_owned(), "SessionManagement".to_owned()],
            ..MirrordOperatorSpec::default()
        };
        let status = MirrordOperatorStatus {
            sessions: vec![RunningSession {
                id: "1f".to_owned(),
                user: "anna".to_owned(),
                target: "deployment/checkout".to_owned(),
                namespace: Some("shop".to_owned()),
                duration_secs: 130,
            }],
            ..MirrordOperatorStatus::default()
        };
        let operator = MirrordOperator::new(spec, status);
        let replicas = OperatorReplicas {
            ready: 1,
            wanted: 2,
        };
        assert_eq!(
            describe(&operator, Some(replicas)),
            format!(
                "\
version    {OURS}, as this standin
namespace  standin
replicas   1 of 2 ready
features   ProxyApi, SessionManagement
sessions   1

ID  USER  NAMESPACE  TARGET               AGE
1f  anna  shop       deployment/checkout  2m
"
            )
        );
        let mut other = operator;
        other.spec.operator_version = "0.0.1".to_owned();
        let text = describe(&other, None);
        assert!(text.contains("0.0.1; this standin is"), "{text}");
        assert!(text.contains("not known: you may not see"), "{text}");
    }
}
