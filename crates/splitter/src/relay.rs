//! Bytes passed on untouched, in both directions.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;

use crate::stream::{BoxStream, Outbox, Read, poll_read};

/// One direction of a relay.
#[derive(Debug, Default)]
struct Direction {
    outbox: Outbox,
    state: State,
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

/// Passes bytes on until both ends have said all. The first to come are those that were read before.
pub(crate) async fn relay(
    client: &mut BoxStream,
    server: &mut BoxStream,
    to_server: Outbox,
    to_client: Outbox,
) -> io::Result<()> {
    let mut up = Direction {
        outbox: to_server,
        state: State::Open,
    };
    let mut down = Direction {
        outbox: to_client,
        state: State::Open,
    };
    poll_fn(|context| {
        let up = up.poll(client, server, context)?;
        let down = down.poll(server, client, context)?;
        if up.is_ready() && down.is_ready() {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    })
    .await
}

impl Direction {
    fn poll(
        &mut self,
        from: &mut BoxStream,
        to: &mut BoxStream,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.outbox.poll_empty(to, context))?;
            match self.state {
                State::Open => {
                    let outbox = &mut self.outbox;
                    let read = ready!(poll_read(from, context, |bytes, context| {
                        outbox.write(to, context, bytes)
                    }))?;
                    match read {
                        Read::Bytes(written) => written?,
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
