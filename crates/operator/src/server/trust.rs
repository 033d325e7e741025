//! Whom the server trusts and how it shows who it is. Both change while it runs, and connections take what is there when
//! they begin.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use rustls::ServerConfig;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;

use crate::certificates::Certificates;
use crate::error::{Result, chain};
use crate::front_proxy::FrontProxy;

/// Clusters exchange the front proxy's authority rarely, and trust old and new for a while.
const BETWEEN_LOOKS: Duration = Duration::from_secs(30);

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
    fn new(front_proxy: FrontProxy, certificates: &Certificates) -> Result<Self> {
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

/// Puts new certificates and a new front proxy into effect.
pub(crate) struct TrustKeeper {
    client: Client,
    certificates: watch::Receiver<Certificates>,
    current: watch::Sender<Arc<Trust>>,
}

impl TrustKeeper {
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

    pub(crate) async fn keep(mut self) {
        loop {
            let has_changed = tokio::select! {
                changed = self.certificates.changed() => changed.is_ok(),
                () = sleep(BETWEEN_LOOKS) => false,
            };
            if let Err(error) = self.look(has_changed).await {
                tracing::warn!(error = chain(&error), "trust could not be looked after");
            }
        }
    }

    async fn look(&mut self, has_changed: bool) -> Result<()> {
        let front_proxy = FrontProxy::read(&self.client).await?;
        let is_new = front_proxy != self.current.borrow().front_proxy;
        // Also where nothing is new: what failed the last time may not fail now.
        let trust = Trust::new(front_proxy, &self.certificates.borrow_and_update())?;
        self.current.send_replace(Arc::new(trust));
        if has_changed {
            tracing::info!("new certificates are shown from now on");
        }
        if is_new {
            tracing::info!("the front proxy has changed");
        }
        Ok(())
    }
}
