//! `standin ls`: lists the possible targets in a namespace.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use cluster::{Cluster, Listing};
use config::Settings;

use crate::exec::settings::load_with;
use crate::exec::{AccessFlags, ClusterFlags, Progress, access, coordinated_clusters};
use crate::table;

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LsArguments {
    #[command(flatten)]
    cluster: ClusterFlags,
    #[command(flatten)]
    access: AccessFlags,
    /// The configuration file, as for `standin exec`
    #[arg(short = 'f', long = "config-file", value_name = "FILE")]
    config_file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  standin ls -n shop
  standin ls -n shop --json

Use the names of the first column with `standin exec -t`. If the cluster has an operator, the users of sessions are shown as
well, and if the operator coordinates member clusters, the clusters of each target.";

pub(crate) fn run(arguments: &LsArguments) -> Result<ExitCode> {
    let progress = Progress::new(true);
    let add_flags = |layers| arguments.access.add_to(arguments.cluster.add_to(layers));
    let file = arguments.config_file.as_deref();
    let settings = load_with(file, add_flags, &progress)?.settings;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the runtime does not start")?;
    let (listing, empty_message) = runtime.block_on(async {
        let cluster = Cluster::connect(&access(&settings)).await?;
        let namespace = cluster.namespace().to_owned();
        let (listing, scope) = list(&cluster, &namespace, &settings, &progress).await?;
        let empty_message = match listing.targets.is_empty() {
            true => Some(empty_message(
                &namespace,
                &searched(&cluster, &namespace, scope).await,
            )),
            false => None,
        };
        Ok::<_, cluster::Error>((listing, empty_message))
    })?;
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&listing.targets)?);
    } else {
        print!("{}", table(&listing));
    }
    if let Some(message) = empty_message {
        progress.warn(&message);
    }
    for warning in &listing.warnings {
        progress.warn(warning);
    }
    if !listing.forbidden.is_empty() {
        progress.warn(&format!(
            "not listed, because you lack the rights: {}",
            listing.forbidden.join(", ")
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Which clusters a listing covers.
#[derive(Clone, Copy)]
enum ListScope {
    /// This cluster only.
    SingleCluster,
    /// The clusters of an operator, which may coordinate several.
    OperatorClusters,
}

/// Where no target was found.
enum Searched {
    /// In this cluster, and whether the namespace exists, if that is known.
    ThisCluster(Option<bool>),
    /// In these clusters.
    Clusters(Vec<String>),
}

/// The cluster of a Primary may have neither targets nor their namespaces, so its namespaces are not checked.
async fn searched(cluster: &Cluster, namespace: &str, scope: ListScope) -> Searched {
    let has_namespace = cluster::has_namespace(cluster, namespace);
    match scope {
        ListScope::SingleCluster => Searched::ThisCluster(has_namespace.await),
        ListScope::OperatorClusters => match cluster::get_operator(cluster).await {
            Ok(operator) => match coordinated_clusters(&operator) {
                Some(clusters) => Searched::Clusters(clusters),
                None => Searched::ThisCluster(has_namespace.await),
            },
            Err(error) => {
                tracing::debug!(%error, "operator not readable");
                Searched::ThisCluster(None)
            }
        },
    }
}

fn empty_message(namespace: &str, searched: &Searched) -> String {
    let message = match searched {
        Searched::ThisCluster(Some(false)) => format!("there is no namespace {namespace}"),
        Searched::ThisCluster(_) => format!("there are no targets in the namespace {namespace}"),
        Searched::Clusters(clusters) => format!(
            "there are no targets in the namespace {namespace} of the clusters {}",
            clusters.join(", ")
        ),
    };
    format!("{message}; -n names another one, --context another cluster")
}

/// Lists through the operator if there is one: it knows the users of sessions, and lists targets that the user may not list.
/// If that fails, a warning is printed and the user's own rights are used.
async fn list(
    cluster: &Cluster,
    namespace: &str,
    settings: &Settings,
    progress: &Progress,
) -> cluster::Result<(Listing, ListScope)> {
    let operator = settings.operator;
    let through_operator = match operator {
        Some(forced) => forced,
        None => cluster::has_operator(cluster).await?,
    };
    let with_own_rights = async || {
        let listing = cluster::list(cluster, namespace).await?;
        Ok((listing, ListScope::SingleCluster))
    };
    if !through_operator {
        return with_own_rights().await;
    }
    let scope = match settings.multi_cluster {
        Some(false) => ListScope::SingleCluster,
        Some(true) | None => ListScope::OperatorClusters,
    };
    let listing = cluster::list_through_operator(cluster, namespace, settings.multi_cluster).await;
    let error = match listing {
        Err(error) if operator.is_none() => error,
        result => return result.map(|listing| (listing, scope)),
    };
    let listing = with_own_rights().await;
    match (listing, &error) {
        // The right to list through the operator is easier to get than those to list directly, so this error helps more.
        (Err(_), cluster::Error::AccessDenied { .. }) => Err(error),
        (Ok(listing), cluster::Error::AccessDenied { .. }) => Ok(listing),
        (listing, _) => {
            progress.warn(&format!("listed with your own rights, since {error}"));
            listing
        }
    }
}

fn table(listing: &Listing) -> String {
    let rows: Vec<_> = listing
        .targets
        .iter()
        .map(|target| {
            [
                target.target.clone(),
                target
                    .available
                    .map_or_else(|| "-".to_owned(), |pods| pods.to_string()),
                target.containers.join(", "),
                target.users.join(", "),
                target.clusters.join(", "),
            ]
        })
        .collect();
    let header = ["TARGET", "PODS", "CONTAINERS", "USERS", "CLUSTERS"];
    table::render(header, &rows)
}

#[cfg(test)]
mod tests {
    use cluster::ListedTarget;

    use super::*;

    #[test]
    fn a_missing_namespace_is_distinguished_from_an_empty_one() {
        let rest = "-n names another one, --context another cluster";
        let members = Searched::Clusters(vec!["east".to_owned(), "west".to_owned()]);
        for (searched, message) in [
            (
                Searched::ThisCluster(Some(false)),
                "there is no namespace shop",
            ),
            (
                Searched::ThisCluster(Some(true)),
                "there are no targets in the namespace shop",
            ),
            (
                Searched::ThisCluster(None),
                "there are no targets in the namespace shop",
            ),
            (
                members,
                "there are no targets in the namespace shop of the clusters east, west",
            ),
        ] {
            let expected = format!("{message}; {rest}");
            assert_eq!(empty_message("shop", &searched), expected);
        }
    }

    #[test]
    fn targets_are_shown_as_a_table() {
        let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect();
        let listed = |target: &str, available, containers: &[&str], users: &[&str]| ListedTarget {
            target: target.to_owned(),
            kind: "deployment".to_owned(),
            name: String::new(),
            namespace: String::new(),
            containers: texts(containers),
            available,
            users: texts(users),
            clusters: Vec::new(),
        };
        let mut listing = Listing {
            targets: vec![
                listed(
                    "deployment/checkout",
                    Some(12),
                    &["app", "helper"],
                    &["anna"],
                ),
                listed("service/none", None, &[], &[]),
            ],
            forbidden: Vec::new(),
            warnings: Vec::new(),
        };
        assert_eq!(
            table(&listing),
            "\
TARGET               PODS  CONTAINERS   USERS
deployment/checkout  12    app, helper  anna
service/none         -
"
        );
        listing.targets[0].clusters = texts(&["east", "west"]);
        assert_eq!(
            table(&listing),
            "\
TARGET               PODS  CONTAINERS   USERS  CLUSTERS
deployment/checkout  12    app, helper  anna   east, west
service/none         -
"
        );
    }
}
