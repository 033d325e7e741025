//! TLS, when the target's certificates are known: ended here, and begun again towards the application.

use std::io;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::stream::{Arrival, BoxFuture, BoxStream, Destination, TlsFacts};

/// How connections that are encrypted for the target are looked into.
#[derive(Clone)]
pub struct Tls {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

impl Tls {
    /// `server` has the target's certificates and the application protocols that the application speaks; `client` says
    /// which certificates of the application are trusted.
    pub fn new(server: Arc<ServerConfig>, client: Arc<ClientConfig>) -> Self {
        Self { server, client }
    }

    /// Answers a client that asks for TLS.
    pub(crate) async fn accept(
        &self,
        client: BoxStream,
        _arrival: &Arrival,
    ) -> io::Result<(BoxStream, Arc<TlsFacts>)> {
        let stream = TlsAcceptor::from(self.server.clone())
            .accept(client)
            .await?;
        let (_, connection) = stream.get_ref();
        let facts = TlsFacts {
            server_name: connection.server_name().map(str::to_owned),
            application_protocol: connection.alpn_protocol().map(<[u8]>::to_vec),
        };
        Ok((Box::new(stream), Arc::new(facts)))
    }

    /// The application, reached as the client would have reached it.
    pub(crate) fn towards(
        &self,
        original: Arc<dyn Destination>,
        facts: &Arc<TlsFacts>,
    ) -> Arc<dyn Destination> {
        let mut client = self.client.as_ref().clone();
        client.alpn_protocols = facts.application_protocol.clone().into_iter().collect();
        Arc::new(Encrypted {
            original,
            client: Arc::new(client),
            facts: facts.clone(),
        })
    }
}

/// The application behind TLS.
struct Encrypted {
    original: Arc<dyn Destination>,
    client: Arc<ClientConfig>,
    facts: Arc<TlsFacts>,
}

impl Destination for Encrypted {
    fn open<'a>(&'a self, arrival: &'a Arrival) -> BoxFuture<'a, io::Result<BoxStream>> {
        Box::pin(async move {
            let stream = self.original.open(arrival).await?;
            let named = self.facts.server_name.clone();
            let name = match named.map(ServerName::try_from) {
                Some(Ok(name)) => name,
                // A client that named nobody asked for an address.
                _ => ServerName::from(arrival.server.ip()),
            };
            let connector = TlsConnector::from(self.client.clone());
            let stream = connector.connect(name, stream).await?;
            Ok(Box::new(stream) as BoxStream)
        })
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Tls")
    }
}
