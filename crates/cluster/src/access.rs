//! Which cluster, and as whom: what `kubectl` would use, unless something else is said.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::client::client;
use crate::error::{Error, Result};

const CONNECT: Duration = Duration::from_secs(10);

/// How to get to a cluster. Nothing set is what `kubectl` does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// In place of `KUBECONFIG` and `~/.kube/config`.
    pub kubeconfig: Option<PathBuf>,
    /// In place of the current context.
    pub context: Option<String>,
    /// In place of the context's namespace.
    pub namespace: Option<String>,
    /// Do not go through the proxy that the environment names.
    pub no_proxy: bool,
    /// Believe an API server whose certificate nobody vouches for.
    pub accept_invalid_certificates: bool,
}

/// A cluster that we have credentials for. Clones are the same.
#[derive(Clone)]
pub struct Cluster {
    pub(crate) client: Client,
    namespace: String,
    server: String,
    /// What the user's kubeconfig calls it.
    context: Option<String>,
    /// Its API server does not get to pods by their addresses, or not for us.
    no_direct_way: Arc<AtomicBool>,
}

impl Cluster {
    /// Reads the kubeconfig. Nothing is asked of the API server yet.
    pub async fn connect(access: &Access) -> Result<Self> {
        let (mut config, context) = config(access).await?;
        config.connect_timeout = Some(CONNECT);
        // A connection of a session may well be silent for long.
        config.read_timeout = None;
        config.write_timeout = None;
        // Whoever asks decides whether to ask again. The library would go on for minutes where an operator is down, and
        // what a user is told would come after them.
        config.default_retry = false;
        if access.no_proxy {
            config.proxy_url = None;
        }
        config.accept_invalid_certs |= access.accept_invalid_certificates;
        if let Some(namespace) = &access.namespace {
            config.default_namespace.clone_from(namespace);
        }
        let namespace = config.default_namespace.clone();
        let server = config.cluster_url.to_string();
        let client = client(config).map_err(|error| Error::Client(Box::new(error)))?;
        Ok(Self {
            client,
            namespace,
            server,
            context,
            no_direct_way: Arc::default(),
        })
    }

    /// For those who have a client already.
    pub fn new(client: Client, namespace: impl Into<String>) -> Self {
        Self {
            client,
            namespace: namespace.into(),
            server: "of the cluster".to_owned(),
            context: None,
            no_direct_way: Arc::default(),
        }
    }

    /// Whether its API server may get to pods by their addresses, as far as is known.
    pub(crate) fn reaches_pods(&self) -> bool {
        !self.no_direct_way.load(Ordering::Relaxed)
    }

    /// It does not, or we may not ask it to. What was tried once is not tried for each agent.
    pub(crate) fn does_not_reach_pods(&self) {
        self.no_direct_way.store(true, Ordering::Relaxed);
    }

    /// What the user's kubeconfig calls it, if there is one.
    pub fn context(&self) -> Option<&str> {
        self.context.as_deref()
    }

    /// The namespace that is meant when none is named.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// An error of the first question: whether there is an API server at all.
    pub(crate) fn first_error(&self, action: &str, source: kube::Error) -> Error {
        match source {
            kube::Error::Service(_) | kube::Error::HyperError(_) => Error::Unreachable {
                server: self.server.clone(),
                source: Box::new(source),
            },
            source => Error::api(action, source),
        }
    }
}

/// How to get there, and what it is called.
async fn config(access: &Access) -> Result<(Config, Option<String>)> {
    let options = KubeConfigOptions {
        context: access.context.clone(),
        ..KubeConfigOptions::default()
    };
    let kubeconfig = match &access.kubeconfig {
        Some(path) => Kubeconfig::read_from(path)?,
        None => match Kubeconfig::read() {
            Ok(kubeconfig) => kubeconfig,
            // Inside of a pod there is none, and none is needed.
            Err(error) if access.context.is_none() => {
                let config = Config::incluster().map_err(|_| Error::from(error))?;
                return Ok((config, None));
            }
            Err(error) => return Err(error.into()),
        },
    };
    let context = access.context.clone();
    let context = context.or_else(|| kubeconfig.current_context.clone());
    ensure_there(context.as_deref(), &kubeconfig)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    Ok((config, context))
}

/// Whoever misspells a context is told which there are.
fn ensure_there(context: Option<&str>, kubeconfig: &Kubeconfig) -> Result<()> {
    let named = kubeconfig.contexts.iter().map(|context| &context.name);
    let there: Vec<String> = named.cloned().collect();
    match context {
        Some(context) if there.iter().any(|name| name == context) => Ok(()),
        // The library has words for a file in which there is nothing.
        _ if there.is_empty() => Ok(()),
        context => Err(Error::NoContext {
            context: context.unwrap_or_default().to_owned(),
            there,
        }),
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("Cluster");
        debug
            .field("server", &self.server)
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_that_is_not_there_is_answered_with_those_that_are() {
        let check = |names: &[&str], context: Option<&str>, expected: Option<&str>| {
            let contexts = names.iter().map(|name| format!("{{name: {name}}}"));
            let contexts = contexts.collect::<Vec<_>>().join(", ");
            let kubeconfig = Kubeconfig::from_yaml(&format!("contexts: [{contexts}]")).unwrap();
            let said = ensure_there(context, &kubeconfig).map_err(|error| error.to_string());
            assert_eq!(said.err().as_deref(), expected);
        };
        check(&["east", "west"], Some("west"), None);
        check(&[], Some("west"), None);
        check(
            &["east", "west"],
            Some("wset"),
            Some(
                "there is no context `wset` in the kubeconfig; it has east, west. --context names one, --kubeconfig another file",
            ),
        );
        check(
            &["east"],
            None,
            Some(
                "the kubeconfig has no current context; it has east. --context names one, --kubeconfig another file",
            ),
        );
    }
}
