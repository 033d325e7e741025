//! Pipes, and who makes them.

use std::future::{Future, pending};
use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// A stream of bytes in both directions: what a link travels on. It should support vectored writes, so that the header
/// of a frame and its bytes leave together.
pub trait Pipe: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Pipe for T {}

/// Makes pipes to one place. It is called again whenever a pipe was lost, so it should look everything up anew that may
/// have changed: names, tokens, which of several relays is there.
pub trait Dial: Send + Sync + 'static {
    type Pipe: Pipe;

    /// Makes one pipe, or says why not. A failure is retried; there is no need to try twice here.
    fn dial(&self) -> impl Future<Output = io::Result<Self::Pipe>> + Send;

    /// Ends when the pipe that was made last is to be left for another one although it works, because who carries it is
    /// about to go. The link then moves without a moment in which the other end misses it.
    fn moved(&self) -> impl Future<Output = ()> + Send {
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

    /// For a place with several addresses, such as IPv6 and IPv4 ones.
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

/// What a link wants of its TCP connections, on both ends: frames leave at once.
pub fn set_tcp_options(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)
}
