//! Towards an application that speaks TLS itself: what was read inside of TLS at the target is put into TLS again.

use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use config::{DeliveryProtocol, TlsDeliverySettings};
use protocol::incoming::ArrivedTls;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::verify;
use crate::error::Error;
use crate::stream::{Breaks, Kept, LocalStream};

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
        let outside = connecting.await.map_err(io::Error::from)??;
        let (ours, inside) = UnixStream::pair()?;
        let breaks = Arc::<Breaks>::default();
        tokio::spawn(carry(inside, outside, kept, Arc::clone(&breaks)));
        LocalStream::of_pair(OwnedFd::from(ours.into_std()?), breaks)
    }
}

/// Carries a connection between the target, without TLS, and the application, with TLS. A reset of one is one of the other.
async fn carry(inside: UnixStream, outside: TlsStream<TcpStream>, kept: Kept, breaks: Arc<Breaks>) {
    let mut inside = Ending {
        stream: inside,
        judge: |end: io::Result<()>| match end {
            Ok(()) if breaks.target_broke() => Err(io::ErrorKind::ConnectionReset.into()),
            end => end,
        },
    };
    let mut outside = Ending {
        stream: outside,
        // Many applications close the connection without a word of TLS about it.
        judge: |end: io::Result<()>| match end {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
            end => end,
        },
    };
    if let Err(error) = copy_bidirectional(&mut inside, &mut outside).await {
        tracing::debug!(%error, "a connection with TLS to the application broke");
        breaks.break_application();
        let _ = outside.stream.get_ref().0.set_zero_linger();
    }
    drop((inside, outside, kept));
}

/// A stream of which it is judged how it ended.
struct Ending<S, J> {
    stream: S,
    judge: J,
}

impl<S: AsyncRead + Unpin, J: Fn(io::Result<()>) -> io::Result<()> + Unpin> AsyncRead
    for Ending<S, J>
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
            true => (self.judge)(read),
            false => read,
        })
    }
}

impl<S: AsyncWrite + Unpin, J: Unpin> AsyncWrite for Ending<S, J> {
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
