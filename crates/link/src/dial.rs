//! Pipes, and the dialers that open them.

use std::future::{Future, pending};
use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// A bidirectional byte stream that carries a link: one connection of it. It should support vectored writes, so that the
/// header of a frame and its data are sent together.
pub trait Pipe: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Pipe for T {}

/// Opens pipes to one endpoint. It is called again whenever a pipe was lost, so it should resolve everything again that may
/// have changed: DNS names, tokens, which of several proxies is available.
pub trait Dial: Send + Sync + 'static {
    type Pipe: Pipe;

    /// Opens one pipe. The caller retries failures, so there is no need for retries here.
    fn dial(&self) -> impl Future<Output = io::Result<Self::Pipe>> + Send;

    /// Resolves when the link should be handed over from the current pipe, although that still works, because the proxy
    /// that carries it is about to shut down. The link then changes to a new pipe without being disconnected in between.
    fn handover(&self) -> impl Future<Output = ()> + Send {
        pending()
    }
}

/// Dials TCP.
#[derive(Debug, Clone)]
pub struct TcpDialer {
    /// Tried in this order.
    addresses: Vec<SocketAddr>,
}

impl TcpDialer {
    pub fn new(address: SocketAddr) -> Self {
        Self {
            addresses: vec![address],
        }
    }

    /// For an endpoint with several addresses, such as IPv6 and IPv4 ones.
    pub fn any_of(addresses: Vec<SocketAddr>) -> Self {
        Self { addresses }
    }
}

impl Dial for TcpDialer {
    type Pipe = TcpStream;

    async fn dial(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(&self.addresses[..]).await?;
        set_tcp_options(&stream)?;
        Ok(stream)
    }
}

/// Sets the TCP options of a link's connections on both ends: frames are sent without delay.
pub fn set_tcp_options(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)
}
