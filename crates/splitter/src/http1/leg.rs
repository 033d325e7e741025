//! A connection to one of the places where a client's requests go.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;

use bytes::BytesMut;
use tokio::io::AsyncWrite;

use super::head::{RequestKind, RequestShape};
use super::response::Responses;
use crate::claims::HeldClaim;
use crate::settings::RequestLine;
use crate::stream::{BoxStream, Outbox};

/// Where requests go.
#[derive(Debug, Clone)]
pub(crate) enum Route {
    Original,
    Claim(Arc<HeldClaim>),
}

impl Route {
    pub(crate) fn is_original(&self) -> bool {
        matches!(self, Self::Original)
    }
}

impl PartialEq for Route {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Original, Self::Original) => true,
            (Self::Claim(one), Self::Claim(other)) => one.identity == other.identity,
            _ => false,
        }
    }
}

/// How a leg came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Age {
    /// Nothing has been sent on it.
    Fresh,
    /// It has been used before, so the other end may close it at any time.
    Used,
}

/// A client's connection to one place.
pub(crate) struct Leg {
    pub(crate) route: Route,
    pub(crate) stream: BoxStream,
    pub(crate) age: Age,
    /// Bytes on their way to the place.
    pub(crate) outbox: Outbox,
    pub(crate) responses: Responses,
    /// What has been sent of a request, while it may have to be sent to another place.
    kept: Option<BytesMut>,
    /// A request has been sent whose answer has not begun.
    pub(crate) awaits_answer: bool,
    /// What kind of request was sent last.
    kind: RequestKind,
    /// The place takes nothing any more.
    pub(crate) write_failed: bool,
    /// The place has been told that nothing more comes.
    pub(crate) has_ended: bool,
}

impl Leg {
    pub(crate) fn new(route: Route, stream: BoxStream, age: Age) -> Self {
        Self {
            route,
            stream,
            age,
            outbox: Outbox::default(),
            responses: Responses::default(),
            kept: None,
            awaits_answer: false,
            kind: RequestKind::Ordinary,
            write_failed: false,
            has_ended: false,
        }
    }

    /// Whether a request for this route can be sent now. Sessions get one request after the other, so that each can go
    /// elsewhere if the session fails; the application gets them as they come.
    pub(crate) fn can_start(&self, route: &Route) -> bool {
        self.route == *route
            && !self.write_failed
            && !self.has_ended
            && self.responses.leaving().is_none()
            && (route.is_original() || self.responses.is_idle())
    }

    /// A request is about to be sent.
    pub(crate) fn start(&mut self, shape: &RequestShape) {
        let is_first = self.responses.is_idle();
        self.responses.expect(shape.kind);
        self.kind = shape.kind;
        if shape.binds_connection {
            self.responses.never_reuse();
        }
        let may_need_another_place = match self.route {
            Route::Claim(_) => true,
            Route::Original => is_first && self.age == Age::Used && shape.is_idempotent,
        };
        self.kept = may_need_another_place.then(BytesMut::new);
        self.awaits_answer = true;
        self.age = Age::Used;
    }

    /// Sends bytes of the request that was started.
    pub(crate) fn send(&mut self, context: &mut Context<'_>, bytes: &[u8], limit: usize) {
        if let Some(kept) = &mut self.kept {
            if kept.len() + bytes.len() > limit {
                self.kept = None;
            } else {
                kept.extend_from_slice(bytes);
            }
        }
        if !self.write_failed && self.outbox.write(&mut self.stream, context, bytes).is_err() {
            self.stop_writing();
        }
    }

    /// Tells the place that nothing more comes.
    pub(crate) fn end(&mut self, context: &mut Context<'_>) {
        if !self.has_ended && Pin::new(&mut self.stream).poll_shutdown(context).is_ready() {
            self.has_ended = true;
        }
    }

    pub(crate) fn stop_writing(&mut self) {
        self.write_failed = true;
        self.outbox = Outbox::default();
    }

    /// The answer has begun: the request will not be sent elsewhere.
    pub(crate) fn was_answered(&mut self) {
        self.kept = None;
        self.awaits_answer = false;
    }

    /// Whether somebody else can answer when this place does not, or wants to know that it did not.
    pub(crate) fn may_fail(&self) -> bool {
        self.awaits_answer && (self.kept.is_some() || !self.route.is_original())
    }

    /// The request that was not answered, unless too much of it has been sent.
    pub(crate) fn take_request(&mut self) -> Option<ResentRequest> {
        self.kept.take().map(|bytes| ResentRequest {
            bytes,
            kind: self.kind,
        })
    }
}

/// A request that is to be sent to another place than before.
#[derive(Debug)]
pub(crate) struct ResentRequest {
    bytes: BytesMut,
    kind: RequestKind,
}

impl ResentRequest {
    pub(crate) fn line(&self) -> Option<RequestLine> {
        RequestLine::read(&self.bytes)
    }

    pub(crate) fn send_on(self, leg: &mut Leg) {
        leg.age = Age::Used;
        leg.kind = self.kind;
        leg.responses.expect(self.kind);
        leg.outbox.push(&self.bytes);
    }
}
