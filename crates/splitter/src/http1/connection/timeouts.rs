//! Timeouts of a client's connection.

use std::future::Future;
use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use tokio::time::Sleep;

use super::{Connection, RequestState};
use crate::http1::upstream::Route;

/// A running timeout.
pub(super) type PendingTimeout = (TimeoutKind, Pin<Box<Sleep>>);

/// What a timeout applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TimeoutKind {
    Head,
    Body,
    Response { sent: u64 },
}

impl Connection {
    /// Polls the current timeout, and returns what timed out.
    pub(super) fn poll_timeout(&mut self, context: &mut Context<'_>) -> Option<TimeoutKind> {
        let Some((kind, duration)) = self.timeout_kind() else {
            self.timeout = None;
            return None;
        };
        if self
            .timeout
            .as_ref()
            .is_none_or(|(current, _)| *current != kind)
        {
            self.timeout = Some((kind, Box::pin(tokio::time::sleep(duration))));
        }
        let (_, sleep) = self.timeout.as_mut()?;
        if sleep.as_mut().poll(context).is_pending() {
            return None;
        }
        self.timeout = None;
        Some(kind)
    }

    fn timeout_kind(&self) -> Option<(TimeoutKind, Duration)> {
        let settings = &self.upstreams.port.settings;
        if let Some(upstream) = &self.upstream
            && upstream.awaits_response
            && let Route::Claim(active) = &upstream.route
        {
            let duration = active.response_timeout(settings)?;
            return Some((TimeoutKind::Response { sent: self.sent }, duration));
        }
        if !matches!(self.request, RequestState::Head) || self.client_has_ended {
            return None;
        }
        if self.scanner.is_complete() {
            Some((TimeoutKind::Body, settings.body_timeout))
        } else if self.scanner.has_only_empty_lines() {
            None
        } else {
            Some((TimeoutKind::Head, settings.head_timeout))
        }
    }
}
