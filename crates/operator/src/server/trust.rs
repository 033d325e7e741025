//! The TLS configuration of the server: its certificate, and the client certificates that it accepts. Both change at run
//! time; a connection uses the configuration of the moment at which it begins.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use error_chain::error_chain;
use kube::Client;
use rustls::ServerConfig;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;

use crate::certificates::Certificates;
use crate::error::Result;
use crate::front_proxy::FrontProxy;

/// Clusters rotate the front proxy's authority rarely, and trust the old and the new one for a while.
const RELOAD_INTERVAL: Duration = Duration::from_secs(30);

pub(crate) struct Trust {
    front_proxy: FrontProxy,
    acceptor: TlsAcceptor,
}

impl fmt::Debug for Trust {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Trust")
    }
}

impl Trust {
    pub(crate) fn new(front_proxy: FrontProxy, certificates: &Certificates) -> Result<Self> {
        let (chain, key) = certificates.for_server()?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?
            .with_client_cert_verifier(front_proxy.verifier()?)
            .with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self {
            front_proxy,
            acceptor: TlsAcceptor::from(Arc::new(config)),
        })
    }

    pub(crate) fn front_proxy(&self) -> &FrontProxy {
        &self.front_proxy
    }

    pub(crate) fn acceptor(&self) -> &TlsAcceptor {
        &self.acceptor
    }
}

/// Reloads the server's certificates and the front proxy's configuration.
pub(crate) struct TrustReloader {
    client: Client,
    certificates: watch::Receiver<Certificates>,
    current: watch::Sender<Arc<Trust>>,
}

impl TrustReloader {
    pub(crate) async fn start(
        client: Client,
        mut certificates: watch::Receiver<Certificates>,
    ) -> Result<Self> {
        let front_proxy = FrontProxy::read(&client).await?;
        let trust = Trust::new(front_proxy, &certificates.borrow_and_update())?;
        Ok(Self {
            client,
            certificates,
            current: watch::Sender::new(Arc::new(trust)),
        })
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<Trust>> {
        self.current.subscribe()
    }

    pub(crate) async fn run(mut self) {
        loop {
            let has_changed = tokio::select! {
                changed = self.certificates.changed() => changed.is_ok(),
                () = sleep(RELOAD_INTERVAL) => false,
            };
            if let Err(error) = self.reload(has_changed).await {
                tracing::warn!(error = error_chain(&error), "TLS reload failed");
            }
        }
    }

    async fn reload(&mut self, has_changed: bool) -> Result<()> {
        let front_proxy = FrontProxy::read(&self.client).await?;
        let is_new = front_proxy != self.current.borrow().front_proxy;
        // Also without a change: the last attempt may have failed.
        let trust = Trust::new(front_proxy, &self.certificates.borrow_and_update())?;
        self.current.send_replace(Arc::new(trust));
        if has_changed {
            tracing::info!("TLS certificates reloaded");
        }
        if is_new {
            tracing::info!("front proxy configuration reloaded");
        }
        Ok(())
    }
}
