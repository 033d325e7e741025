//! A client's connection to one upstream.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;

use bytes::BytesMut;
use tokio::io::AsyncWrite;

use super::head::{RequestKind, RequestShape};
use super::response::ResponseTracker;
use crate::claims::ActiveClaim;
use crate::settings::RequestLine;
use crate::stream::{BoxStream, WriteBuffer};

/// The upstream of a request.
#[derive(Debug, Clone)]
pub(crate) enum Route {
    Application,
    Claim(Arc<ActiveClaim>),
}

impl Route {
    pub(crate) fn is_application(&self) -> bool {
        matches!(self, Self::Application)
    }
}

impl PartialEq for Route {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Application, Self::Application) => true,
            (Self::Claim(one), Self::Claim(other)) => one.id == other.id,
            _ => false,
        }
    }
}

/// Whether a connection has been used before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Age {
    /// Nothing has been sent on it.
    Fresh,
    /// The connection has been used before, so the upstream may close it at any time.
    Used,
}

/// A client's connection to one upstream.
pub(crate) struct UpstreamConnection {
    pub(crate) route: Route,
    pub(crate) stream: BoxStream,
    pub(crate) age: Age,
    /// Bytes that wait to be written to the upstream.
    pub(crate) write_buffer: WriteBuffer,
    pub(crate) responses: ResponseTracker,
    /// The bytes of the request that have been sent, for as long as it may have to be replayed to another upstream.
    replay: Option<BytesMut>,
    /// A request has been sent whose response has not started.
    pub(crate) awaits_response: bool,
    /// The kind of the last request.
    kind: RequestKind,
    /// The upstream accepts no more bytes.
    pub(crate) write_failed: bool,
    /// The write direction has been shut down.
    pub(crate) write_ended: bool,
}

impl UpstreamConnection {
    pub(crate) fn new(route: Route, stream: BoxStream, age: Age) -> Self {
        Self {
            route,
            stream,
            age,
            write_buffer: WriteBuffer::default(),
            responses: ResponseTracker::default(),
            replay: None,
            awaits_response: false,
            kind: RequestKind::Ordinary,
            write_failed: false,
            write_ended: false,
        }
    }

    /// Whether a request for this route can be sent now. Requests to sessions are not pipelined, so that each of them can
    /// be replayed if the session fails. Requests to the application are pipelined as the client sends them.
    pub(crate) fn can_start(&self, route: &Route) -> bool {
        self.route == *route
            && !self.write_failed
            && !self.write_ended
            && self.responses.passthrough().is_none()
            && (route.is_application() || self.responses.is_idle())
    }

    /// Prepares for sending a request.
    pub(crate) fn start(&mut self, shape: &RequestShape) {
        let is_first = self.responses.is_idle();
        self.responses.expect(shape.kind);
        self.kind = shape.kind;
        if shape.binds_connection {
            self.responses.never_reuse();
        }
        let may_need_replay = match self.route {
            Route::Claim(_) => true,
            Route::Application => is_first && self.age == Age::Used && shape.is_idempotent,
        };
        self.replay = may_need_replay.then(BytesMut::new);
        self.awaits_response = true;
        self.age = Age::Used;
    }

    /// Sends bytes of the current request.
    pub(crate) fn send(&mut self, context: &mut Context<'_>, bytes: &[u8], limit: usize) {
        if let Some(replay) = &mut self.replay {
            if replay.len() + bytes.len() > limit {
                self.replay = None;
            } else {
                replay.extend_from_slice(bytes);
            }
        }
        if !self.write_failed
            && self
                .write_buffer
                .write(&mut self.stream, context, bytes)
                .is_err()
        {
            self.stop_writing();
        }
    }

    /// The size of the buffers.
    pub(crate) fn buffered(&self) -> usize {
        let replay = self.replay.as_ref().map_or(0, BytesMut::capacity);
        self.write_buffer.capacity() + replay + self.responses.buffered()
    }

    /// Shuts the write direction down.
    pub(crate) fn end(&mut self, context: &mut Context<'_>) {
        if !self.write_ended && Pin::new(&mut self.stream).poll_shutdown(context).is_ready() {
            self.write_ended = true;
        }
    }

    pub(crate) fn stop_writing(&mut self) {
        self.write_failed = true;
        self.write_buffer = WriteBuffer::default();
    }

    /// The response has started: the request cannot be replayed any more.
    pub(crate) fn response_started(&mut self) {
        self.replay = None;
        self.awaits_response = false;
    }

    /// Whether a missing response can be handled: the request can be replayed, or the session is notified.
    pub(crate) fn handles_no_response(&self) -> bool {
        self.awaits_response && (self.replay.is_some() || !self.route.is_application())
    }

    /// Takes the request without a response. `None` if it exceeded the replay limit.
    pub(crate) fn take_request(&mut self) -> Option<ReplayRequest> {
        self.replay.take().map(|bytes| ReplayRequest {
            bytes,
            kind: self.kind,
        })
    }
}

/// A request that is replayed to another upstream.
#[derive(Debug)]
pub(crate) struct ReplayRequest {
    bytes: BytesMut,
    kind: RequestKind,
}

impl ReplayRequest {
    pub(crate) fn line(&self) -> Option<RequestLine> {
        RequestLine::parse(&self.bytes)
    }

    pub(crate) fn send_on(self, upstream: &mut UpstreamConnection) {
        upstream.age = Age::Used;
        upstream.kind = self.kind;
        upstream.responses.expect(self.kind);
        upstream.write_buffer.push(&self.bytes);
    }
}
