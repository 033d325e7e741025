//! The application, its clients, and an agent that answers itself. Who accepts says its name first, and then echoes: so a
//! client learns who it speaks with, and that the connection works.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use agent::incoming::redirect::Redirect;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::world::Network;

/// Waits for what comes at once when all is well. A test that waits for what never comes fails, and does not hang.
pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> T {
    let patience = Duration::from_secs(30);
    timeout(patience, what).await.expect("it comes")
}

/// As long as a name is.
pub(crate) const APPLICATION: &str = "application";
pub(crate) const AGENT: &str = "agent......";

/// An application that listens at all addresses of a network. Tells the peers that it sees.
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

    /// Ends listening. Connections that are open stay so.
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

/// Answers all that arrives at the agent.
pub(crate) fn answer_all(redirect: &Arc<Redirect>) -> JoinHandle<()> {
    let redirect = Arc::clone(redirect);
    tokio::spawn(async move {
        while let Ok(arrived) = redirect.accept().await {
            tokio::spawn(echo(arrived.stream, AGENT));
        }
    })
}

/// Says a name and echoes until the peer has ended.
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

    /// Connects with a socket that was made before.
    pub(crate) async fn connect_with(socket: TcpSocket, to: SocketAddr) -> Self {
        let connected = soon(socket.connect(to)).await;
        let stream = connected.unwrap_or_else(|error| panic!("cannot connect to {to}: {error}"));
        Self { stream }
    }

    pub(crate) fn own_address(&self) -> SocketAddr {
        self.stream.local_addr().expect("it is connected")
    }

    /// Who accepted the connection.
    pub(crate) async fn who(&mut self) -> String {
        let mut name = vec![0; APPLICATION.len()];
        let read = soon(self.stream.read_exact(&mut name)).await;
        read.expect("it says its name");
        String::from_utf8(name).expect("text")
    }

    /// Whether the connection works both ways.
    pub(crate) async fn try_echo(&mut self) -> std::io::Result<()> {
        self.stream.write_all(b"hello").await?;
        let mut back = [0; 5];
        soon(self.stream.read_exact(&mut back)).await?;
        assert_eq!(&back, b"hello");
        Ok(())
    }

    pub(crate) async fn echo(&mut self) {
        self.try_echo().await.expect("the connection works");
    }
}

/// A socket with which to connect, of the network in which the calling thread is.
pub(crate) fn socket(to: SocketAddr) -> TcpSocket {
    let socket = match to.ip() {
        IpAddr::V4(_) => TcpSocket::new_v4(),
        IpAddr::V6(_) => TcpSocket::new_v6(),
    };
    socket.expect("there is room for a socket")
}

/// Who answers a new connection.
pub(crate) async fn who_answers(network: &Network, to: SocketAddr) -> String {
    let mut client = Client::connect(network, to).await;
    let name = client.who().await;
    client.echo().await;
    name
}
