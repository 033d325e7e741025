//! TLS towards an application that speaks TLS itself: plaintext that was decrypted at the target is encrypted again.

use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use config::{DeliveryProtocol, TlsDeliverySettings};
use protocol::incoming::ClientTls;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::verify;
use crate::error::Error;
use crate::stream::{LocalStream, ResetFlags, StreamGuard};

/// How long the application may take for the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);

/// Encrypts connections to the application.
#[derive(Debug)]
pub(super) struct TlsDelivery {
    config: ClientConfig,
    server_name: Option<ServerName<'static>>,
}

impl TlsDelivery {
    /// Returns `None` if the application receives plaintext.
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

    /// Encrypts a connection to the application.
    pub(super) async fn wrap(
        &self,
        local: LocalStream,
        client_tls: &ClientTls,
    ) -> io::Result<LocalStream> {
        let mut config = self.config.clone();
        config.alpn_protocols = client_tls.application_protocol.iter().cloned().collect();
        let client_name = client_tls.server_name.as_ref();
        let client_name = client_name.and_then(|name| ServerName::try_from(name.clone()).ok());
        let name = self.server_name.clone().or(client_name);
        let name = match name {
            Some(name) => name,
            None => ServerName::try_from("localhost").map_err(io::Error::other)?,
        };
        let (stream, guard) = local.into_tcp()?;
        let connector = TlsConnector::from(Arc::new(config));
        // Without a timeout, a program that is stopped or speaks no TLS would be waited for until the session ends.
        let connecting = timeout(HANDSHAKE_TIMEOUT, connector.connect(name, stream));
        let encrypted = connecting.await.map_err(io::Error::from)??;
        let (ours, plaintext) = UnixStream::pair()?;
        let reset_flags = Arc::<ResetFlags>::default();
        tokio::spawn(relay(plaintext, encrypted, guard, Arc::clone(&reset_flags)));
        LocalStream::from_pair(OwnedFd::from(ours.into_std()?), reset_flags)
    }
}

/// Relays a connection between the plaintext of the target and the encrypted stream of the application. A reset of one
/// side resets the other.
async fn relay(
    plaintext: UnixStream,
    encrypted: TlsStream<TcpStream>,
    guard: StreamGuard,
    reset_flags: Arc<ResetFlags>,
) {
    let mut plaintext = EndMapped {
        stream: plaintext,
        map_end: |end: io::Result<()>| match end {
            Ok(()) if reset_flags.target_was_reset() => Err(io::ErrorKind::ConnectionReset.into()),
            end => end,
        },
    };
    let mut encrypted = EndMapped {
        stream: encrypted,
        // Many applications close the connection without a TLS close_notify.
        map_end: |end: io::Result<()>| match end {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
            end => end,
        },
    };
    if let Err(error) = copy_bidirectional(&mut plaintext, &mut encrypted).await {
        tracing::debug!(%error, "TLS connection to application failed");
        reset_flags.reset_application();
        let _ = encrypted.stream.get_ref().0.set_zero_linger();
    }
    drop((plaintext, encrypted, guard));
}

/// A stream whose end of reading is mapped by a function.
struct EndMapped<S, J> {
    stream: S,
    map_end: J,
}

impl<S: AsyncRead + Unpin, J: Fn(io::Result<()>) -> io::Result<()> + Unpin> AsyncRead
    for EndMapped<S, J>
{
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(context, buffer));
        let has_ended = read.is_err() || buffer.filled().len() == before;
        Poll::Ready(match has_ended {
            true => (self.map_end)(read),
            false => read,
        })
    }
}

impl<S: AsyncWrite + Unpin, J: Unpin> AsyncWrite for EndMapped<S, J> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
