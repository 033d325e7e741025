//! Datagrams between an HTTP/2 stream and a socket.
//!
//! As in a network, datagrams are dropped if the client is too slow: the kernel's receive buffer is the only queue.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::Frame;
use http_body_util::BodyExt as _;
use protocol::outgoing::{Datagram, DatagramDecoder, MAX_DATAGRAM_BYTES};
use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketAddrAny, SocketType, recvfrom, sockopt};
use tokio::io::Interest;
use tokio::net::{UdpSocket, UnixDatagram};
use tokio::sync::mpsc;
use tonic::Status;
use tonic::body::Body;

use super::destination;
use crate::agent::Agent;
use crate::connection::RequestBody;
use crate::error::errno_of;
use crate::grant::{Rules, Transport};

/// The maximum size of a frame with several datagrams.
const MAX_FRAME: usize = 64 * 1024;
/// The capacity of the queue of send errors. Further ones are dropped, because they would only repeat the queued ones.
const MAX_QUEUED_ERRORS: usize = 8;

const RECEIVABLE: Interest = Interest::READABLE.add(Interest::ERROR);

/// The operations that the relay needs.
pub(crate) trait DatagramSocket: Send + Sync + 'static {
    /// Waits for a datagram or an error. A pending error alone does not make a socket readable. Fails if nothing more may be
    /// received.
    fn receivable(self: Arc<Self>) -> impl Future<Output = io::Result<()>> + Send + 'static;
    /// Receives a datagram and, on an unconnected socket, its sender. `None`: the peer has closed the connection.
    fn try_receive(&self, buffer: &mut BytesMut) -> io::Result<Option<Option<SocketAddr>>>;
    fn send(
        &self,
        payload: &[u8],
        to: Option<SocketAddr>,
    ) -> impl Future<Output = io::Result<usize>> + Send;
    /// Called when the client sends nothing more. Returns whether the other direction stays open.
    fn finish(&self) -> bool {
        false
    }
}

impl DatagramSocket for UdpSocket {
    async fn receivable(self: Arc<Self>) -> io::Result<()> {
        self.ready(RECEIVABLE).await.map(drop)
    }

    fn try_receive(&self, buffer: &mut BytesMut) -> io::Result<Option<Option<SocketAddr>>> {
        let from =
            try_readable_or_error(|interest| self.try_io(interest, || receive(self, buffer)))?.1;
        let from = from.and_then(|address| SocketAddr::try_from(address).ok());
        Ok(Some(from.filter(|_| self.peer_addr().is_err())))
    }

    async fn send(&self, payload: &[u8], to: Option<SocketAddr>) -> io::Result<usize> {
        match to {
            None => UdpSocket::send(self, payload).await,
            Some(to) => self.send_to(payload, to).await,
        }
    }
}

/// A socket that sends only to addresses that the rules allow, and receives only from them. A connected socket ends when the
/// rules forbid its peer.
pub(crate) struct RestrictedSocket {
    pub(crate) socket: UdpSocket,
    /// The peer of a connected socket.
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) agent: Agent,
}

impl RestrictedSocket {
    fn allow(&self, address: SocketAddr) -> io::Result<()> {
        let allowed = self.agent.rules().allow_address(Transport::Udp, address);
        allowed.map_err(|_| Errno::PERM.into())
    }
}

impl DatagramSocket for RestrictedSocket {
    async fn receivable(self: Arc<Self>) -> io::Result<()> {
        let ready = self.socket.ready(RECEIVABLE);
        let Some(peer) = self.peer else {
            return ready.await.map(drop);
        };
        let is_allowed = |rules: &Rules| rules.allow_address(Transport::Udp, peer);
        tokio::select! {
            biased;
            _ = self.agent.until_forbidden(is_allowed) => {
                tracing::info!(address = %peer, "forbidden UDP socket closed");
                Err(Errno::PERM.into())
            }
            ready = ready => ready.map(drop),
        }
    }

    fn try_receive(&self, buffer: &mut BytesMut) -> io::Result<Option<Option<SocketAddr>>> {
        loop {
            if self.peer.is_some_and(|peer| self.allow(peer).is_err()) {
                // The next wait fails with the reason.
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let received = self.socket.try_receive(buffer)?;
            match received.flatten() {
                Some(from) if self.allow(from).is_err() => buffer.clear(),
                _ => return Ok(received),
            }
        }
    }

    async fn send(&self, payload: &[u8], to: Option<SocketAddr>) -> io::Result<usize> {
        let own = self.socket.local_addr().ok();
        let to = to.map(|to| destination(to, own));
        if let Some(to) = to.or(self.peer) {
            self.allow(to)?;
        }
        DatagramSocket::send(&self.socket, payload, to).await
    }
}

impl DatagramSocket for UnixDatagram {
    async fn receivable(self: Arc<Self>) -> io::Result<()> {
        self.ready(RECEIVABLE).await.map(drop)
    }

    fn try_receive(&self, buffer: &mut BytesMut) -> io::Result<Option<Option<SocketAddr>>> {
        // An empty packet is the end of a sequenced-packet connection.
        let (count, _) =
            try_readable_or_error(|interest| self.try_io(interest, || receive(self, buffer)))?;
        if count > buffer.len() {
            return Err(Errno::MSGSIZE.into());
        }
        Ok((count > 0).then_some(None))
    }

    async fn send(&self, payload: &[u8], _to: Option<SocketAddr>) -> io::Result<usize> {
        UnixDatagram::send(self, payload).await
    }

    fn finish(&self) -> bool {
        let is_half_closable = sockopt::socket_type(self) == Ok(SocketType::SEQPACKET);
        is_half_closable && self.shutdown(Shutdown::Write).is_ok()
    }
}

/// Tries to receive a datagram, then an error. The runtime reports readiness for both together, but clears it separately.
fn try_readable_or_error<T>(mut attempt: impl FnMut(Interest) -> io::Result<T>) -> io::Result<T> {
    match attempt(Interest::READABLE) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => attempt(Interest::ERROR),
        outcome => outcome,
    }
}

/// Waits for the next datagram on a connected socket, or its error.
pub(crate) async fn receive_one(socket: &UdpSocket) -> io::Result<Bytes> {
    loop {
        socket.ready(RECEIVABLE).await?;
        let mut buffer = BytesMut::new();
        match try_readable_or_error(|interest| {
            socket.try_io(interest, || receive(socket, &mut buffer))
        }) {
            Ok(_) => return Ok(buffer.freeze()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

fn receive(socket: impl AsFd, buffer: &mut BytesMut) -> io::Result<(usize, Option<SocketAddrAny>)> {
    let mut payload = Vec::with_capacity(MAX_DATAGRAM_BYTES);
    // With `TRUNC`, the count is the length of the whole datagram, also if it was truncated.
    let (_, count, from) = recvfrom(socket, spare_capacity(&mut payload), RecvFlags::TRUNC)?;
    buffer.extend_from_slice(&payload);
    Ok((count, from))
}

/// Starts to relay datagrams. Returns the response body with the datagrams from the peers.
pub(crate) fn relay<S: DatagramSocket>(socket: Arc<S>, to_peers: RequestBody) -> Body {
    let (errors_to_client, errors) = mpsc::channel(MAX_QUEUED_ERRORS);
    tokio::spawn(send_all(Arc::clone(&socket), to_peers, errors_to_client));
    Body::new(FromPeers {
        receivable: Box::pin(Arc::clone(&socket).receivable()),
        socket,
        errors,
        is_half_closed: false,
        ended: false,
    })
}

/// Sends the datagrams of the request body. At its end, the channel is closed, which ends the response body, unless its
/// direction stays open.
async fn send_all<S: DatagramSocket>(
    socket: Arc<S>,
    mut to_peers: RequestBody,
    errors_to_client: mpsc::Sender<i32>,
) {
    let mut decoder = DatagramDecoder::default();
    while let Some(Ok(frame)) = to_peers.frame().await {
        let Ok(bytes) = frame.into_data() else {
            continue;
        };
        decoder.push(&bytes);
        loop {
            match decoder.next_datagram() {
                Ok(Some(Datagram::Payload { address, payload })) => {
                    if let Err(error) = socket.send(&payload, address).await {
                        let _ = errors_to_client.try_send(errno_of(&error).raw_os_error());
                    }
                }
                // Clients do not send errors.
                Ok(Some(Datagram::Failed(_))) => {}
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(%error, "malformed datagram from client");
                    return;
                }
            }
        }
    }
}

/// The peers' datagrams as a body.
struct FromPeers<S: DatagramSocket> {
    socket: Arc<S>,
    receivable: Pin<Box<dyn Future<Output = io::Result<()>> + Send>>,
    /// Errors of the sending task. Closed when the client has closed its direction.
    errors: mpsc::Receiver<i32>,
    /// The client has closed its direction, and this one is open.
    is_half_closed: bool,
    ended: bool,
}

impl<S: DatagramSocket> FromPeers<S> {
    /// Receives datagrams until one frame is full or none are left. Empty: there are none.
    fn receive_available(&mut self) -> BytesMut {
        let mut frames = BytesMut::new();
        while frames.len() < MAX_FRAME && !self.ended {
            let mut payload = BytesMut::new();
            let datagram = match self.socket.try_receive(&mut payload) {
                Ok(Some(address)) => Datagram::Payload {
                    address,
                    payload: payload.freeze(),
                },
                Ok(None) => {
                    self.ended = true;
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => Datagram::Failed(errno_of(&error).raw_os_error()),
            };
            datagram.encode(&mut frames);
        }
        frames
    }
}

impl<S: DatagramSocket> http_body::Body for FromPeers<S> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        if this.ended {
            return Poll::Ready(None);
        }
        if !this.is_half_closed {
            match this.errors.poll_recv(context) {
                Poll::Pending => {}
                Poll::Ready(Some(number)) => {
                    return Poll::Ready(Some(Ok(Frame::data(failed(number)))));
                }
                Poll::Ready(None) => {
                    this.is_half_closed = this.socket.finish();
                    this.ended = !this.is_half_closed;
                }
            }
        }
        while !this.ended {
            if let Err(error) = ready!(this.receivable.as_mut().poll(context)) {
                this.ended = true;
                return Poll::Ready(Some(Ok(Frame::data(failed(
                    errno_of(&error).raw_os_error(),
                )))));
            }
            this.receivable = Box::pin(Arc::clone(&this.socket).receivable());
            let frames = this.receive_available();
            if !frames.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(frames.freeze()))));
            }
        }
        Poll::Ready(None)
    }
}

fn failed(number: i32) -> Bytes {
    let mut frame = BytesMut::new();
    Datagram::Failed(number).encode(&mut frame);
    frame.freeze()
}
