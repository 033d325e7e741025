//! Bytes passed on untouched, in both directions.
//!
//! A session that gets a whole connection may fail before it has said anything. Until then, what the client has sent is
//! kept, up to a bound, so that the application can get it instead.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::io::AsyncWrite;

use crate::stream::{BoxStream, Outbox, Read, poll_read};

/// One direction of a relay.
#[derive(Debug, Default)]
struct Direction {
    outbox: Outbox,
    state: State,
    /// What has been passed on, while it may have to go elsewhere.
    kept: Option<BytesMut>,
    limit: usize,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Left when the one end has nothing more to say.
    #[default]
    Open,
    /// Left when the other end has been told so.
    Ending,
    Ended,
}

/// Which end of a direction broke.
#[derive(Debug)]
enum Broken {
    Sender(io::Error),
    Receiver(io::Error),
}

/// How a session failed before it said anything.
#[derive(Debug)]
pub(crate) struct Unanswered {
    /// What the client has sent, unless it was too much.
    pub(crate) request: Option<BytesMut>,
    /// It closed the connection, as one does who is there. Otherwise something broke.
    pub(crate) was_orderly: bool,
}

/// What became of a connection to somebody who had not said anything.
#[derive(Debug)]
enum Began {
    Answered,
    Over(io::Result<()>),
    Unanswered { was_orderly: bool },
}

/// Passes bytes on until both ends have said all. The first to come are those that were read before.
pub(crate) async fn relay(
    client: &mut BoxStream,
    server: &mut BoxStream,
    to_server: Outbox,
    to_client: Outbox,
) -> io::Result<()> {
    let (up, down) = (Direction::new(to_server), Direction::new(to_client));
    run(client, server, up, down).await
}

/// The same for a session that has not said anything. If it fails before it does, what the client has sent is given back.
/// `first` has been read from the client before.
pub(crate) async fn relay_or_give_back(
    client: &mut BoxStream,
    server: &mut BoxStream,
    first: &[u8],
    limit: usize,
) -> Result<io::Result<()>, Unanswered> {
    let mut up = Direction::new(Outbox::default());
    up.outbox.push(first);
    up.limit = limit;
    up.kept = Some(BytesMut::new());
    up.keep(first);
    let mut down = Direction::default();
    let began = poll_fn(|context| poll_first_answer(client, server, &mut up, &mut down, context));
    match began.await {
        Began::Answered => {
            up.kept = None;
            Ok(run(client, server, up, down).await)
        }
        Began::Over(result) => Ok(result),
        Began::Unanswered { was_orderly } => Err(Unanswered {
            request: up.kept,
            was_orderly,
        }),
    }
}

fn poll_first_answer(
    client: &mut BoxStream,
    server: &mut BoxStream,
    up: &mut Direction,
    down: &mut Direction,
    context: &mut Context<'_>,
) -> Poll<Began> {
    let sending = up.poll(client, server, context);
    if let Poll::Ready(Err(Broken::Sender(error))) = sending {
        return Poll::Ready(Began::Over(Err(error)));
    }
    let read = poll_read(server, context, |bytes, context| {
        down.outbox.write(client, context, bytes)
    });
    Poll::Ready(match (read, sending) {
        (Poll::Ready(Ok(Read::Bytes(Ok(())))), _) => Began::Answered,
        (Poll::Ready(Ok(Read::Bytes(Err(error)))), _) => Began::Over(Err(error)),
        // The client has said all and got no answer, as is usual in some protocols.
        (Poll::Ready(Ok(Read::End)), Poll::Ready(Ok(()))) => Began::Over(Ok(())),
        (Poll::Ready(Ok(Read::End)), _) => Began::Unanswered { was_orderly: true },
        (Poll::Ready(Err(_)), _) | (Poll::Pending, Poll::Ready(Err(_))) => {
            Began::Unanswered { was_orderly: false }
        }
        (Poll::Pending, _) => return Poll::Pending,
    })
}

async fn run(
    client: &mut BoxStream,
    server: &mut BoxStream,
    mut up: Direction,
    mut down: Direction,
) -> io::Result<()> {
    poll_fn(|context| {
        let sent = match up.poll(client, server, context) {
            // Whoever takes nothing any more may still have something to say.
            Poll::Ready(Err(Broken::Receiver(_))) => {
                up.outbox = Outbox::default();
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
    })
    .await
}

impl Direction {
    fn new(outbox: Outbox) -> Self {
        Self {
            outbox,
            ..Self::default()
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        if let Some(kept) = &mut self.kept {
            if kept.len() + bytes.len() > self.limit {
                self.kept = None;
            } else {
                kept.extend_from_slice(bytes);
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
            ready!(self.outbox.poll_empty(to, context)).map_err(Broken::Receiver)?;
            match self.state {
                State::Open => {
                    let read = ready!(poll_read(from, context, |bytes, context| {
                        self.keep(bytes);
                        self.outbox.write(to, context, bytes)
                    }));
                    match read.map_err(Broken::Sender)? {
                        Read::Bytes(written) => written.map_err(Broken::Receiver)?,
                        Read::End => self.state = State::Ending,
                    }
                }
                State::Ending => {
                    // An end that has gone in the meantime need not be told.
                    let _ = ready!(Pin::new(&mut *to).poll_shutdown(context));
                    self.state = State::Ended;
                }
                State::Ended => return Poll::Ready(Ok(())),
            }
        }
    }
}

/// Says that nothing more comes.
pub(crate) async fn shutdown(stream: &mut (impl AsyncWrite + Unpin)) {
    let _ = poll_fn(|context| Pin::new(&mut *stream).poll_shutdown(context)).await;
}
