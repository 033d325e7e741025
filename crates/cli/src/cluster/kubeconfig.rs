//! `standin cluster kubeconfig`: writes contexts for the clusters of a hub.

mod file;
mod merge;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Args;

use self::merge::{Entries, Plugin};
use super::client::HubClient;
use super::store::{Login, Store};
use super::trust::Verifier;
use super::{HubArguments, cluster_name};
use crate::environment::{HOME, KUBECONFIG, PATH};

const STANDARD_OUTPUT: &str = "-";
const PROGRAM: &str = "standin";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct KubeconfigArguments {
    /// Only this cluster; can be repeated. By default all clusters of the hub
    #[arg(long, value_name = "NAME", value_parser = cluster_name)]
    cluster: Vec<String>,
    /// The file, or `-` for standard output. By default what kubectl uses: KUBECONFIG, or ~/.kube/config
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    hub: HubArguments,
}

const EXAMPLES: &str = "\
Examples:
  # a context for each cluster, beside everything that the file has
  standin cluster kubeconfig
  kubectl --context hub.example.com/prod-eu get pods

  # a session in such a cluster
  standin exec --context hub.example.com/prod-eu -n shop -t deployment/checkout -- python3 server.py

  # a file with one cluster, for a program
  standin cluster kubeconfig --cluster prod-eu --output prod-eu.yaml

The file has no token: its contexts call `standin cluster credential`. The current context stays as it is. Run the command again after
a change of the hub's authority, and when there are new clusters.";

pub(super) async fn run(arguments: &KubeconfigArguments) -> Result<ExitCode> {
    let (login, client) = arguments.hub.connect().await?;
    let login = with_current_authorities(login, &client).await?;
    let entries = Entries {
        hub: &login.address,
        clusters: clusters(&arguments.cluster, &client).await?,
        authorities: login.authorities.as_deref(),
        plugin: Plugin {
            command: plugin_command(),
        },
    };
    if arguments.output.as_deref() == Some(Path::new(STANDARD_OUTPUT)) {
        print!("{}", merge::merge("", &entries)?);
        return Ok(ExitCode::SUCCESS);
    }
    let path = match &arguments.output {
        Some(path) => path.clone(),
        None => default_file()?,
    };
    file::update(&path, |text| merge::merge(text, &entries))?;
    println!("wrote to {}:", path.display());
    for cluster in &entries.clusters {
        println!("  {}", merge::context_name(&login.address, cluster));
    }
    if let Some(first) = entries.clusters.first() {
        let context = merge::context_name(&login.address, first);
        println!("next: `kubectl --context {context} get pods`");
    }
    Ok(ExitCode::SUCCESS)
}

/// The clusters that were named, which must exist, or all.
async fn clusters(named: &[String], client: &HubClient) -> Result<Vec<String>> {
    if named.is_empty() {
        let clusters = client.list().await.context(
            "--cluster NAME writes the context of one cluster, and needs no right to list all of them",
        )?;
        if clusters.is_empty() {
            bail!("the hub has no clusters yet; `standin cluster add NAME` adds one");
        }
        return Ok(clusters.into_iter().map(|cluster| cluster.name).collect());
    }
    for name in named {
        // Those who may use a cluster may not always see it in the list.
        match client.cluster(name).await {
            Err(error) if is_forbidden(&error) => {}
            result => result.map(drop)?,
        }
    }
    Ok(named.to_vec())
}

fn is_forbidden(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<super::error::HubError>();
    error.and_then(super::error::HubError::status) == Some(axum::http::StatusCode::FORBIDDEN)
}

/// The login with the authorities that the hub has now, since they may have been rotated.
async fn with_current_authorities(mut login: Login, client: &HubClient) -> Result<Login> {
    // With a public certificate, kubeconfigs need no authority.
    if login.authorities.is_none() && login.pin.is_none() {
        return Ok(login);
    }
    let description = client.describe().await?;
    if description.ca_bundle.is_some() && description.ca_bundle != login.authorities {
        let named = description.ca_bundle.as_deref();
        let verifier = Verifier::new(named, None).context("the authorities that the hub names")?;
        let with_named = HubClient::new(login.address.clone(), verifier, None)?;
        with_named
            .check_trust()
            .await
            .context("the hub names authorities that did not sign its own certificate")?;
        login.authorities = description.ca_bundle;
        Store::open()?.save(&login)?;
    }
    if login.authorities.is_none() {
        bail!(
            "you trust the hub {hub} by its pin, and Kubernetes clients need its authority, which the hub does not name; log in again: \
             `standin cluster login {url} --ca-file FILE`",
            hub = login.address,
            url = login.address.url()
        );
    }
    Ok(login)
}

/// The file to which kubectl would write new contexts.
fn default_file() -> Result<PathBuf> {
    let variable = env::var_os(KUBECONFIG).unwrap_or_default();
    let files = env::split_paths(&variable).filter(|path| !path.as_os_str().is_empty());
    let files: Vec<PathBuf> = files.collect();
    let existing = files.iter().find(|path| path.exists());
    if let Some(path) = existing.or(files.last()) {
        return Ok(path.clone());
    }
    let home = env::var_os(HOME).with_context(|| {
        format!("{HOME} is not set, so there is no default kubeconfig; --output names a file")
    })?;
    Ok(Path::new(&home).join(".kube/config"))
}

/// The name of this program if a shell would find it, so that the file works after an update, and otherwise its path.
fn plugin_command() -> String {
    let own = env::current_exe().and_then(fs::canonicalize);
    let Ok(own) = own else {
        return PROGRAM.to_owned();
    };
    let folders = env::var_os(PATH).unwrap_or_default();
    let found = env::split_paths(&folders)
        .map(|folder| folder.join(PROGRAM))
        .find(|path| path.is_file());
    let is_own = found.is_some_and(|path| fs::canonicalize(path).is_ok_and(|path| path == own));
    match is_own {
        true => PROGRAM.to_owned(),
        false => own.to_string_lossy().into_owned(),
    }
}
