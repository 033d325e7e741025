//! What is not waited for for ever.

use std::future::Future;
use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use tokio::time::Sleep;

use super::{Connection, RequestState};
use crate::http1::leg::Route;

/// What is waited for, and until when.
pub(super) type Patience = (Waiting, Pin<Box<Sleep>>);

/// What is waited for, and not for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waiting {
    Head,
    Body,
    Answer { sent: u64 },
}

impl Connection {
    /// Looks at the clock, where something is not waited for for ever.
    pub(super) fn poll_patience(&mut self, context: &mut Context<'_>) -> Option<Waiting> {
        let Some((waiting, patience)) = self.waiting() else {
            self.patience = None;
            return None;
        };
        if self
            .patience
            .as_ref()
            .is_none_or(|(known, _)| *known != waiting)
        {
            self.patience = Some((waiting, Box::pin(tokio::time::sleep(patience))));
        }
        let (_, sleep) = self.patience.as_mut()?;
        if sleep.as_mut().poll(context).is_pending() {
            return None;
        }
        self.patience = None;
        Some(waiting)
    }

    fn waiting(&self) -> Option<(Waiting, Duration)> {
        let settings = &self.way.port.settings;
        if let Some(leg) = &self.leg
            && leg.awaits_answer
            && let Route::Claim(held) = &leg.route
        {
            let within = held.answer_within(settings)?;
            return Some((Waiting::Answer { sent: self.sent }, within));
        }
        if !matches!(self.request, RequestState::Head) || self.client_has_ended {
            return None;
        }
        if self.scanner.is_complete() {
            Some((Waiting::Body, settings.body_within))
        } else if self.scanner.has_only_filler() {
            None
        } else {
            Some((Waiting::Head, settings.head_within))
        }
    }
}
