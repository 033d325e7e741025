//! `standin ls`: what there is to stand in for in a namespace.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use cluster::{Cluster, Listing};
use config::Settings;

use crate::exec::settings::load_with;
use crate::exec::{ClusterFlags, Progress, WayFlags, access, coordinated_clusters};
use crate::table;

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LsArguments {
    #[command(flatten)]
    cluster: ClusterFlags,
    #[command(flatten)]
    way: WayFlags,
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

Names of the first column are what `standin exec -t` takes. Where the cluster has an operator, who has a session with what
is shown as well, and where it coordinates other clusters, which of them have what.";

pub(crate) fn run(arguments: &LsArguments) -> Result<ExitCode> {
    let progress = Progress::new(true);
    let add_flags = |layers| arguments.way.add_to(arguments.cluster.add_to(layers));
    let file = arguments.config_file.as_deref();
    let settings = load_with(file, add_flags, &progress)?.settings;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the runtime does not start")?;
    let (listing, nothing) = runtime.block_on(async {
        let cluster = Cluster::connect(&access(&settings)).await?;
        let namespace = cluster.namespace().to_owned();
        let (listing, way) = list(&cluster, &namespace, &settings, &progress).await?;
        let nothing = match listing.targets.is_empty() {
            true => Some(nothing(
                &namespace,
                &looked(&cluster, &namespace, way).await,
            )),
            false => None,
        };
        Ok::<_, cluster::Error>((listing, nothing))
    })?;
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&listing.targets)?);
    } else {
        print!("{}", table(&listing));
    }
    if let Some(nothing) = nothing {
        progress.say(&nothing);
    }
    for warning in &listing.warnings {
        progress.say(warning);
    }
    if !listing.forbidden.is_empty() {
        progress.say(&format!(
            "not listed, because you may not: {}",
            listing.forbidden.join(", ")
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Who was asked.
#[derive(Clone, Copy)]
enum Way {
    /// This cluster, by the user or by its operator.
    One,
    /// An operator, which may coordinate other clusters.
    Many,
}

/// Where there is nothing.
enum Looked {
    /// In this cluster, and whether the namespace is there, if that can be known.
    Here(Option<bool>),
    /// In these clusters.
    In(Vec<String>),
}

/// A Primary may have neither targets nor their namespaces, so its own say nothing of what there is.
async fn looked(cluster: &Cluster, namespace: &str, way: Way) -> Looked {
    let has_namespace = cluster::has_namespace(cluster, namespace);
    match way {
        Way::One => Looked::Here(has_namespace.await),
        Way::Many => match cluster::operator(cluster).await {
            Ok(operator) => match coordinated_clusters(&operator) {
                Some(clusters) => Looked::In(clusters),
                None => Looked::Here(has_namespace.await),
            },
            Err(error) => {
                tracing::debug!(%error, "whether there are several clusters is not known");
                Looked::Here(None)
            }
        },
    }
}

fn nothing(namespace: &str, looked: &Looked) -> String {
    let what = match looked {
        Looked::Here(Some(false)) => format!("there is no namespace {namespace}"),
        Looked::Here(_) => format!("there is nothing in the namespace {namespace}"),
        Looked::In(clusters) => format!(
            "nothing was found in the namespace {namespace} of the clusters {}",
            clusters.join(", ")
        ),
    };
    format!("{what}; -n names another one, --context another cluster")
}

/// Through the operator where there is one: it knows who is where, and shows what the user may not look up. A list is a
/// list, so an operator that cannot give one is said, and the user's own rights are tried.
async fn list(
    cluster: &Cluster,
    namespace: &str,
    settings: &Settings,
    progress: &Progress,
) -> cluster::Result<(Listing, Way)> {
    let operator = settings.operator;
    let through_operator = match operator {
        Some(forced) => forced,
        None => cluster::has_operator(cluster).await?,
    };
    let with_own_rights = async || Ok((cluster::list(cluster, namespace).await?, Way::One));
    if !through_operator {
        return with_own_rights().await;
    }
    let way = match settings.multi_cluster {
        Some(false) => Way::One,
        Some(true) | None => Way::Many,
    };
    let listing = cluster::list_through_operator(cluster, namespace, settings.multi_cluster).await;
    let error = match listing {
        Err(error) if operator.is_none() => error,
        result => return result.map(|listing| (listing, way)),
    };
    let listing = with_own_rights().await;
    match (listing, &error) {
        // What is missing is a right at the operator's, which is less than those for the other way.
        (Err(_), cluster::Error::MayNot { .. }) => Err(error),
        (Ok(listing), cluster::Error::MayNot { .. }) => Ok(listing),
        (listing, _) => {
            progress.say(&format!("listed with your own rights, since {error}"));
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
    use cluster::Listed;

    use super::*;

    #[test]
    fn a_namespace_that_is_not_there_is_told_from_an_empty_one() {
        let rest = "-n names another one, --context another cluster";
        let members = Looked::In(vec!["east".to_owned(), "west".to_owned()]);
        for (looked, what) in [
            (Looked::Here(Some(false)), "there is no namespace shop"),
            (
                Looked::Here(Some(true)),
                "there is nothing in the namespace shop",
            ),
            (Looked::Here(None), "there is nothing in the namespace shop"),
            (
                members,
                "nothing was found in the namespace shop of the clusters east, west",
            ),
        ] {
            assert_eq!(nothing("shop", &looked), format!("{what}; {rest}"));
        }
    }

    #[test]
    fn a_table_has_columns() {
        let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect();
        let listed = |target: &str, available, containers: &[&str], users: &[&str]| Listed {
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
