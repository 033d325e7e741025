//! WebSockets as a transport: a stream of bytes in binary messages.
//!
//! Kubernetes' API server passes WebSockets on, and nothing else that is a stream. A pipe is a *port-forward*, where the first
//! byte of each message names a channel: 0 carries the bytes, 1 what the node says when it cannot reach the port, and each
//! begins with a message that only repeats the port.

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

/// What one message carries at most. A link writes frames of this size.
const MESSAGE: usize = 128 * 1024;

/// The channel of a port-forward that carries the bytes, and the one on which the node complains.
const DATA: u8 = 0;
const ERROR: u8 = 1;

/// What a server must answer to a client's key, as a proof that it speaks of WebSockets.
pub fn accept_key(key: &str) -> String {
    tungstenite::handshake::derive_accept_key(key.as_bytes())
}

/// A client's question whether a server changes to a WebSocket that speaks a protocol.
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

    /// Puts the question into a request.
    pub fn ask(&self, request: http::request::Builder) -> http::request::Builder {
        request
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, "websocket")
            .header(header::SEC_WEBSOCKET_VERSION, "13")
            .header(header::SEC_WEBSOCKET_KEY, &self.key)
            .header(header::SEC_WEBSOCKET_PROTOCOL, self.protocol)
    }

    /// Whether whoever says that it changes speaks of WebSockets, and this protocol.
    pub fn is_accepted(&self, headers: &HeaderMap) -> bool {
        let has = |name, expected: &str| headers.get(name).is_some_and(|value| value == expected);
        has(header::SEC_WEBSOCKET_ACCEPT, &accept_key(&self.key))
            && has(header::SEC_WEBSOCKET_PROTOCOL, self.protocol)
    }
}

/// A WebSocket as a pipe. The end of either side is the end of both: WebSockets cannot be half closed.
pub struct WebSocketPipe<S> {
    socket: WebSocketStream<S>,
    framing: Framing,
    /// What has come and was not read yet.
    unread: Bytes,
}

#[derive(Debug, Clone, Copy, Default)]
struct Framing {
    /// Whether the message has come that only repeats the port, on each channel.
    started: [bool; 2],
}

impl<S> WebSocketPipe<S> {
    /// The connection to one port that `v4.channel.k8s.io` carries.
    pub fn port_forward(socket: WebSocketStream<S>) -> Self {
        Self {
            socket,
            framing: Framing::default(),
            unread: Bytes::new(),
        }
    }
}

impl Framing {
    /// The bytes of the stream in a message, if it has any.
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

    /// A message of the first bytes of these, and how many they are.
    fn wrap(slices: &[IoSlice<'_>]) -> (Message, usize) {
        let length = slices.iter().map(|slice| slice.len()).sum::<usize>();
        let length = length.min(MESSAGE);
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
                // Whoever asks whether we are there is answered below us.
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
    fn only_the_same_key_and_protocol_are_an_answer() {
        let upgrade = Upgrade::to("a.v1");
        let asked = upgrade.ask(http::Request::get("/")).body(()).unwrap();
        let key = asked.headers()["sec-websocket-key"].to_str().unwrap();
        let answer = |accept: &str, protocol: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept.parse().unwrap());
            if let Some(protocol) = protocol {
                headers.insert(header::SEC_WEBSOCKET_PROTOCOL, protocol.parse().unwrap());
            }
            upgrade.is_accepted(&headers)
        };
        assert!(answer(&accept_key(key), Some("a.v1")));
        assert!(!answer(&accept_key("another"), Some("a.v1")));
        assert!(!answer(&accept_key(key), Some("b.v1")));
        assert!(!answer(&accept_key(key), None));
        assert!(!upgrade.is_accepted(&HeaderMap::new()));
    }

    #[tokio::test]
    async fn bytes_go_both_ways_however_they_are_cut() {
        let (ours, theirs) = sockets().await;
        let (mut ours, mut theirs) = (
            WebSocketPipe::port_forward(ours),
            WebSocketPipe::port_forward(theirs),
        );
        // What comes first only repeats the port.
        ours.write_all(&8080_u16.to_le_bytes()).await.unwrap();
        let sent: Vec<u8> = (0..3 * MESSAGE + 7).map(|index| index as u8).collect();
        let (to_send, mut got) = (sent.clone(), vec![0; sent.len()]);
        let writing = async {
            ours.write_all(&to_send).await.unwrap();
            ours.shutdown().await.unwrap();
        };
        let reading = async {
            theirs.read_exact(&mut got).await.unwrap();
            assert_eq!(theirs.read(&mut [0]).await.unwrap(), 0);
        };
        tokio::join!(writing, reading);
        assert!(got == sent);
    }

    #[test]
    fn a_port_forward_has_channels_that_begin_with_the_port() {
        let mut framing = Framing::default();
        let mut check = |message: &[u8], expected: Result<&[u8], &str>| {
            let got = framing.unwrap(Bytes::copy_from_slice(message));
            let got = got.map_err(|error| error.to_string());
            assert_eq!(got.as_deref(), expected.map_err(str::to_owned).as_deref());
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
