//! TLS termination with the target's certificate, and TLS to the application.

use std::io;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::stream::{BoxFuture, BoxStream, ClientTls, ConnectionMeta, Destination};

/// How TLS connections to the target are terminated here and originated again to the application.
#[derive(Clone)]
pub struct TlsTermination {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

impl TlsTermination {
    /// `server` has the target's certificates and the ALPN protocols that the application supports. `client` decides which
    /// certificates of the application are trusted.
    pub fn new(server: Arc<ServerConfig>, client: Arc<ClientConfig>) -> Self {
        Self { server, client }
    }

    /// Accepts a client's TLS handshake.
    pub(crate) async fn accept(
        &self,
        client: BoxStream,
        _arrival: &ConnectionMeta,
    ) -> io::Result<(BoxStream, Arc<ClientTls>)> {
        let stream = TlsAcceptor::from(self.server.clone())
            .accept(client)
            .await?;
        let (_, connection) = stream.get_ref();
        let client_tls = ClientTls {
            server_name: connection.server_name().map(str::to_owned),
            application_protocol: connection.alpn_protocol().map(<[u8]>::to_vec),
        };
        Ok((Box::new(stream), Arc::new(client_tls)))
    }

    /// Wraps the application so that it gets the same server name and protocol that the client negotiated.
    pub(crate) fn originate(
        &self,
        application: Arc<dyn Destination>,
        client_tls: &Arc<ClientTls>,
    ) -> Arc<dyn Destination> {
        let mut client = self.client.as_ref().clone();
        client.alpn_protocols = client_tls
            .application_protocol
            .clone()
            .into_iter()
            .collect();
        Arc::new(TlsApplication {
            application,
            client: Arc::new(client),
            client_tls: client_tls.clone(),
        })
    }
}

/// The application, reached with TLS.
struct TlsApplication {
    application: Arc<dyn Destination>,
    client: Arc<ClientConfig>,
    client_tls: Arc<ClientTls>,
}

impl Destination for TlsApplication {
    fn open<'a>(&'a self, meta: &'a ConnectionMeta) -> BoxFuture<'a, io::Result<BoxStream>> {
        Box::pin(async move {
            let stream = self.application.open(meta).await?;
            let server_name = self.client_tls.server_name.clone();
            let name = match server_name.map(ServerName::try_from) {
                Some(Ok(name)) => name,
                // A client without SNI connected to an address.
                _ => ServerName::from(meta.server.ip()),
            };
            let connector = TlsConnector::from(self.client.clone());
            let stream = connector.connect(name, stream).await?;
            Ok(Box::new(stream) as BoxStream)
        })
    }
}

impl std::fmt::Debug for TlsTermination {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("TlsTermination")
    }
}
