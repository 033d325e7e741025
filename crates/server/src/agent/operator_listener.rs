//! The listener for the operator, which is the only client that may change the grant of a session or end it. No client of a
//! session uses it, so that no load of sessions or of other pods delays the operator.

use std::net::SocketAddr;
use std::time::Duration;

use admission::{Admission, Limits, Permit, accept};
use anyhow::{Context, Result};
use link::tls::{AcceptedStream, TlsAcceptor};
use tokio::net::{TcpListener, TcpStream};

/// The permits of connections that TLS has not authenticated yet.
const LIMITS: Limits = Limits {
    total: 512,
    per_source: 256,
};
/// How long the TLS handshake may take.
const TLS_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection of the operator.
pub(super) type OperatorConnection = AcceptedStream<TcpStream>;

pub(super) struct OperatorListener {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    admission: Admission,
}

impl OperatorListener {
    /// The acceptor accepts only the operator's certificate.
    pub(super) async fn bind(listen: SocketAddr, acceptor: TlsAcceptor) -> Result<Self> {
        Ok(Self {
            listener: super::listen(listen).await?,
            acceptor,
            admission: Admission::new(LIMITS),
        })
    }

    pub(super) fn address(&self) -> Result<SocketAddr> {
        Ok(self.listener.local_addr()?)
    }

    /// Handles each connection of the operator in a task. It never returns.
    pub(super) async fn serve<F>(
        &self,
        handle: impl Fn(OperatorConnection) -> F + Clone + Send + 'static,
    ) where
        F: Future<Output = Result<()>> + Send,
    {
        loop {
            let (connection, peer) = accept(&self.listener).await;
            let permit = self.admission.admit(peer);
            let (acceptor, handle) = (self.acceptor.clone(), handle.clone());
            tokio::spawn(async move {
                let connection = match authenticate(permit, &acceptor, connection).await {
                    Ok(connection) => connection,
                    // Only at debug level: anyone in the network can connect and be rejected, any number of times.
                    Err(error) => {
                        tracing::debug!(error = format!("{error:#}"), %peer, "unauthorized client rejected");
                        return;
                    }
                };
                if let Err(error) = handle(connection).await {
                    tracing::debug!(error = format!("{error:#}"), %peer, "operator request failed");
                }
            });
        }
    }
}

/// The permit ends with the handshake: after it the peer is known.
async fn authenticate(
    mut permit: Permit,
    acceptor: &TlsAcceptor,
    connection: TcpStream,
) -> Result<OperatorConnection> {
    connection.set_nodelay(true)?;
    let handshake = acceptor.accept(connection);
    let accepted = permit.run(TLS_TIMEOUT, handshake).await?;
    accepted.context("the TLS handshake failed")
}

#[cfg(test)]
mod tests;
