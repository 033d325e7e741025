//! The body of a request of a session.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{Reason, RecvStream};
use http::HeaderMap;
use http_body::Frame;
use splitter::{Charge, Holder, InFlight, MeasuredStream};

/// The body of a request. The sender may send more when data of it has been read.
pub(crate) struct RequestBody {
    stream: RecvStream,
    measured: MeasuredStream,
    holder: Holder,
    state: State,
    /// What has been read, if its reader keeps it until the request ends. `None` if it is forwarded.
    kept: Option<Charge>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Data,
    Trailers,
    Ended,
}

impl RequestBody {
    pub(super) fn new(mut stream: RecvStream, in_flight: &Arc<InFlight>, holder: Holder) -> Self {
        Self {
            measured: in_flight.add(&mut stream, &holder),
            stream,
            holder,
            state: State::Data,
            kept: None,
        }
    }

    /// Charges also what has been read: it is the message of a call.
    pub(super) fn keep_what_is_read(&mut self) {
        self.kept = Some(self.holder.charge(0));
    }

    /// What the memory of the request and of its response is charged to.
    pub(crate) fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Charges another holder from now on: a client, whose slowness is the reason why data of the body waits.
    pub(crate) fn charge_to(&mut self, holder: Holder) {
        self.measured.charge_to(&holder);
        self.holder = holder;
    }

    fn poll_data(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, h2::Error>>> {
        let Some(data) = ready!(self.stream.poll_data(context)) else {
            return Poll::Ready(None);
        };
        if let Ok(data) = &data {
            self.measured.release(data.len());
            if let Some(kept) = &mut self.kept {
                kept.resize(kept.bytes() + data.len());
            }
        }
        Poll::Ready(Some(data))
    }

    fn poll_trailers(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<HeaderMap, h2::Error>>> {
        self.stream.poll_trailers(context).map(Result::transpose)
    }
}

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        if self.state == State::Data {
            match ready!(self.poll_data(context)) {
                Some(Ok(data)) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Some(Err(error)) => {
                    self.state = State::Ended;
                    return Poll::Ready(failure(error).map(Err));
                }
                None => self.state = State::Trailers,
            }
        }
        if self.state == State::Trailers {
            let trailers = ready!(self.poll_trailers(context));
            self.state = State::Ended;
            return Poll::Ready(match trailers {
                Some(Ok(trailers)) => Some(Ok(Frame::trailers(trailers))),
                Some(Err(error)) => failure(error).map(Err),
                None => None,
            });
        }
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        self.state == State::Ended || self.stream.is_end_stream()
    }
}

/// `None` if the client only needs no more of the response: the body ends without an error.
fn failure(error: h2::Error) -> Option<h2::Error> {
    (error.reason() != Some(Reason::NO_ERROR)).then_some(error)
}
