//! WebSockets as a transport: a byte stream in binary messages.
//!
//! WebSockets are the only streams that the Kubernetes API server proxies. A pipe is a *port-forward*: the first byte of each
//! message is a channel number. Channel 0 carries the bytes, channel 1 the error if the node cannot reach the port, and each
//! channel starts with a message that only contains the port.

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use futures_util::{Sink, Stream};
use http::{HeaderMap, header};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
pub use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
pub use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_tungstenite::tungstenite::{self, Message};

/// Maximum size of a message.
const MAX_MESSAGE: usize = 128 * 1024;

/// The data channel of a port-forward, and the error channel.
const DATA: u8 = 0;
const ERROR: u8 = 1;

/// The `Sec-WebSocket-Accept` value for a client's key. It proves that the server supports WebSockets.
pub fn accept_key(key: &str) -> String {
    tungstenite::handshake::derive_accept_key(key.as_bytes())
}

/// A client's request to upgrade a connection to a WebSocket with a subprotocol.
#[derive(Debug)]
pub struct Upgrade {
    key: String,
    protocol: &'static str,
}

impl Upgrade {
    pub fn to(protocol: &'static str) -> Self {
        Self {
            key: generate_key(),
            protocol,
        }
    }

    /// Adds the upgrade headers to a request.
    pub fn add_headers(&self, request: http::request::Builder) -> http::request::Builder {
        request
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, "websocket")
            .header(header::SEC_WEBSOCKET_VERSION, "13")
            .header(header::SEC_WEBSOCKET_KEY, &self.key)
            .header(header::SEC_WEBSOCKET_PROTOCOL, self.protocol)
    }

    /// Whether the response headers accept this upgrade and subprotocol.
    pub fn is_accepted(&self, headers: &HeaderMap) -> bool {
        let has = |name, expected: &str| headers.get(name).is_some_and(|value| value == expected);
        has(header::SEC_WEBSOCKET_ACCEPT, &accept_key(&self.key))
            && has(header::SEC_WEBSOCKET_PROTOCOL, self.protocol)
    }
}

/// A WebSocket as a pipe. The end of either direction ends both: WebSockets cannot be half closed.
pub struct WebSocketPipe<S> {
    socket: WebSocketStream<S>,
    framing: Framing,
    /// Received bytes that were not read yet.
    unread: Bytes,
}

#[derive(Debug, Clone, Copy, Default)]
struct Framing {
    /// Whether the message with the port was received, by channel.
    started: [bool; 2],
}

impl<S> WebSocketPipe<S> {
    /// A connection to one port with the subprotocol `v4.channel.k8s.io`.
    pub fn port_forward(socket: WebSocketStream<S>) -> Self {
        Self {
            socket,
            framing: Framing::default(),
            unread: Bytes::new(),
        }
    }
}

impl Framing {
    /// The stream bytes of a message.
    fn unwrap(&mut self, mut message: Bytes) -> io::Result<Bytes> {
        if message.is_empty() {
            return Ok(message);
        }
        let channel = message.get_u8();
        let Some(started) = self.started.get_mut(usize::from(channel)) else {
            let text = format!("the port-forward has no channel {channel}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        };
        if !std::mem::replace(started, true) {
            return Ok(Bytes::new());
        }
        match channel {
            ERROR => {
                let text = String::from_utf8_lossy(&message).trim().to_owned();
                Err(io::Error::new(io::ErrorKind::ConnectionRefused, text))
            }
            _ => Ok(message),
        }
    }

    /// A message with the first bytes of the slices, and how many they are.
    fn wrap(slices: &[IoSlice<'_>]) -> (Message, usize) {
        let length = slices.iter().map(|slice| slice.len()).sum::<usize>();
        let length = length.min(MAX_MESSAGE);
        let mut message = Vec::with_capacity(length + 1);
        message.push(DATA);
        let mut left = length;
        for slice in slices {
            let part = &slice[..slice.len().min(left)];
            message.extend_from_slice(part);
            left -= part.len();
        }
        (Message::Binary(message.into()), length)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for WebSocketPipe<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let pipe = &mut *self;
        while pipe.unread.is_empty() {
            match ready!(Pin::new(&mut pipe.socket).poll_next(context)) {
                None | Some(Ok(Message::Close(_))) => return Poll::Ready(Ok(())),
                Some(Ok(Message::Binary(message))) => pipe.unread = pipe.framing.unwrap(message)?,
                // tungstenite responds to pings.
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(io_error(error))),
            }
        }
        let length = pipe.unread.len().min(buffer.remaining());
        buffer.put_slice(&pipe.unread.split_to(length));
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for WebSocketPipe<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(Pin::new(&mut self.socket).poll_ready(context)).map_err(io_error)?;
        let (message, length) = Framing::wrap(slices);
        if length > 0 {
            Pin::new(&mut self.socket)
                .start_send(message)
                .map_err(io_error)?;
        }
        Poll::Ready(Ok(length))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket)
            .poll_flush(context)
            .map_err(io_error)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match ready!(Pin::new(&mut self.socket).poll_close(context)) {
            Ok(())
            | Err(tungstenite::Error::ConnectionClosed | tungstenite::Error::AlreadyClosed) => {
                Poll::Ready(Ok(()))
            }
            Err(error) => Poll::Ready(Err(io_error(error))),
        }
    }
}

fn io_error(error: tungstenite::Error) -> io::Error {
    match error {
        tungstenite::Error::Io(error) => error,
        tungstenite::Error::ConnectionClosed | tungstenite::Error::AlreadyClosed => {
            io::ErrorKind::BrokenPipe.into()
        }
        error => io::Error::other(error),
    }
}

impl<S> fmt::Debug for WebSocketPipe<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("WebSocketPipe");
        debug
            .field("framing", &self.framing)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

    async fn sockets() -> (WebSocketStream<DuplexStream>, WebSocketStream<DuplexStream>) {
        let (ours, theirs) = tokio::io::duplex(4096);
        tokio::join!(
            WebSocketStream::from_raw_socket(ours, Role::Client, None),
            WebSocketStream::from_raw_socket(theirs, Role::Server, None),
        )
    }

    #[test]
    fn only_the_same_key_and_protocol_are_accepted() {
        let upgrade = Upgrade::to("a.v1");
        let request = upgrade
            .add_headers(http::Request::get("/"))
            .body(())
            .unwrap();
        let key = request.headers()["sec-websocket-key"].to_str().unwrap();
        let is_accepted = |accept: &str, protocol: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept.parse().unwrap());
            if let Some(protocol) = protocol {
                headers.insert(header::SEC_WEBSOCKET_PROTOCOL, protocol.parse().unwrap());
            }
            upgrade.is_accepted(&headers)
        };
        assert!(is_accepted(&accept_key(key), Some("a.v1")));
        assert!(!is_accepted(&accept_key("another"), Some("a.v1")));
        assert!(!is_accepted(&accept_key(key), Some("b.v1")));
        assert!(!is_accepted(&accept_key(key), None));
        assert!(!upgrade.is_accepted(&HeaderMap::new()));
    }

    #[tokio::test]
    async fn bytes_are_carried_in_messages_of_any_size() {
        let (ours, theirs) = sockets().await;
        let (mut ours, mut theirs) = (
            WebSocketPipe::port_forward(ours),
            WebSocketPipe::port_forward(theirs),
        );
        // The first message only contains the port.
        ours.write_all(&8080_u16.to_le_bytes()).await.unwrap();
        let sent: Vec<u8> = (0..3 * MAX_MESSAGE + 7).map(|index| index as u8).collect();
        let (to_send, mut received) = (sent.clone(), vec![0; sent.len()]);
        let writing = async {
            ours.write_all(&to_send).await.unwrap();
            ours.shutdown().await.unwrap();
        };
        let reading = async {
            theirs.read_exact(&mut received).await.unwrap();
            assert_eq!(theirs.read(&mut [0]).await.unwrap(), 0);
        };
        tokio::join!(writing, reading);
        assert!(received == sent);
    }

    #[test]
    fn the_channels_of_a_port_forward_start_with_the_port() {
        let mut framing = Framing::default();
        let mut check = |message: &[u8], expected: Result<&[u8], &str>| {
            let bytes = framing.unwrap(Bytes::copy_from_slice(message));
            let bytes = bytes.map_err(|error| error.to_string());
            assert_eq!(bytes.as_deref(), expected.map_err(str::to_owned).as_deref());
        };
        check(&[0, 0x90, 0x1f], Ok(b""));
        check(&[1, 0x90, 0x1f], Ok(b""));
        check(b"\0data", Ok(b"data"));
        check(b"\0", Ok(b""));
        check(b"", Ok(b""));
        check(b"\x01cannot connect\n", Err("cannot connect"));
        check(b"\x02", Err("the port-forward has no channel 2"));
        let (message, length) = Framing::wrap(&[IoSlice::new(b"ab"), IoSlice::new(b"c")]);
        assert_eq!((message.into_data().as_ref(), length), (&b"\0abc"[..], 3));
    }
}
