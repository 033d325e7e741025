//! Towards an application that speaks TLS itself: what was read inside of TLS at the target is put into TLS again.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use config::{DeliveryProtocol, TlsDeliverySettings};
use interceptor::Transport;
use protocol::incoming::ArrivedTls;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::copy_bidirectional;
use tokio::net::UnixStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::verify;
use crate::error::Error;
use crate::stream::LocalStream;

/// How long the application may take to agree on TLS.
const SPEAKS_WITHIN: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct TlsDelivery {
    config: ClientConfig,
    server_name: Option<ServerName<'static>>,
}

impl TlsDelivery {
    /// None where the application gets it without TLS.
    pub(super) fn new(settings: &TlsDeliverySettings) -> Result<Option<Self>, Error> {
        if settings.protocol == DeliveryProtocol::Tcp {
            return Ok(None);
        }
        let server_name = match &settings.server_name {
            Some(name) => Some(
                ServerName::try_from(name.clone()).map_err(|_| Error::ServerName(name.clone()))?,
            ),
            None => None,
        };
        let config = verify::config(settings)?;
        Ok(Some(Self {
            config,
            server_name,
        }))
    }

    /// Puts TLS around a connection to the application.
    pub(super) async fn wrap(
        &self,
        local: LocalStream,
        asked: &ArrivedTls,
    ) -> io::Result<LocalStream> {
        let mut config = self.config.clone();
        config.alpn_protocols = asked.application_protocol.iter().cloned().collect();
        let asked_name = asked.server_name.as_ref();
        let asked_name = asked_name.and_then(|name| ServerName::try_from(name.clone()).ok());
        let name = self.server_name.clone().or(asked_name);
        let name = match name {
            Some(name) => name,
            None => ServerName::try_from("localhost").map_err(io::Error::other)?,
        };
        let (stream, kept) = local.into_tcp()?;
        let connector = TlsConnector::from(Arc::new(config));
        // A program that is stopped, or speaks no TLS, would be waited for as long as the session lasts.
        let connecting = timeout(SPEAKS_WITHIN, connector.connect(name, stream));
        let mut outside = connecting.await.map_err(io::Error::from)??;
        let (ours, mut inside) = UnixStream::pair()?;
        tokio::spawn(async move {
            let _kept = kept;
            if let Err(error) = copy_bidirectional(&mut inside, &mut outside).await {
                tracing::debug!(%error, "a connection with TLS to the application ended");
            }
        });
        LocalStream::new(Transport::Unix, OwnedFd::from(ours.into_std()?), ())
    }
}
