//! The application, its clients, and an agent that responds itself. A server first sends its name and then echoes, so that a
//! client knows which server it is connected to, and that the connection works.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use agent::incoming::redirect::Redirect;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::environment::Network;

const TIMEOUT: Duration = Duration::from_secs(30);

/// Waits for a future with a generous timeout, so that a test fails instead of hanging.
pub(crate) async fn with_timeout<T>(future: impl Future<Output = T>) -> T {
    timeout(TIMEOUT, future).await.expect("no timeout")
}

/// The names of the servers. All have the same length.
pub(crate) const APPLICATION: &str = "application";
pub(crate) const AGENT: &str = "agent......";

/// An application that listens on all addresses of a network. Reports the client addresses that it sees.
pub(crate) struct Application {
    pub(crate) peers: mpsc::UnboundedReceiver<SocketAddr>,
    listening: JoinHandle<()>,
}

impl Application {
    pub(crate) fn start(network: &Network, port: u16) -> Self {
        let listener = network.inside(|| {
            let socket = TcpSocket::new_v6().expect("there is IPv6");
            socket.set_reuseaddr(true).expect("it is a socket");
            socket
                .bind(format!("[::]:{port}").parse().expect("an address"))
                .expect("the port is free");
            socket
        });
        let listener = listener.listen(4096).expect("there is a runtime");
        let (to_test, peers) = mpsc::unbounded_channel();
        Self {
            peers,
            listening: tokio::spawn(serve(listener, to_test)),
        }
    }

    /// Closes the listener. Open connections stay open.
    pub(crate) async fn stop(self) {
        self.listening.abort();
        let _ = self.listening.await;
    }
}

async fn serve(listener: TcpListener, peers_to_test: mpsc::UnboundedSender<SocketAddr>) {
    while let Ok((stream, peer)) = listener.accept().await {
        let _ = peers_to_test.send(SocketAddr::new(peer.ip().to_canonical(), peer.port()));
        tokio::spawn(echo(stream, APPLICATION));
    }
}

/// Serves all redirected connections as an echo server.
pub(crate) fn echo_all(redirect: &Arc<Redirect>) -> JoinHandle<()> {
    let redirect = Arc::clone(redirect);
    tokio::spawn(async move {
        while let Ok(connection) = redirect.accept().await {
            tokio::spawn(echo(connection.stream, AGENT));
        }
    })
}

/// Sends the name, and echoes until the client closes the connection.
pub(crate) async fn echo(mut stream: TcpStream, name: &str) {
    let (mut reading, mut writing) = stream.split();
    if writing.write_all(name.as_bytes()).await.is_ok() {
        let _ = tokio::io::copy(&mut reading, &mut writing).await;
    }
}

/// A client's connection.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
}

impl Client {
    pub(crate) async fn connect(network: &Network, to: SocketAddr) -> Self {
        let socket = network.inside(|| socket(to));
        Self::connect_with(socket, to).await
    }

    /// Connects with a socket that was created before.
    pub(crate) async fn connect_with(socket: TcpSocket, to: SocketAddr) -> Self {
        let connected = with_timeout(socket.connect(to)).await;
        let stream = connected.unwrap_or_else(|error| panic!("cannot connect to {to}: {error}"));
        Self { stream }
    }

    pub(crate) fn own_address(&self) -> SocketAddr {
        self.stream.local_addr().expect("it is connected")
    }

    /// The name of the server that accepted the connection.
    pub(crate) async fn server_name(&mut self) -> String {
        let mut name = vec![0; APPLICATION.len()];
        let read = with_timeout(self.stream.read_exact(&mut name)).await;
        read.expect("the server sends its name");
        String::from_utf8(name).expect("text")
    }

    /// Whether the connection works in both directions.
    pub(crate) async fn try_echo(&mut self) -> std::io::Result<()> {
        self.stream.write_all(b"hello").await?;
        let mut back = [0; 5];
        with_timeout(self.stream.read_exact(&mut back)).await?;
        assert_eq!(&back, b"hello");
        Ok(())
    }

    pub(crate) async fn echo(&mut self) {
        self.try_echo().await.expect("the connection works");
    }
}

/// A socket for a connection, in the network of the calling thread.
pub(crate) fn socket(to: SocketAddr) -> TcpSocket {
    let socket = match to.ip() {
        IpAddr::V4(_) => TcpSocket::new_v4(),
        IpAddr::V6(_) => TcpSocket::new_v6(),
    };
    socket.expect("a socket")
}

/// The name of the server that accepts a new connection.
pub(crate) async fn identify_server(network: &Network, to: SocketAddr) -> String {
    let mut client = Client::connect(network, to).await;
    let name = client.server_name().await;
    client.echo().await;
    name
}
