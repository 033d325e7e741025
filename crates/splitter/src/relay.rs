//! Forwards bytes unchanged in both directions.
//!
//! A session that gets a whole connection may fail before its first response byte. Until then the client's bytes are
//! buffered, up to a limit, so that they can be replayed to the application.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::io::AsyncWrite;

use crate::memory::{Charge, Holder};
use crate::stream::{BoxStream, Read, WriteBuffer, poll_read};

/// One direction of a relay.
#[derive(Debug)]
struct Direction {
    write_buffer: WriteBuffer,
    state: State,
    /// Forwarded bytes, for as long as they may have to be replayed.
    replay: Option<BytesMut>,
    limit: usize,
    read_size: usize,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Until the sender has ended its stream.
    #[default]
    Open,
    /// Until the receiver's stream has been shut down.
    Ending,
    Ended,
}

/// Which end of a direction failed.
#[derive(Debug)]
enum Broken {
    Sender(io::Error),
    Receiver(io::Error),
}

/// How a session failed before its first response byte.
#[derive(Debug)]
pub(crate) struct NoResponse {
    /// The bytes that the client has sent. `None` if they exceeded the replay limit.
    pub(crate) request: Option<BytesMut>,
    /// The session closed the connection in an orderly way, so it is reachable. Otherwise the connection failed.
    pub(crate) closed_cleanly: bool,
}

/// The outcome of waiting for a session's first response byte.
#[derive(Debug)]
enum FirstResponse {
    Started,
    Ended(io::Result<()>),
    Missing { closed_cleanly: bool },
}

/// Forwards bytes until both ends have ended their streams. The buffered bytes are sent first.
pub(crate) async fn relay(
    client: &mut BoxStream,
    server: &mut BoxStream,
    to_server: WriteBuffer,
    to_client: WriteBuffer,
    holder: &Holder,
) -> io::Result<()> {
    let (up, down) = (Direction::new(to_server), Direction::new(to_client));
    run(client, server, up, down, holder.charge(0)).await
}

/// Forwards bytes to a session. If it fails before its first response byte, the client's bytes are returned for replay.
/// `first` has already been read from the client.
pub(crate) async fn relay_with_fallback(
    client: &mut BoxStream,
    server: &mut BoxStream,
    first: &[u8],
    limit: usize,
    holder: &Holder,
) -> Result<io::Result<()>, NoResponse> {
    let mut charge = holder.charge(0);
    let mut up = Direction::new(WriteBuffer::default());
    up.write_buffer.push(first);
    up.limit = limit;
    up.replay = Some(BytesMut::new());
    up.record(first);
    let mut down = Direction::new(WriteBuffer::default());
    let first_response = poll_fn(|context| {
        let polled = poll_first_response(client, server, &mut up, &mut down, context);
        charge_buffers(&mut up, &mut down, &mut charge);
        polled
    });
    match first_response.await {
        FirstResponse::Started => {
            up.replay = None;
            Ok(run(client, server, up, down, charge).await)
        }
        FirstResponse::Ended(result) => Ok(result),
        FirstResponse::Missing { closed_cleanly } => Err(NoResponse {
            request: up.replay,
            closed_cleanly,
        }),
    }
}

fn poll_first_response(
    client: &mut BoxStream,
    server: &mut BoxStream,
    up: &mut Direction,
    down: &mut Direction,
    context: &mut Context<'_>,
) -> Poll<FirstResponse> {
    let sending = up.poll(client, server, context);
    if let Poll::Ready(Err(Broken::Sender(error))) = sending {
        return Poll::Ready(FirstResponse::Ended(Err(error)));
    }
    let read = poll_read(server, down.read_size, context, |bytes, context| {
        down.write_buffer.write(client, context, bytes)
    });
    Poll::Ready(match (read, sending) {
        (Poll::Ready(Ok(Read::Bytes(Ok(())))), _) => FirstResponse::Started,
        (Poll::Ready(Ok(Read::Bytes(Err(error)))), _) => FirstResponse::Ended(Err(error)),
        // The client has ended its stream and got no response, as is usual in some protocols.
        (Poll::Ready(Ok(Read::End)), Poll::Ready(Ok(()))) => FirstResponse::Ended(Ok(())),
        (Poll::Ready(Ok(Read::End)), _) => FirstResponse::Missing {
            closed_cleanly: true,
        },
        (Poll::Ready(Err(_)), _) | (Poll::Pending, Poll::Ready(Err(_))) => FirstResponse::Missing {
            closed_cleanly: false,
        },
        (Poll::Pending, _) => return Poll::Pending,
    })
}

async fn run(
    client: &mut BoxStream,
    server: &mut BoxStream,
    mut up: Direction,
    mut down: Direction,
    mut charge: Charge,
) -> io::Result<()> {
    poll_fn(|context| {
        let polled = poll_both(client, server, &mut up, &mut down, context);
        charge_buffers(&mut up, &mut down, &mut charge);
        polled
    })
    .await
}

fn poll_both(
    client: &mut BoxStream,
    server: &mut BoxStream,
    up: &mut Direction,
    down: &mut Direction,
    context: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    let sent = match up.poll(client, server, context) {
        // An upstream that accepts no more bytes may still send some.
        Poll::Ready(Err(Broken::Receiver(_))) => {
            up.write_buffer = WriteBuffer::default();
            up.state = State::Ended;
            true
        }
        Poll::Ready(Err(Broken::Sender(error))) => return Poll::Ready(Err(error)),
        other => other.is_ready(),
    };
    match ready!(down.poll(server, client, context)) {
        Ok(()) if sent => Poll::Ready(Ok(())),
        Ok(()) => Poll::Pending,
        Err(Broken::Sender(error) | Broken::Receiver(error)) => Poll::Ready(Err(error)),
    }
}

/// Charges what is buffered, and reads less at once when little memory is free.
fn charge_buffers(up: &mut Direction, down: &mut Direction, charge: &mut Charge) {
    charge.resize(up.buffered() + down.buffered());
    let read_size = charge.holder().memory().read_size();
    (up.read_size, down.read_size) = (read_size, read_size);
}

impl Direction {
    fn new(write_buffer: WriteBuffer) -> Self {
        Self {
            write_buffer,
            state: State::Open,
            replay: None,
            limit: 0,
            read_size: usize::MAX,
        }
    }

    fn buffered(&self) -> usize {
        self.write_buffer.capacity() + self.replay.as_ref().map_or(0, BytesMut::capacity)
    }

    fn record(&mut self, bytes: &[u8]) {
        if let Some(replay) = &mut self.replay {
            if replay.len() + bytes.len() > self.limit {
                self.replay = None;
            } else {
                replay.extend_from_slice(bytes);
            }
        }
    }

    fn poll(
        &mut self,
        from: &mut BoxStream,
        to: &mut BoxStream,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Broken>> {
        loop {
            ready!(self.write_buffer.poll_empty(to, context)).map_err(Broken::Receiver)?;
            match self.state {
                State::Open => {
                    let read = ready!(poll_read(
                        from,
                        self.read_size,
                        context,
                        |bytes, context| {
                            self.record(bytes);
                            self.write_buffer.write(to, context, bytes)
                        }
                    ));
                    match read.map_err(Broken::Sender)? {
                        Read::Bytes(written) => written.map_err(Broken::Receiver)?,
                        Read::End => self.state = State::Ending,
                    }
                }
                State::Ending => {
                    // An error means that the receiver has already disconnected.
                    let _ = ready!(Pin::new(&mut *to).poll_shutdown(context));
                    self.state = State::Ended;
                }
                State::Ended => return Poll::Ready(Ok(())),
            }
        }
    }
}

/// Shuts the write direction of a stream down.
pub(crate) async fn shutdown(stream: &mut (impl AsyncWrite + Unpin)) {
    let _ = poll_fn(|context| Pin::new(&mut *stream).poll_shutdown(context)).await;
}
