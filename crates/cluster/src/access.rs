//! Which cluster to use, and with which credentials: what `kubectl` would use, unless overridden.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::client::client;
use crate::error::{Error, Result};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How to access a cluster. The default is what `kubectl` does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// Overrides `KUBECONFIG` and `~/.kube/config`.
    pub kubeconfig: Option<PathBuf>,
    /// Overrides the current context.
    pub context: Option<String>,
    /// Overrides the context's namespace.
    pub namespace: Option<String>,
    /// Ignore the proxy settings of the environment.
    pub no_proxy: bool,
    /// Skip the verification of the API server's certificate.
    pub accept_invalid_certificates: bool,
}

/// A cluster and the credentials for it. Clones share state.
#[derive(Clone)]
pub struct Cluster {
    pub(crate) client: Client,
    namespace: String,
    server: String,
    /// The name of its context in the user's kubeconfig.
    context: Option<String>,
    /// Whether the API server cannot connect to pods by their addresses, or does not allow it.
    direct_disabled: Arc<AtomicBool>,
}

impl Cluster {
    /// Reads the kubeconfig. Sends no request to the API server yet.
    pub async fn connect(access: &Access) -> Result<Self> {
        let (mut config, context) = config(access).await?;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        // The connection of a session may be idle for a long time.
        config.read_timeout = None;
        config.write_timeout = None;
        // The caller decides about retries. The library would retry for minutes while an operator is down, and the user
        // would see the error only after that.
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
            direct_disabled: Arc::default(),
        })
    }

    /// Uses an existing client.
    pub fn new(client: Client, namespace: impl Into<String>) -> Self {
        Self {
            client,
            namespace: namespace.into(),
            server: "of the cluster".to_owned(),
            context: None,
            direct_disabled: Arc::default(),
        }
    }

    /// Whether to try connections to pods by their addresses. True until an attempt has failed.
    pub(crate) fn reaches_pods(&self) -> bool {
        !self.direct_disabled.load(Ordering::Relaxed)
    }

    /// Remembers a failed attempt, so that it is not repeated for each agent.
    pub(crate) fn disable_direct_connections(&self) {
        self.direct_disabled.store(true, Ordering::Relaxed);
    }

    /// The name of its context in the user's kubeconfig, if there is one.
    pub fn context(&self) -> Option<&str> {
        self.context.as_deref()
    }

    /// The default namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The error of a first request, which may also mean that the API server is unreachable.
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

/// The client configuration and the name of the context.
pub(crate) async fn config(access: &Access) -> Result<(Config, Option<String>)> {
    let options = KubeConfigOptions {
        context: access.context.clone(),
        ..KubeConfigOptions::default()
    };
    let kubeconfig = match &access.kubeconfig {
        Some(path) => Kubeconfig::read_from(path)?,
        None => match Kubeconfig::read() {
            Ok(kubeconfig) => kubeconfig,
            // In a pod there is no kubeconfig, and none is needed.
            Err(error) if access.context.is_none() => {
                let config = Config::incluster().map_err(|_| Error::from(error))?;
                return Ok((config, None));
            }
            Err(error) => return Err(error.into()),
        },
    };
    let context = access.context.clone();
    let context = context.or_else(|| kubeconfig.current_context.clone());
    ensure_context_exists(context.as_deref(), &kubeconfig)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    Ok((config, context))
}

/// The error for an unknown context lists the existing ones.
fn ensure_context_exists(context: Option<&str>, kubeconfig: &Kubeconfig) -> Result<()> {
    let names = kubeconfig.contexts.iter().map(|context| &context.name);
    let available: Vec<String> = names.cloned().collect();
    match context {
        Some(context) if available.iter().any(|name| name == context) => Ok(()),
        // The library has its own error for an empty kubeconfig.
        _ if available.is_empty() => Ok(()),
        context => Err(Error::NoContext {
            context: context.unwrap_or_default().to_owned(),
            available,
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
    fn the_error_for_an_unknown_context_lists_the_existing_ones() {
        let check = |names: &[&str], context: Option<&str>, expected: Option<&str>| {
            let contexts = names.iter().map(|name| format!("{{name: {name}}}"));
            let contexts = contexts.collect::<Vec<_>>().join(", ");
            let kubeconfig = Kubeconfig::from_yaml(&format!("contexts: [{contexts}]")).unwrap();
            let result = ensure_context_exists(context, &kubeconfig);
            let error = result.map_err(|error| error.to_string()).err();
            assert_eq!(error.as_deref(), expected);
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
