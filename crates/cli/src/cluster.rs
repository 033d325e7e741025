//! `standin cluster`: the clusters of a hub, and access to them.
//!
//! | module | what it does |
//! |---|---|
//! | `address` | the address of a hub |
//! | `store` | the logins of this user, one file for each hub |
//! | `token` | the user's token for a hub, and when it expires |
//! | `trust` | verifies a hub's certificate by authorities or by the pin of its key |
//! | `client`, `connection`, `error` | sends requests to a hub, also through a proxy, and explains what went wrong |
//! | `login`, `credential` | `login`, `logout`, and the credential plugin for Kubernetes clients |
//! | `kubeconfig` | writes contexts |
//! | `list`, `onboarding`, `removal` | `list`; `add` and `token`; `revoke` and `remove` |
//! | `prompt` | questions to the user |

mod address;
mod client;
mod connection;
mod credential;
mod error;
mod kubeconfig;
mod list;
mod login;
mod onboarding;
mod prompt;
mod removal;
mod store;
mod token;
mod trust;

use std::env;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand};

use crate::environment::HUB;
use address::HubAddress;
use client::HubClient;
use store::{Login, Store};

#[derive(Debug, Args)]
#[command(arg_required_else_help = true, after_help = EXAMPLES)]
pub(crate) struct ClusterArguments {
    #[command(subcommand)]
    command: ClusterCommand,
}

const EXAMPLES: &str = "\
A hub reaches clusters that can only dial out: an agent in each of them keeps a tunnel to the hub. kubectl, helm, `standin exec` and
every other Kubernetes client use such a cluster through the hub, as yourself and with your own rights there.

Examples:
  # log in with a context of the cluster in which the hub runs
  standin cluster login https://hub.example.com --kube-context central

  # write a context for each cluster, and use one
  standin cluster kubeconfig
  kubectl --context hub.example.com/prod-eu get pods

  # connect another cluster: prints what to run on it, and waits for it
  standin cluster add prod-us --wait

  # show all clusters, and what is wrong with those that are not connected
  standin cluster list";

#[derive(Debug, Subcommand)]
enum ClusterCommand {
    /// Log in to a hub, so that the other commands and Kubernetes clients can use it
    Login(login::LoginArguments),
    /// Forget a hub and the token for it
    Logout(login::LogoutArguments),
    /// List the clusters of a hub, and whether they are connected
    #[command(visible_alias = "ls")]
    List(list::ListArguments),
    /// Write contexts for the clusters of a hub into a kubeconfig
    Kubeconfig(kubeconfig::KubeconfigArguments),
    /// Register a cluster, and print how to connect it
    Add(onboarding::AddArguments),
    /// Print a token with which the agent of a cluster registers
    Token(onboarding::TokenArguments),
    /// Disconnect a cluster at once, and refuse its certificates from now on
    Revoke(removal::RevokeArguments),
    /// Remove a cluster from a hub
    #[command(visible_alias = "rm")]
    Remove(removal::RemoveArguments),
    /// Print your credential for a hub: the plugin that kubeconfigs call
    Credential(credential::CredentialArguments),
}

pub(crate) fn run(arguments: &ClusterArguments) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the runtime does not start")?;
    runtime.block_on(async {
        match &arguments.command {
            ClusterCommand::Login(arguments) => login::login(arguments).await,
            ClusterCommand::Logout(arguments) => login::logout(arguments),
            ClusterCommand::List(arguments) => list::run(arguments).await,
            ClusterCommand::Kubeconfig(arguments) => kubeconfig::run(arguments).await,
            ClusterCommand::Add(arguments) => onboarding::add(arguments).await,
            ClusterCommand::Token(arguments) => onboarding::token(arguments).await,
            ClusterCommand::Revoke(arguments) => removal::revoke(arguments).await,
            ClusterCommand::Remove(arguments) => removal::remove(arguments).await,
            ClusterCommand::Credential(arguments) => credential::run(arguments).await,
        }
    })
}

/// Selects one of the hubs to which the user is logged in.
#[derive(Debug, Args)]
struct HubArguments {
    /// The hub, if you are logged in to several; by default STANDIN_HUB
    #[arg(long, value_name = "HUB")]
    hub: Option<HubAddress>,
}

impl HubArguments {
    fn login(&self) -> Result<Login> {
        self.login_in(&Store::open()?)
    }

    fn login_in(&self, store: &Store) -> Result<Login> {
        if let Some(address) = self.named()? {
            return store.load(&address);
        }
        let mut logins = store.all()?;
        match (logins.pop(), logins.is_empty()) {
            (Some(login), true) => Ok(login),
            (Some(last), false) => {
                let names = logins.iter().chain([&last]);
                let names: Vec<String> = names.map(|login| login.address.name()).collect();
                bail!(
                    "you are logged in to several hubs: {}; name one with --hub or {HUB}",
                    names.join(", ")
                )
            }
            (None, _) => bail!(
                "you are not logged in to a hub; `standin cluster login --help` shows how to log in"
            ),
        }
    }

    fn named(&self) -> Result<Option<HubAddress>> {
        if self.hub.is_some() {
            return Ok(self.hub.clone());
        }
        let Some(named) = env::var_os(HUB).filter(|named| !named.is_empty()) else {
            return Ok(None);
        };
        let named = named.to_string_lossy();
        let address = named.parse().map_err(anyhow::Error::msg);
        address.map(Some).context(HUB)
    }

    /// The login, and a client that sends its token.
    async fn connect(&self) -> Result<(Login, HubClient)> {
        let login = self.login()?;
        let client = HubClient::with_login(&login).await?;
        Ok((login, client))
    }
}

/// A cluster's name, which is also the name of an object and of a path.
fn cluster_name(text: &str) -> Result<String, &'static str> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_allowed = |byte: u8| is_plain(byte) || byte == b'-' || byte == b'.';
    let bytes = text.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    match text.len() <= 63
        && bytes.iter().copied().all(is_allowed)
        && ends.iter().all(|end| end.is_some_and(|end| is_plain(*end)))
        && !text.contains("..")
    {
        true => Ok(text.to_owned()),
        false => Err(
            "a cluster's name has up to 63 small letters, digits, `-` and `.`, and begins and ends with a letter or digit",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_clusters_are_names_of_objects_and_paths() {
        for (name, expected) in [
            ("prod-eu", true),
            ("prod.k8s.example.com", true),
            ("1", true),
            ("", false),
            ("Prod", false),
            ("a/b", false),
            ("..", false),
            ("a..b", false),
            ("-a", false),
            ("a-", false),
            ("a b", false),
            (&"a".repeat(64), false),
        ] {
            assert_eq!(cluster_name(name).is_ok(), expected, "{name}");
        }
    }
}
