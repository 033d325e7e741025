//! A client's HTTP/1 connection.
//!
//! One upstream connection is in use at a time. Requests for the same upstream follow one another immediately. A request for
//! another upstream waits until all earlier ones have their responses, so responses keep their order without buffering.

mod route;
mod switch;
mod timeouts;

use std::future::poll_fn;
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};

use super::body::Body;
use super::head::{RequestScanner, RequestShape, Scan};
use super::response::PassthroughReason;
use super::upstream::{Route, UpstreamConnection};
use crate::memory::Charge;
use crate::port::Upstreams;
use crate::relay::shutdown;
use crate::settings::FailureReason;
use crate::stream::{BoxStream, ConnectionMeta, Read, WriteBuffer, poll_read};
use route::{RouteDecision, select_request_route};
use switch::RequestMirrors;
use timeouts::{PendingTimeout, TimeoutKind};

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// A client's connection.
pub(crate) struct Connection {
    upstreams: Upstreams,
    meta: ConnectionMeta,
    client: BoxStream,
    to_client: WriteBuffer,
    /// Bytes from the client that have not been forwarded.
    input: BytesMut,
    client_has_ended: bool,
    scanner: RequestScanner,
    request: RequestState,
    upstream: Option<UpstreamConnection>,
    /// Idle upstream connections of this client.
    parked: Vec<UpstreamConnection>,
    mirrors: RequestMirrors,
    timeout: Option<PendingTimeout>,
    /// Bytes that were sent upstream, to detect progress.
    sent: u64,
    /// The body that determines the route did not arrive in time.
    body_timed_out: bool,
    /// `100 Continue` was sent to get the body that determines the route.
    sent_continue: bool,
    /// For everything above that is buffered.
    charge: Charge,
}

/// The parse state of the current request.
enum RequestState {
    /// Until the head is complete, and also the body if the route depends on it.
    Head,
    /// The route is selected. Until the upstream is free.
    Routed {
        length: usize,
        shape: RequestShape,
        route: Route,
    },
    /// Until the body has been sent.
    Body {
        body: Body,
        may_switch_protocol: bool,
    },
    /// Until the response determines whether the connection stays HTTP.
    AwaitingResponse,
}

/// An event that cannot be handled while polling.
#[derive(Debug)]
enum Event {
    /// The next request needs another upstream connection.
    Switch,
    /// The rest of the connection is forwarded unchanged.
    Raw,
    /// The client has no further requests, or this was the last response.
    Ended,
    /// The upstream did not respond.
    Failed(FailureReason),
    /// The upstream closed an idle connection.
    UpstreamClosed,
    /// A request or a response cannot be completed.
    Broken,
}

/// The result of one polling step.
enum Step {
    Progress,
    Pending,
    Event(Event),
}

/// Why no more of the input can be forwarded now.
enum Stop {
    NeedsMore,
    Blocked,
    Event(Event),
}

impl Connection {
    /// `first` has already been read from the client. `spare` is an upstream connection that is already open.
    pub(crate) fn new(
        upstreams: Upstreams,
        meta: ConnectionMeta,
        client: BoxStream,
        first: BytesMut,
        spare: Option<UpstreamConnection>,
    ) -> Self {
        Self {
            charge: upstreams.holder.charge(0),
            upstreams,
            meta,
            client,
            to_client: WriteBuffer::default(),
            input: first,
            client_has_ended: false,
            scanner: RequestScanner::default(),
            request: RequestState::Head,
            upstream: None,
            parked: spare.into_iter().collect(),
            mirrors: RequestMirrors::default(),
            timeout: None,
            sent: 0,
            body_timed_out: false,
            sent_continue: false,
        }
    }

    /// Serves the client until it disconnects. Rarely used futures are boxed, so that an idle connection is small.
    pub(crate) async fn serve(mut self) {
        loop {
            let polled = poll_fn(|context| {
                let event = self.poll(context);
                self.charge_buffers();
                event
            });
            let continues = match polled.await {
                Event::Switch => Box::pin(self.switch()).await,
                Event::Failed(reason) => Box::pin(self.fall_back(reason)).await,
                Event::UpstreamClosed => self.drop_closed_upstream(),
                Event::Raw => return Box::pin(self.forward()).await,
                Event::Ended => {
                    self.pool_connections();
                    false
                }
                Event::Broken => false,
            };
            if !continues {
                let flush = poll_fn(|context| self.to_client.poll_empty(&mut self.client, context));
                if flush.await.is_ok() {
                    shutdown(&mut self.client).await;
                }
                return;
            }
        }
    }

    fn charge_buffers(&mut self) {
        let upstream = self.upstream.as_ref();
        let upstream = upstream.map_or(0, UpstreamConnection::buffered);
        let buffered = self.input.capacity() + self.to_client.capacity() + upstream;
        self.charge.resize(buffered);
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        loop {
            let requests = self.poll_requests(context);
            if let Step::Event(event) = requests {
                return Poll::Ready(event);
            }
            match (requests, self.poll_responses(context)) {
                (_, Step::Event(event)) => return Poll::Ready(event),
                (Step::Pending, Step::Pending) => match self.poll_timeout(context) {
                    Some(TimeoutKind::Head) => {
                        if let Stop::Event(event) = self.stop_splitting() {
                            return Poll::Ready(event);
                        }
                    }
                    Some(TimeoutKind::Response { .. }) => {
                        return Poll::Ready(Event::Failed(FailureReason::Timeout));
                    }
                    Some(TimeoutKind::Body) => self.body_timed_out = true,
                    None => return Poll::Pending,
                },
                _ => {}
            }
        }
    }

    /// Forwards bytes from the client to the upstream.
    fn poll_requests(&mut self, context: &mut Context<'_>) -> Step {
        if let Some(upstream) = &mut self.upstream {
            let had_pending = !upstream.write_buffer.is_empty();
            match upstream
                .write_buffer
                .poll_empty(&mut upstream.stream, context)
            {
                Poll::Pending => return Step::Pending,
                Poll::Ready(Err(_)) => upstream.stop_writing(),
                Poll::Ready(Ok(())) if had_pending => return Step::Progress,
                Poll::Ready(Ok(())) => {}
            }
            // The upstream accepts no more bytes, but its response may still arrive.
            if upstream.write_failed || upstream.responses.passthrough().is_some() {
                return Step::Pending;
            }
        }
        match self.advance(context) {
            Stop::Event(event) => Step::Event(event),
            Stop::NeedsMore if self.client_has_ended => self.end_requests(context),
            Stop::Blocked if self.client_has_ended => self.end_blocked_requests(context),
            // The input is bounded. Reading further detects when the client disconnects.
            Stop::Blocked if self.input.len() >= self.upstreams.port.settings.head_limit => {
                Step::Pending
            }
            Stop::NeedsMore | Stop::Blocked => self.read_client(context),
        }
    }

    /// Forwards as much of the input as possible.
    fn advance(&mut self, context: &mut Context<'_>) -> Stop {
        let mut sendable = 0;
        let stop = loop {
            match self.advance_once(sendable) {
                Ok(more) => sendable += more,
                Err(stop) => break stop,
            }
        };
        if sendable > 0 {
            let limit = self.upstreams.port.settings.replay_limit;
            if let Some(upstream) = &mut self.upstream {
                upstream.send(context, &self.input[..sendable], limit);
            }
            self.sent += sendable as u64;
            self.input.advance(sendable);
            if self.input.is_empty() {
                self.input = BytesMut::new();
            }
        }
        stop
    }

    /// Parses the input from `start` on, and returns how many further bytes can be forwarded.
    fn advance_once(&mut self, start: usize) -> Result<usize, Stop> {
        let input = &self.input[start..];
        match &mut self.request {
            RequestState::Head => {
                let end = match self.scanner.scan(input) {
                    Scan::Complete(end) => end,
                    Scan::More if input.len() <= self.upstreams.port.settings.head_limit => {
                        return Err(Stop::NeedsMore);
                    }
                    Scan::More | Scan::Malformed => return Err(self.stop_splitting()),
                };
                self.route_request(start, end)
            }
            RequestState::Routed {
                length,
                shape,
                route,
            } => {
                let Some(upstream) = self.upstream.as_mut() else {
                    return Err(Stop::Event(Event::Switch));
                };
                if !upstream.can_start(route) {
                    return Err(if upstream.responses.is_idle() {
                        Stop::Event(Event::Switch)
                    } else {
                        Stop::Blocked
                    });
                }
                upstream.start(shape);
                let length = *length;
                self.mirrors.push(&input[..length]);
                let may_switch_protocol = shape.kind.may_switch_protocol();
                self.request = match shape.body.take() {
                    Some(body) => RequestState::Body {
                        body,
                        may_switch_protocol,
                    },
                    None => RequestState::after_request(may_switch_protocol),
                };
                Ok(length)
            }
            RequestState::Body {
                body,
                may_switch_protocol,
            } => {
                if input.is_empty() {
                    return Err(Stop::NeedsMore);
                }
                let Ok(consumed) = body.consume(input) else {
                    return Err(self.stop_splitting());
                };
                self.mirrors.push(&input[..consumed.length]);
                if consumed.is_end {
                    self.request = RequestState::after_request(*may_switch_protocol);
                }
                Ok(consumed.length)
            }
            RequestState::AwaitingResponse => match &self.upstream {
                Some(upstream) if !upstream.responses.is_idle() => Err(Stop::Blocked),
                _ => {
                    self.request = RequestState::Head;
                    Ok(0)
                }
            },
        }
    }

    /// Selects the route of a request with a complete head.
    fn route_request(&mut self, start: usize, end: usize) -> Result<usize, Stop> {
        let is_final = self.body_timed_out || self.client_has_ended;
        let input = &self.input[start..];
        match select_request_route(&self.upstreams, input, end, is_final) {
            Err(_) => Err(self.stop_splitting()),
            Ok(RouteDecision::NeedsBody { expects_continue }) => {
                let is_free = self
                    .upstream
                    .as_ref()
                    .is_none_or(|upstream| upstream.responses.is_idle());
                if expects_continue && !self.sent_continue && is_free {
                    self.sent_continue = true;
                    self.to_client.push(CONTINUE);
                }
                Err(Stop::NeedsMore)
            }
            Ok(RouteDecision::Routed {
                route,
                shape,
                mirrors,
            }) => {
                self.scanner = RequestScanner::default();
                self.body_timed_out = false;
                self.sent_continue = false;
                self.mirrors
                    .select(&mirrors, &self.meta, &self.upstreams.port.settings);
                self.request = RequestState::Routed {
                    length: end,
                    shape,
                    route,
                };
                Ok(0)
            }
        }
    }

    /// Handles input that cannot be parsed: it is forwarded unchanged, to the application or to the session that owns the
    /// port. Bytes that another session has already received cannot be taken back.
    fn stop_splitting(&self) -> Stop {
        let Some(upstream) = &self.upstream else {
            return Stop::Event(Event::Raw);
        };
        let is_half_sent = matches!(self.request, RequestState::Body { .. });
        if upstream.responses.is_idle() || upstream.route == self.upstreams.port.fallback_route() {
            Stop::Event(Event::Raw)
        } else if is_half_sent {
            Stop::Event(if upstream.route.is_application() {
                Event::Raw
            } else {
                Event::Broken
            })
        } else {
            Stop::Blocked
        }
    }

    /// Handles the end of the client's stream.
    fn end_requests(&mut self, context: &mut Context<'_>) -> Step {
        let Some(upstream) = &mut self.upstream else {
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
                Stop::NeedsMore | Stop::Blocked => Step::Pending,
            };
        }
        if upstream.responses.is_idle() {
            return Step::Event(Event::Ended);
        }
        upstream.end(context);
        Step::Pending
    }

    /// Handles the end of the client's stream while its input waits for a response.
    fn end_blocked_requests(&mut self, context: &mut Context<'_>) -> Step {
        match (&mut self.upstream, &self.request) {
            (Some(upstream), RequestState::AwaitingResponse) if self.input.is_empty() => {
                upstream.end(context);
            }
            // The client sent more bytes without waiting for the response, so they are forwarded as well.
            (Some(upstream), RequestState::AwaitingResponse) if upstream.route.is_application() => {
                return Step::Event(Event::Raw);
            }
            _ => {}
        }
        Step::Pending
    }

    /// Reads from the client. Body bytes are forwarded without buffering.
    fn read_client(&mut self, context: &mut Context<'_>) -> Step {
        let limit = self.upstreams.port.settings.replay_limit;
        let size = self.upstreams.holder.memory().read_size();
        let read = poll_read(&mut self.client, size, context, |bytes, context| {
            let mut rest = bytes;
            if let (RequestState::Body { body, .. }, Some(upstream), true) =
                (&mut self.request, &mut self.upstream, self.input.is_empty())
            {
                let mut ahead = body.clone();
                // The end of a body, and malformed bytes, are left in the input and parsed with what follows.
                if let Ok(consumed) = ahead.consume(bytes)
                    && !consumed.is_end
                {
                    *body = ahead;
                    self.mirrors.push(bytes);
                    upstream.send(context, bytes, limit);
                    self.sent += bytes.len() as u64;
                    rest = &[];
                }
            }
            self.input.extend_from_slice(rest);
        });
        match read {
            Poll::Pending => Step::Pending,
            Poll::Ready(Ok(Read::Bytes(()))) => Step::Progress,
            Poll::Ready(Ok(Read::End)) => {
                self.client_has_ended = true;
                Step::Progress
            }
            Poll::Ready(Err(_)) => Step::Event(Event::Broken),
        }
    }

    /// Forwards bytes from the upstream to the client.
    fn poll_responses(&mut self, context: &mut Context<'_>) -> Step {
        let had_pending = !self.to_client.is_empty();
        match self.to_client.poll_empty(&mut self.client, context) {
            Poll::Pending => return Step::Pending,
            Poll::Ready(Err(_)) => return Step::Event(Event::Broken),
            Poll::Ready(Ok(())) if had_pending => return Step::Progress,
            Poll::Ready(Ok(())) => {}
        }
        let Some(upstream) = &mut self.upstream else {
            return Step::Pending;
        };
        let (client, to_client, responses) = (
            &mut self.client,
            &mut self.to_client,
            &mut upstream.responses,
        );
        let size = self.upstreams.holder.memory().read_size();
        let read = poll_read(&mut upstream.stream, size, context, |bytes, context| {
            responses.observe(bytes);
            to_client.write(client, context, bytes)
        });
        match read {
            Poll::Pending => Step::Pending,
            Poll::Ready(Ok(Read::Bytes(Err(_)))) => Step::Event(Event::Broken),
            Poll::Ready(Ok(Read::Bytes(Ok(())))) => {
                upstream.response_started();
                match upstream.responses.passthrough() {
                    Some(PassthroughReason::ProtocolSwitched) => Step::Event(Event::Raw),
                    Some(_) if upstream.route.is_application() => Step::Event(Event::Raw),
                    _ => Step::Progress,
                }
            }
            Poll::Ready(Ok(Read::End) | Err(_)) => Step::Event(self.upstream_ended()),
        }
    }

    /// The event for an upstream connection that was closed by the upstream.
    fn upstream_ended(&self) -> Event {
        match &self.upstream {
            Some(upstream) if upstream.handles_no_response() => {
                Event::Failed(FailureReason::NoResponse)
            }
            Some(upstream) if upstream.responses.is_idle() => Event::UpstreamClosed,
            Some(upstream)
                if upstream.responses.passthrough() == Some(PassthroughReason::UntilClose) =>
            {
                Event::Ended
            }
            _ => Event::Broken,
        }
    }

    /// Stops splitting, and forwards bytes until both ends have ended their streams.
    async fn forward(mut self) {
        let route = self.upstreams.port.fallback_route();
        // An upstream connection with a pending response gets the rest of the connection.
        let current = self
            .upstream
            .take()
            .filter(|upstream| upstream.route == route || !upstream.responses.is_idle());
        let opened = match (current, &route) {
            (Some(upstream), _) => Some(upstream),
            (None, Route::Claim(owner)) => self.upstreams.open_owner(Some(owner), &self.meta).await,
            (None, Route::Application) => self.upstreams.open_owner(None, &self.meta).await,
        };
        let Some(upstream) = opened else {
            return;
        };
        drop(self.parked);
        self.upstreams
            .forward(
                &mut self.client,
                upstream,
                self.to_client,
                &self.input,
                &self.meta,
            )
            .await;
    }
}

impl RequestState {
    fn after_request(may_switch_protocol: bool) -> Self {
        if may_switch_protocol {
            Self::AwaitingResponse
        } else {
            Self::Head
        }
    }
}
