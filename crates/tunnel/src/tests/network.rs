//! A TCP relay between agent and hub that a test can cut, and a minimal HTTP proxy.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

pub(super) struct Relay {
    address: SocketAddr,
    state: Arc<watch::Sender<State>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Good,
    /// Connections are cut, and new ones are closed at once.
    Down,
}

impl Relay {
    pub(super) async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(watch::Sender::new(State::Good));
        let watched = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                tokio::spawn(relay(connection, target, watched.subscribe()));
            }
        });
        Self { address, state }
    }

    pub(super) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Cuts all connections, and refuses new ones.
    pub(super) fn cut(&self) {
        self.state.send_replace(State::Down);
    }

    pub(super) fn heal(&self) {
        self.state.send_replace(State::Good);
    }
}

async fn relay(mut near: TcpStream, target: SocketAddr, mut state: watch::Receiver<State>) {
    if *state.borrow() == State::Down {
        return;
    }
    let Ok(mut far) = TcpStream::connect(target).await else {
        return;
    };
    tokio::select! {
        _ = copy_bidirectional(&mut near, &mut far) => {}
        _ = state.wait_for(|state| *state == State::Down) => {}
    }
}

/// A proxy that understands `CONNECT` to the loopback interface.
pub(super) struct ConnectProxy {
    pub(super) address: SocketAddr,
    pub(super) connections: Arc<AtomicUsize>,
}

impl ConnectProxy {
    /// Clients have to authenticate with this header line, if there is one.
    pub(super) async fn start(authorization: Option<&'static str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&connections);
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                tokio::spawn(proxy(connection, authorization, Arc::clone(&counted)));
            }
        });
        Self {
            address,
            connections,
        }
    }
}

async fn proxy(
    mut client: TcpStream,
    authorization: Option<&'static str>,
    connections: Arc<AtomicUsize>,
) -> std::io::Result<()> {
    let head = read_head(&mut client).await?;
    if authorization.is_some_and(|line| !head.contains(line)) {
        let response = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n";
        return client.write_all(response).await;
    }
    let port = head
        .strip_prefix("CONNECT localhost:")
        .and_then(|rest| rest.split(' ').next()?.parse().ok())
        .unwrap_or_default();
    let Ok(mut target) = TcpStream::connect(("127.0.0.1", port)).await else {
        return client.write_all(b"HTTP/1.1 502 Bad Gateway\r\n\r\n").await;
    };
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
    connections.fetch_add(1, Ordering::Relaxed);
    copy_bidirectional(&mut client, &mut target).await?;
    Ok(())
}

/// Reads the head of a request or response.
pub(super) async fn read_head(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}
