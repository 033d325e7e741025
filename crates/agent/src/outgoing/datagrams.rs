//! Datagrams between an HTTP/2 stream and a socket.
//!
//! As in a network, what nobody takes is dropped: the kernel's receive buffer is the only queue.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::Frame;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use protocol::outgoing::{DATAGRAM_BYTES, Datagram, DatagramDecoder};
use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketAddrAny, SocketType, recvfrom, sockopt};
use tokio::io::Interest;
use tokio::net::{UdpSocket, UnixDatagram};
use tokio::sync::mpsc;
use tonic::Status;
use tonic::body::Body;

use crate::agent::Agent;
use crate::error::errno_of;
use crate::grant::Transport;

/// How much is put into one frame when many datagrams wait.
const PIECE: usize = 64 * 1024;
/// Failures of sends that wait to be told. One that finds no room would only repeat another.
const FAILURES: usize = 8;

const ARRIVED: Interest = Interest::READABLE.add(Interest::ERROR);

/// What the relay needs of a socket.
pub(crate) trait DatagramSocket: Send + Sync + 'static {
    /// Waits until there is a datagram or an error: an error alone makes a socket not readable.
    fn receivable(self: Arc<Self>) -> impl Future<Output = io::Result<()>> + Send + 'static;
    /// A datagram and who sent it, when the socket is not connected. None: the peer has closed.
    fn try_receive(&self, buffer: &mut BytesMut) -> io::Result<Option<Option<SocketAddr>>>;
    fn send(
        &self,
        payload: &[u8],
        to: Option<SocketAddr>,
    ) -> impl Future<Output = io::Result<usize>> + Send;
    /// The client sends nothing more. True if the peer may go on, because each direction has its own end.
    fn finish(&self) -> bool {
        false
    }
}

impl DatagramSocket for UdpSocket {
    async fn receivable(self: Arc<Self>) -> io::Result<()> {
        self.ready(ARRIVED).await.map(drop)
    }

    fn try_receive(&self, buffer: &mut BytesMut) -> io::Result<Option<Option<SocketAddr>>> {
        let from = either(|interest| self.try_io(interest, || receive(self, buffer)))?.1;
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

/// A socket of a session that may not send everywhere.
pub(crate) struct RuledSocket {
    pub(crate) socket: UdpSocket,
    /// Where a connected one sends to.
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) agent: Agent,
}

impl DatagramSocket for RuledSocket {
    async fn receivable(self: Arc<Self>) -> io::Result<()> {
        self.socket.ready(ARRIVED).await.map(drop)
    }

    fn try_receive(&self, buffer: &mut BytesMut) -> io::Result<Option<Option<SocketAddr>>> {
        self.socket.try_receive(buffer)
    }

    async fn send(&self, payload: &[u8], to: Option<SocketAddr>) -> io::Result<usize> {
        if let Some(to) = to.or(self.peer) {
            let allowed = self.agent.rules().allow_address(Transport::Udp, to);
            allowed.map_err(|_| io::Error::from(Errno::PERM))?;
        }
        DatagramSocket::send(&self.socket, payload, to).await
    }
}

impl DatagramSocket for UnixDatagram {
    async fn receivable(self: Arc<Self>) -> io::Result<()> {
        self.ready(ARRIVED).await.map(drop)
    }

    fn try_receive(&self, buffer: &mut BytesMut) -> io::Result<Option<Option<SocketAddr>>> {
        // Packets end with an empty one.
        let (count, _) = either(|interest| self.try_io(interest, || receive(self, buffer)))?;
        if count > buffer.len() {
            return Err(Errno::MSGSIZE.into());
        }
        Ok((count > 0).then_some(None))
    }

    async fn send(&self, payload: &[u8], _to: Option<SocketAddr>) -> io::Result<usize> {
        UnixDatagram::send(self, payload).await
    }

    fn finish(&self) -> bool {
        let has_ends = sockopt::socket_type(self) == Ok(SocketType::SEQPACKET);
        has_ends && self.shutdown(Shutdown::Write).is_ok()
    }
}

/// Tries for a datagram, then for an error. The runtime tells about them together, and lets them be tried only apart.
fn either<T>(mut attempt: impl FnMut(Interest) -> io::Result<T>) -> io::Result<T> {
    match attempt(Interest::READABLE) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => attempt(Interest::ERROR),
        outcome => outcome,
    }
}

/// Waits for the next datagram on a connected socket, or its error.
pub(crate) async fn receive_one(socket: &UdpSocket) -> io::Result<Bytes> {
    loop {
        socket.ready(ARRIVED).await?;
        let mut buffer = BytesMut::new();
        match either(|interest| socket.try_io(interest, || receive(socket, &mut buffer))) {
            Ok(_) => return Ok(buffer.freeze()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

fn receive(socket: impl AsFd, buffer: &mut BytesMut) -> io::Result<(usize, Option<SocketAddrAny>)> {
    let mut payload = Vec::with_capacity(DATAGRAM_BYTES);
    // The length is told of what had no room, too.
    let (_, count, from) = recvfrom(socket, spare_capacity(&mut payload), RecvFlags::TRUNC)?;
    buffer.extend_from_slice(&payload);
    Ok((count, from))
}

/// Starts moving datagrams, and answers the body that brings those of the peers.
pub(crate) fn relay<S: DatagramSocket>(socket: Arc<S>, to_peers: Incoming) -> Body {
    let (failures_to_client, failures) = mpsc::channel(FAILURES);
    tokio::spawn(send_all(Arc::clone(&socket), to_peers, failures_to_client));
    Body::new(FromPeers {
        arrival: Box::pin(Arc::clone(&socket).receivable()),
        socket,
        failures,
        goes_on: false,
        ended: false,
    })
}

/// Ends with the request body; that the channel is then closed ends the response body, unless its direction goes on.
async fn send_all<S: DatagramSocket>(
    socket: Arc<S>,
    mut to_peers: Incoming,
    failures_to_client: mpsc::Sender<i32>,
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
                        let _ = failures_to_client.try_send(errno_of(&error).raw_os_error());
                    }
                }
                // A client has no failures to tell.
                Ok(Some(Datagram::Failed(_))) => {}
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(%error, "a client's datagrams have no meaning");
                    return;
                }
            }
        }
    }
}

/// The peers' datagrams as a body.
struct FromPeers<S: DatagramSocket> {
    socket: Arc<S>,
    arrival: Pin<Box<dyn Future<Output = io::Result<()>> + Send>>,
    /// From the task that sends. Closed when the client has ended its direction.
    failures: mpsc::Receiver<i32>,
    /// The client has ended its direction, and this one goes on.
    goes_on: bool,
    ended: bool,
}

impl<S: DatagramSocket> FromPeers<S> {
    /// Takes what has arrived, until there is enough for one frame. Nothing: it must wait.
    fn take(&mut self) -> BytesMut {
        let mut frames = BytesMut::new();
        while frames.len() < PIECE && !self.ended {
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
        if !this.goes_on {
            match this.failures.poll_recv(context) {
                Poll::Pending => {}
                Poll::Ready(Some(number)) => {
                    let mut frames = BytesMut::new();
                    Datagram::Failed(number).encode(&mut frames);
                    return Poll::Ready(Some(Ok(Frame::data(frames.freeze()))));
                }
                Poll::Ready(None) => {
                    this.goes_on = this.socket.finish();
                    this.ended = !this.goes_on;
                }
            }
        }
        while !this.ended {
            if ready!(this.arrival.as_mut().poll(context)).is_err() {
                this.ended = true;
            }
            this.arrival = Box::pin(Arc::clone(&this.socket).receivable());
            let frames = this.take();
            if !frames.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(frames.freeze()))));
            }
        }
        Poll::Ready(None)
    }
}
