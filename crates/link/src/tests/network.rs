//! An in-memory network between one client and one server. A test can cut and silence it, and restart the server.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf, split};
use tokio::sync::{Notify, mpsc, watch};

use crate::{
    Accepted, Buffers, Dial, Link, LinkError, LinkServer, ServerSettings, Settings, SharedToken,
    Token,
};

pub(super) fn token() -> Token {
    Token::new(*b"open sesame").unwrap()
}

pub(super) fn settings(buffers: Buffers) -> Settings {
    Settings {
        token: token(),
        buffers,
        ..Settings::default()
    }
}

pub(super) const SMALL: Buffers = Buffers {
    replay_capacity: 4000,
    receive_window: 3000,
    max_unsent: u32::MAX,
    max_ack_step: u32::MAX,
};

/// Clones share the network.
#[derive(Clone)]
pub(super) struct Network(Arc<State>);

struct State {
    /// Set by the test, watched by all pipes.
    state: watch::Sender<NetworkState>,
    /// Number of bytes that each of the next pipes carries before it is cut.
    budgets: Mutex<Vec<u64>>,
    server: Mutex<LinkServer<SharedToken>>,
    server_settings: ServerSettings,
    /// New links, to the test.
    links: mpsc::UnboundedSender<Result<Link, LinkError>>,
    dial_count: AtomicU32,
    /// Requests for a handover, to the client.
    handovers: Notify,
    /// Buffer size of a pipe.
    depth: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NetworkState {
    Good,
    /// Existing pipes are cut, and dialing fails.
    Down,
    /// Dialing fails. Existing pipes stay.
    Full,
    /// Bytes are dropped silently in both directions.
    Silent,
}

pub(super) struct NewLinks(mpsc::UnboundedReceiver<Result<Link, LinkError>>);

impl NewLinks {
    pub(super) async fn next(&mut self) -> Link {
        self.0.recv().await.unwrap().unwrap()
    }
}

impl Network {
    pub(super) fn new(server_settings: ServerSettings, depth: usize) -> (Self, NewLinks) {
        let (links, new_links) = mpsc::unbounded_channel();
        let network = Self(Arc::new(State {
            state: watch::Sender::new(NetworkState::Good),
            budgets: Mutex::default(),
            server: Mutex::new(LinkServer::new(
                server_settings.clone(),
                SharedToken(token()),
            )),
            server_settings,
            links,
            dial_count: AtomicU32::new(0),
            handovers: Notify::new(),
            depth,
        }));
        (network, NewLinks(new_links))
    }

    /// A network with a connected client, and these buffers on both ends.
    pub(super) async fn connected(buffers: Buffers, depth: usize) -> (Self, Link, Link) {
        let server_settings = ServerSettings {
            buffers,
            ..ServerSettings::default()
        };
        let (network, mut new_links) = Self::new(server_settings, depth);
        let client = Link::connect(network.clone(), settings(buffers))
            .await
            .unwrap();
        let server = new_links.next().await;
        (network, client, server)
    }

    pub(super) fn set(&self, state: NetworkState) {
        self.0.state.send_replace(state);
    }

    /// Cuts all pipes.
    pub(super) async fn cut(&self) {
        self.set(NetworkState::Down);
        tokio::task::yield_now().await;
        self.set(NetworkState::Good);
    }

    /// Requests a handover of the client to another pipe.
    pub(super) fn request_handover(&self) {
        self.0.handovers.notify_one();
    }

    /// Limits the bytes of the next pipes, starting with the last number. Later pipes are not limited.
    pub(super) fn set_budgets(&self, budgets: Vec<u64>) {
        *self.0.budgets.lock().unwrap() = budgets;
    }

    /// The server loses its state.
    pub(super) fn restart_server(&self) {
        let server = LinkServer::new(self.0.server_settings.clone(), SharedToken(token()));
        *self.0.server.lock().unwrap() = server;
    }

    pub(super) fn server(&self) -> LinkServer<SharedToken> {
        self.0.server.lock().unwrap().clone()
    }

    pub(super) fn dial_count(&self) -> u32 {
        self.0.dial_count.load(Ordering::Relaxed)
    }
}

impl Dial for Network {
    type Pipe = DuplexStream;

    async fn dial(&self) -> io::Result<DuplexStream> {
        self.0.dial_count.fetch_add(1, Ordering::Relaxed);
        if matches!(
            *self.0.state.borrow(),
            NetworkState::Down | NetworkState::Full
        ) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let budget = self.0.budgets.lock().unwrap().pop().unwrap_or(u64::MAX);
        let (client, client_far) = tokio::io::duplex(self.0.depth);
        let (server_far, server) = tokio::io::duplex(self.0.depth);
        tokio::spawn(carry(
            client_far,
            server_far,
            budget,
            self.0.state.subscribe(),
        ));
        let (accepting, links) = (self.server(), self.0.links.clone());
        tokio::spawn(async move {
            match accepting.accept(server).await {
                Ok(Accepted::New(link)) => drop(links.send(Ok(link))),
                Ok(Accepted::Resumed(_)) => {}
                Err(error) => drop(links.send(Err(error))),
            }
        });
        Ok(client)
    }

    async fn handover(&self) {
        self.0.handovers.notified().await;
    }
}

/// Carries bytes in both directions until one end is closed, the budget is used up, or the network is down.
async fn carry(
    left: DuplexStream,
    right: DuplexStream,
    budget: u64,
    mut state: watch::Receiver<NetworkState>,
) {
    let budget = &Mutex::new(budget);
    let (left_in, left_out) = split(left);
    let (right_in, right_out) = split(right);
    let silent = state.clone();
    let down = state.wait_for(|state| *state == NetworkState::Down);
    tokio::select! {
        () = copy(left_in, right_out, budget, &silent) => {}
        () = copy(right_in, left_out, budget, &silent) => {}
        _ = down => {}
    }
}

async fn copy(
    mut from: ReadHalf<DuplexStream>,
    mut to: WriteHalf<DuplexStream>,
    budget: &Mutex<u64>,
    state: &watch::Receiver<NetworkState>,
) {
    let mut buffer = [0; 1024];
    loop {
        let Ok(length @ 1..) = from.read(&mut buffer).await else {
            // Bytes in flight in the other direction may still be delivered.
            let _ = to.shutdown().await;
            tokio::time::sleep(Duration::from_millis(1)).await;
            return;
        };
        if *state.borrow() == NetworkState::Silent {
            continue;
        }
        let length = {
            let mut budget = budget.lock().unwrap();
            let length = (*budget).min(length as u64);
            *budget -= length;
            length as usize
        };
        if to.write_all(&buffer[..length]).await.is_err() || *budget.lock().unwrap() == 0 {
            return;
        }
    }
}

/// The bytes of a stream. Neighbouring bytes differ, and streams with different seeds differ.
pub(super) fn stream(seed: u8, length: usize) -> Vec<u8> {
    let byte = |number: usize| (number.wrapping_mul(31) >> 3) as u8 ^ seed;
    (0..length).map(byte).collect()
}

/// Writes everything, ends the stream, reads the peer's stream to its end, and returns it.
pub(super) async fn exchange(link: Link, to_write: Vec<u8>) -> io::Result<Vec<u8>> {
    let (mut reading, mut writing) = split(link);
    let write = async {
        writing.write_all(&to_write).await?;
        writing.shutdown().await
    };
    let mut read = Vec::new();
    let (written, received) = tokio::join!(write, reading.read_to_end(&mut read));
    written?;
    received?;
    Ok(read)
}
