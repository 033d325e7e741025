//! `standin operator status`: which operator the cluster has, its health, and who uses it.

use std::process::ExitCode;

use anyhow::Result;
use api::MirrordOperator;
use api::operator::{ConnectedCluster, MultiClusterRoles, RunningSession};
use api::session::age;
use clap::Args;
use cluster::OperatorReplicas;
use serde::Serialize;

use super::ClusterArguments;
use super::session::ports;
use crate::table;

const OWN_VERSION: &str = env!("CARGO_PKG_VERSION");

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  standin operator status\n  standin operator status --json | jq .version"
)]
pub(super) struct StatusArguments {
    #[command(flatten)]
    cluster: ClusterArguments,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The JSON output.
#[derive(Debug, Serialize)]
struct StatusReport<'report> {
    version: &'report str,
    namespace: &'report str,
    protocol: &'report str,
    features: &'report [String],
    /// `None` if the user may not read them.
    replicas: Option<OperatorReplicas>,
    sessions: &'report [RunningSession],
    /// The roles of the clusters, if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    multi_cluster: Option<&'report MultiClusterRoles>,
    /// The member clusters, as this operator sees them.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    connected_clusters: &'report [ConnectedCluster],
}

pub(super) fn run(arguments: &StatusArguments) -> Result<ExitCode> {
    let (operator, replicas) = arguments.cluster.with_operator(async |cluster| {
        let operator = cluster::get_operator(cluster).await?;
        let replicas = cluster::operator_replicas(cluster, &operator).await?;
        Ok((operator, replicas))
    })?;
    if arguments.json {
        let report = StatusReport {
            version: &operator.spec.operator_version,
            namespace: &operator.spec.operator_namespace,
            protocol: &operator.spec.protocol_version,
            features: &operator.spec.supported_features,
            replicas,
            sessions: &operator.status.sessions,
            multi_cluster: operator.spec.multi_cluster.as_ref(),
            connected_clusters: &operator.status.connected_clusters,
        };
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", describe(&operator, replicas));
    }
    Ok(ExitCode::SUCCESS)
}

fn describe(operator: &MirrordOperator, replicas: Option<OperatorReplicas>) -> String {
    let (spec, status) = (&operator.spec, &operator.status);
    let version = match spec.operator_version.as_str() {
        OWN_VERSION => format!("{OWN_VERSION}, same as this standin"),
        other => format!(
            "{other}; this standin is {OWN_VERSION}: use the same release if a session is refused"
        ),
    };
    let replicas = match replicas {
        Some(OperatorReplicas { ready, desired }) => format!("{ready} of {desired} ready"),
        None => format!(
            "unknown: you may not read deployments in {}",
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
    if !status.connected_clusters.is_empty() {
        let header = ["CLUSTER", "ROLE", "OPERATOR", "STATE"];
        text += &format!("\n{}", table::render(header, &clusters(operator)));
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
                    ports(&session.ports),
                ]
            })
            .collect();
        let header = ["ID", "USER", "NAMESPACE", "TARGET", "AGE", "PORTS"];
        text += &format!("\n{}", table::render(header, &rows));
    }
    text
}

/// A row for each cluster that a session can cover, and for the Primary.
fn clusters(operator: &MirrordOperator) -> Vec<[String; 4]> {
    let roles = operator.spec.multi_cluster.as_ref();
    let role = |name: &str, role: &str| match roles {
        Some(roles) if roles.default_cluster == name => format!("{role}, Default"),
        _ => role.to_owned(),
    };
    let primary = roles.map(|roles| {
        let name = &roles.cluster_name;
        let part = match roles.management_only {
            true => "Primary, without targets",
            false => "Primary",
        };
        let version = operator.spec.operator_version.clone();
        [
            name.clone(),
            role(name, part),
            version,
            "running".to_owned(),
        ]
    });
    let members = operator.status.connected_clusters.iter().map(|cluster| {
        let connected = cluster.connected.as_ref();
        let version = connected.map(|operator| operator.operator_version.clone());
        let state = match (&cluster.error, &cluster.warning) {
            (Some(error), _) => error.clone(),
            (None, Some(warning)) => format!("connected; {warning}"),
            (None, None) => "connected".to_owned(),
        };
        let name = &cluster.name;
        [
            name.clone(),
            role(name, "member"),
            version.unwrap_or_default(),
            state,
        ]
    });
    primary.into_iter().chain(members).collect()
}

#[cfg(test)]
mod tests {
    use api::operator::{ConnectedOperator, MirrordOperatorSpec, MirrordOperatorStatus};
    use api::session::SessionPort;

    use super::*;

    #[test]
    fn the_status_is_shown_as_lines() {
        let spec = MirrordOperatorSpec {
            operator_version: OWN_VERSION.to_owned(),
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
                ports: vec![SessionPort {
                    port: 53,
                    protocol: SessionPort::UDP.to_owned(),
                    mode: SessionPort::MIRROR.to_owned(),
                    filter: None,
                }],
            }],
            ..MirrordOperatorStatus::default()
        };
        let operator = MirrordOperator::new(spec, status);
        let replicas = OperatorReplicas {
            ready: 1,
            desired: 2,
        };
        assert_eq!(
            describe(&operator, Some(replicas)),
            format!(
                "\
version    {OWN_VERSION}, same as this standin
namespace  standin
replicas   1 of 2 ready
features   ProxyApi, SessionManagement
sessions   1

ID  USER  NAMESPACE  TARGET               AGE  PORTS
1f  anna  shop       deployment/checkout  2m   53/UDP (mirror)
"
            )
        );
        let mut other = operator;
        other.spec.operator_version = "0.0.1".to_owned();
        let text = describe(&other, None);
        assert!(text.contains("0.0.1; this standin is"), "{text}");
        assert!(text.contains("unknown: you may not read"), "{text}");
    }

    #[test]
    fn clusters_are_shown_with_their_roles_and_states() {
        let roles = MultiClusterRoles {
            cluster_name: "hub".to_owned(),
            default_cluster: "east".to_owned(),
            management_only: true,
        };
        let spec = MirrordOperatorSpec {
            operator_version: "0.2.0".to_owned(),
            multi_cluster: Some(roles),
            ..MirrordOperatorSpec::default()
        };
        let member = |name: &str, version: Option<&str>| ConnectedCluster {
            name: name.to_owned(),
            connected: version.map(|version| ConnectedOperator {
                operator_version: version.to_owned(),
                ..ConnectedOperator::default()
            }),
            ..ConnectedCluster::default()
        };
        let mut north = member("north", Some("0.2.0"));
        north.warning = Some("its certificate ends in 3 days".to_owned());
        let mut west = member("west", None);
        west.error = Some("the Secret mirrord-cluster-west does not exist".to_owned());
        let status = MirrordOperatorStatus {
            connected_clusters: vec![member("east", Some("0.1.9")), north, west],
            ..MirrordOperatorStatus::default()
        };
        let text = describe(&MirrordOperator::new(spec, status), None);
        let table = text.split("\n\n").nth(1).unwrap();
        assert_eq!(
            table,
            "\
CLUSTER  ROLE                      OPERATOR  STATE
hub      Primary, without targets  0.2.0     running
east     member, Default           0.1.9     connected
north    member                    0.2.0     connected; its certificate ends in 3 days
west     member                              the Secret mirrord-cluster-west does not exist
"
        );
    }
}
