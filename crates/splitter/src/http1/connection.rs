//! One client's connection that speaks HTTP/1.
//!
//! At any time one leg is in use. Requests for the same place follow one another at once; a request for another place
//! waits until all earlier ones have been answered, so answers keep their order without being kept in memory.

mod judge;
mod patience;
mod routes;

use std::future::poll_fn;
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};

use super::body::Body;
use super::head::{RequestScanner, RequestShape, Scan};
use super::leg::{Leg, Route};
use super::response::Leaving;
use crate::port::Way;
use crate::relay::shutdown;
use crate::settings::Reason;
use crate::stream::{Arrival, BoxStream, Outbox, Read, poll_read};
use judge::{Judging, judge};
use patience::{Patience, Waiting};
use routes::RequestCopies;

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// A client's connection.
pub(crate) struct Connection {
    way: Way,
    arrival: Arrival,
    client: BoxStream,
    to_client: Outbox,
    /// What the client has sent and nobody has got.
    input: BytesMut,
    client_has_ended: bool,
    scanner: RequestScanner,
    request: RequestState,
    leg: Option<Leg>,
    /// Legs that were used before and may be used again.
    parked: Vec<Leg>,
    copies: RequestCopies,
    patience: Option<Patience>,
    /// Bytes that went to legs, to notice progress.
    sent: u64,
    /// A body that would decide has been waited for long enough.
    gave_up_on_body: bool,
    /// The client has been told to send a body that decides.
    said_continue: bool,
}

/// Where in a request we are.
enum RequestState {
    /// Left when the head is complete, and the body if that decides.
    Head,
    /// It is known where it goes. Left when nothing is in the way.
    Judged {
        length: usize,
        shape: RequestShape,
        route: Route,
    },
    /// Left when the body has been sent.
    Body { body: Body, may_leave_http: bool },
    /// The answer decides whether what comes next is a request. Left when it has come.
    AwaitsAnswer,
}

/// What cannot be done while bytes move.
#[derive(Debug)]
enum Event {
    /// The next request goes to another place.
    Switch,
    /// What comes is not split any more.
    Raw,
    /// The client has no further requests, or the answer was the last.
    Ended,
    /// The place did not answer.
    Failed(Reason),
    /// The place closed the leg when nothing was going on.
    LegClosed,
    /// An answer or a request cannot be finished.
    Broken,
}

/// What one step did.
enum Step {
    Moved,
    Stuck,
    Event(Event),
}

/// Why no more of the input can be sent now.
enum Stop {
    NeedsMore,
    Held,
    Event(Event),
}

impl Connection {
    /// A connection of which the first bytes have been read, and for which a leg may already be there.
    pub(crate) fn new(
        way: Way,
        arrival: Arrival,
        client: BoxStream,
        first: BytesMut,
        spare: Option<Leg>,
    ) -> Self {
        Self {
            way,
            arrival,
            client,
            to_client: Outbox::default(),
            input: first,
            client_has_ended: false,
            scanner: RequestScanner::default(),
            request: RequestState::Head,
            leg: None,
            parked: spare.into_iter().collect(),
            copies: RequestCopies::default(),
            patience: None,
            sent: 0,
            gave_up_on_body: false,
            said_continue: false,
        }
    }

    /// Serves the client until it has gone. What is seldom needed is in boxes, so that a connection that waits is small.
    pub(crate) async fn serve(mut self) {
        loop {
            let goes_on = match poll_fn(|context| self.poll(context)).await {
                Event::Switch => Box::pin(self.switch()).await,
                Event::Failed(reason) => Box::pin(self.fall_back(reason)).await,
                Event::LegClosed => self.drop_closed_leg(),
                Event::Raw => return Box::pin(self.pass_on()).await,
                Event::Ended => {
                    self.keep_legs();
                    false
                }
                Event::Broken => false,
            };
            if !goes_on {
                let flush = poll_fn(|context| self.to_client.poll_empty(&mut self.client, context));
                if flush.await.is_ok() {
                    shutdown(&mut self.client).await;
                }
                return;
            }
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        loop {
            let requests = self.poll_requests(context);
            if let Step::Event(event) = requests {
                return Poll::Ready(event);
            }
            match (requests, self.poll_responses(context)) {
                (_, Step::Event(event)) => return Poll::Ready(event),
                (Step::Stuck, Step::Stuck) => match self.poll_patience(context) {
                    Some(Waiting::Head) => {
                        if let Stop::Event(event) = self.stop_splitting() {
                            return Poll::Ready(event);
                        }
                    }
                    Some(Waiting::Answer { .. }) => {
                        return Poll::Ready(Event::Failed(Reason::TooSlow));
                    }
                    Some(Waiting::Body) => self.gave_up_on_body = true,
                    None => return Poll::Pending,
                },
                _ => {}
            }
        }
    }

    /// Moves bytes from the client to the leg.
    fn poll_requests(&mut self, context: &mut Context<'_>) -> Step {
        if let Some(leg) = &mut self.leg {
            let had_waiting = !leg.outbox.is_empty();
            match leg.outbox.poll_empty(&mut leg.stream, context) {
                Poll::Pending => return Step::Stuck,
                Poll::Ready(Err(_)) => leg.stop_writing(),
                Poll::Ready(Ok(())) if had_waiting => return Step::Moved,
                Poll::Ready(Ok(())) => {}
            }
            // Nothing more goes there, and what comes from there may still be worth waiting for.
            if leg.write_failed || leg.responses.leaving().is_some() {
                return Step::Stuck;
            }
        }
        match self.advance(context) {
            Stop::Event(event) => Step::Event(event),
            Stop::NeedsMore if self.client_has_ended => self.end_requests(context),
            Stop::Held if self.client_has_ended => self.end_held_requests(context),
            // What waits is bounded; reading on notices when the client goes.
            Stop::Held if self.input.len() >= self.way.port.settings.head_limit => Step::Stuck,
            Stop::NeedsMore | Stop::Held => self.read_client(context),
        }
    }

    /// Sends as much of the input as can be sent now.
    fn advance(&mut self, context: &mut Context<'_>) -> Stop {
        let mut sendable = 0;
        let stop = loop {
            match self.advance_once(sendable) {
                Ok(more) => sendable += more,
                Err(stop) => break stop,
            }
        };
        if sendable > 0 {
            let limit = self.way.port.settings.replay_limit;
            if let Some(leg) = &mut self.leg {
                leg.send(context, &self.input[..sendable], limit);
            }
            self.sent += sendable as u64;
            self.input.advance(sendable);
            if self.input.is_empty() {
                self.input = BytesMut::new();
            }
        }
        stop
    }

    /// Looks at the input from `start` on, and says how many further bytes go to the leg.
    fn advance_once(&mut self, start: usize) -> Result<usize, Stop> {
        let input = &self.input[start..];
        match &mut self.request {
            RequestState::Head => {
                let end = match self.scanner.scan(input) {
                    Scan::Complete(end) => end,
                    Scan::More if input.len() <= self.way.port.settings.head_limit => {
                        return Err(Stop::NeedsMore);
                    }
                    Scan::More | Scan::Malformed => return Err(self.stop_splitting()),
                };
                self.judge_request(start, end)
            }
            RequestState::Judged {
                length,
                shape,
                route,
            } => {
                let Some(leg) = self.leg.as_mut() else {
                    return Err(Stop::Event(Event::Switch));
                };
                if !leg.can_start(route) {
                    return Err(if leg.responses.is_idle() {
                        Stop::Event(Event::Switch)
                    } else {
                        Stop::Held
                    });
                }
                leg.start(shape);
                let length = *length;
                self.copies.push(&input[..length]);
                let may_leave_http = shape.kind.may_leave_http();
                self.request = match shape.body.take() {
                    Some(body) => RequestState::Body {
                        body,
                        may_leave_http,
                    },
                    None => RequestState::after_request(may_leave_http),
                };
                Ok(length)
            }
            RequestState::Body {
                body,
                may_leave_http,
            } => {
                if input.is_empty() {
                    return Err(Stop::NeedsMore);
                }
                let Ok(consumed) = body.consume(input) else {
                    return Err(self.stop_splitting());
                };
                self.copies.push(&input[..consumed.length]);
                if consumed.is_end {
                    self.request = RequestState::after_request(*may_leave_http);
                }
                Ok(consumed.length)
            }
            RequestState::AwaitsAnswer => match &self.leg {
                Some(leg) if !leg.responses.is_idle() => Err(Stop::Held),
                _ => {
                    self.request = RequestState::Head;
                    Ok(0)
                }
            },
        }
    }

    /// Finds out where a request with a complete head goes.
    fn judge_request(&mut self, start: usize, end: usize) -> Result<usize, Stop> {
        let is_last_word = self.gave_up_on_body || self.client_has_ended;
        let input = &self.input[start..];
        match judge(&self.way, input, end, is_last_word) {
            Err(_) => Err(self.stop_splitting()),
            Ok(Judging::NeedsBody { expects_continue }) => {
                let is_free = self.leg.as_ref().is_none_or(|leg| leg.responses.is_idle());
                if expects_continue && !self.said_continue && is_free {
                    self.said_continue = true;
                    self.to_client.push(CONTINUE);
                }
                Err(Stop::NeedsMore)
            }
            Ok(Judging::Done {
                route,
                shape,
                mirrors,
            }) => {
                self.scanner = RequestScanner::default();
                self.gave_up_on_body = false;
                self.said_continue = false;
                self.copies
                    .choose(&mirrors, &self.arrival, &self.way.port.settings);
                self.request = RequestState::Judged {
                    length: end,
                    shape,
                    route,
                };
                Ok(0)
            }
        }
    }

    /// What comes is not understood: it goes on as it is, to the application or to the session that has the whole port.
    /// What another session has got of it already cannot be taken back.
    fn stop_splitting(&self) -> Stop {
        let Some(leg) = &self.leg else {
            return Stop::Event(Event::Raw);
        };
        let is_half_sent = matches!(self.request, RequestState::Body { .. });
        if leg.responses.is_idle() || leg.route == self.way.port.raw_route() {
            Stop::Event(Event::Raw)
        } else if is_half_sent {
            Stop::Event(if leg.route.is_original() {
                Event::Raw
            } else {
                Event::Broken
            })
        } else {
            Stop::Held
        }
    }

    /// The client sends nothing more.
    fn end_requests(&mut self, context: &mut Context<'_>) -> Step {
        let Some(leg) = &mut self.leg else {
            let has_unfinished = !self.input.is_empty();
            return Step::Event(if has_unfinished {
                Event::Raw
            } else {
                Event::Ended
            });
        };
        if !self.input.is_empty() {
            return match self.stop_splitting() {
                Stop::Event(event) => Step::Event(event),
                Stop::NeedsMore | Stop::Held => Step::Stuck,
            };
        }
        if leg.responses.is_idle() {
            return Step::Event(Event::Ended);
        }
        leg.end(context);
        Step::Stuck
    }

    /// The client sends nothing more, and what it sent cannot be judged before an answer has come.
    fn end_held_requests(&mut self, context: &mut Context<'_>) -> Step {
        match (&mut self.leg, &self.request) {
            (Some(leg), RequestState::AwaitsAnswer) if self.input.is_empty() => leg.end(context),
            // The client did not wait for the answer, so it knows what it does.
            (Some(leg), RequestState::AwaitsAnswer) if leg.route.is_original() => {
                return Step::Event(Event::Raw);
            }
            _ => {}
        }
        Step::Stuck
    }

    /// Reads from the client. Bytes of a body go straight to the leg.
    fn read_client(&mut self, context: &mut Context<'_>) -> Step {
        let limit = self.way.port.settings.replay_limit;
        let read = poll_read(&mut self.client, context, |bytes, context| {
            let mut rest = bytes;
            if let (RequestState::Body { body, .. }, Some(leg), true) =
                (&mut self.request, &mut self.leg, self.input.is_empty())
            {
                let mut ahead = body.clone();
                // The end of a body, and what cannot be read, is left to be looked at with what follows.
                if let Ok(consumed) = ahead.consume(bytes)
                    && !consumed.is_end
                {
                    *body = ahead;
                    self.copies.push(bytes);
                    leg.send(context, bytes, limit);
                    self.sent += bytes.len() as u64;
                    rest = &[];
                }
            }
            self.input.extend_from_slice(rest);
        });
        match read {
            Poll::Pending => Step::Stuck,
            Poll::Ready(Ok(Read::Bytes(()))) => Step::Moved,
            Poll::Ready(Ok(Read::End)) => {
                self.client_has_ended = true;
                Step::Moved
            }
            Poll::Ready(Err(_)) => Step::Event(Event::Broken),
        }
    }

    /// Moves bytes from the leg to the client.
    fn poll_responses(&mut self, context: &mut Context<'_>) -> Step {
        let had_waiting = !self.to_client.is_empty();
        match self.to_client.poll_empty(&mut self.client, context) {
            Poll::Pending => return Step::Stuck,
            Poll::Ready(Err(_)) => return Step::Event(Event::Broken),
            Poll::Ready(Ok(())) if had_waiting => return Step::Moved,
            Poll::Ready(Ok(())) => {}
        }
        let Some(leg) = &mut self.leg else {
            return Step::Stuck;
        };
        let (client, to_client, responses) =
            (&mut self.client, &mut self.to_client, &mut leg.responses);
        let read = poll_read(&mut leg.stream, context, |bytes, context| {
            responses.observe(bytes);
            to_client.write(client, context, bytes)
        });
        match read {
            Poll::Pending => Step::Stuck,
            Poll::Ready(Ok(Read::Bytes(Err(_)))) => Step::Event(Event::Broken),
            Poll::Ready(Ok(Read::Bytes(Ok(())))) => {
                leg.was_answered();
                match leg.responses.leaving() {
                    Some(Leaving::Switched) => Step::Event(Event::Raw),
                    Some(_) if leg.route.is_original() => Step::Event(Event::Raw),
                    _ => Step::Moved,
                }
            }
            Poll::Ready(Ok(Read::End) | Err(_)) => Step::Event(self.leg_ended()),
        }
    }

    /// The other end of the leg has closed it.
    fn leg_ended(&self) -> Event {
        match &self.leg {
            Some(leg) if leg.may_fail() => Event::Failed(Reason::NoAnswer),
            Some(leg) if leg.responses.is_idle() => Event::LegClosed,
            Some(leg) if leg.responses.leaving() == Some(Leaving::UntilClose) => Event::Ended,
            _ => Event::Broken,
        }
    }

    /// Stops splitting, and passes bytes on until both ends have said all.
    async fn pass_on(mut self) {
        let route = self.way.port.raw_route();
        // A leg on which something is going on is the one that the rest belongs to.
        let kept = self
            .leg
            .take()
            .filter(|leg| leg.route == route || !leg.responses.is_idle());
        let opened = match (kept, &route) {
            (Some(leg), _) => Some(leg),
            (None, Route::Claim(owner)) => self.way.open_owner(Some(owner), &self.arrival).await,
            (None, Route::Original) => self.way.open_owner(None, &self.arrival).await,
        };
        let Some(leg) = opened else {
            return;
        };
        drop(self.parked);
        self.way
            .pass_on(
                &mut self.client,
                leg,
                self.to_client,
                &self.input,
                &self.arrival,
            )
            .await;
    }
}

impl RequestState {
    fn after_request(may_leave_http: bool) -> Self {
        if may_leave_http {
            Self::AwaitsAnswer
        } else {
            Self::Head
        }
    }
}
