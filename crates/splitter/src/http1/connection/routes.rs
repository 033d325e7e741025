//! Legs: opened, kept, changed for another when a place fails.

use std::sync::Arc;

use tokio::time::Instant;

use super::{Connection, RequestState};
use crate::claims::HeldClaim;
use crate::copy::Copy;
use crate::http1::leg::{Age, Leg, Route};
use crate::settings::{Notice, Reason, RequestLine, Settings};
use crate::stream::{Arrival, is_open_and_silent};

impl Connection {
    /// Takes the leg that the judged request needs. Says whether the connection goes on.
    pub(super) async fn switch(&mut self) -> bool {
        if let Some(leg) = self.leg.take()
            && leg.responses.may_be_reused()
        {
            self.parked.push(leg);
        }
        let RequestState::Judged { route, shape, .. } = &self.request else {
            return true;
        };
        let (mut route, is_idempotent) = (route.clone(), shape.is_idempotent);
        // A session may have failed since the request was judged.
        if matches!(&route, Route::Claim(held) if !held.is_well(Instant::now())) {
            route = Route::Original;
            self.send_to_original();
        }
        if let Some(leg) = self.take_parked(&route) {
            self.leg = Some(leg);
            return true;
        }
        if let Route::Claim(held) = &route {
            self.release_spare();
            match self.way.open_claim(held, &self.arrival).await {
                Ok(leg) => {
                    self.leg = Some(leg);
                    return true;
                }
                Err(reason) => {
                    let request = RequestLine::read(&self.input);
                    held.tell_of(Notice::FellBack { reason }, request);
                }
            }
            self.send_to_original();
            if let Some(leg) = self.take_parked(&Route::Original) {
                self.leg = Some(leg);
                return true;
            }
        }
        let opened = self
            .way
            .reuse_or_open_original(&self.arrival, is_idempotent);
        match opened.await {
            Ok(leg) => self.leg = Some(leg),
            Err(error) => tracing::debug!(%error, "the application cannot be reached"),
        }
        self.leg.is_some()
    }

    /// Sends a request that was not answered to the original application. Says whether the connection goes on.
    pub(super) async fn fall_back(&mut self, reason: Reason) -> bool {
        let Some(mut failed) = self.leg.take() else {
            return false;
        };
        let request = failed.take_request();
        if let Route::Claim(held) = &failed.route {
            held.suspend(Instant::now(), self.way.port.settings.pause_after_failure);
            match &request {
                Some(request) => held.tell_of(Notice::FellBack { reason }, request.line()),
                None => held.tell(Notice::Lost { reason }),
            }
        }
        let Some(request) = request else {
            return false;
        };
        match self.way.open_original(&self.arrival).await {
            Ok(mut leg) => {
                request.send_on(&mut leg);
                self.leg = Some(leg);
                true
            }
            Err(_) => false,
        }
    }

    fn send_to_original(&mut self) {
        if let RequestState::Judged { route, .. } = &mut self.request {
            *route = Route::Original;
        }
    }

    /// The other end has closed a leg on which nothing was going on. Without us the client would notice, so it does if it
    /// is the application's or was announced; otherwise a session's end is no matter.
    pub(super) fn drop_closed_leg(&mut self) -> bool {
        let is_noticed = self
            .leg
            .take()
            .is_some_and(|leg| leg.route.is_original() || !leg.responses.may_be_reused());
        let is_between_requests =
            self.input.is_empty() && matches!(self.request, RequestState::Head);
        !(is_noticed && is_between_requests)
    }

    fn take_parked(&mut self, route: &Route) -> Option<Leg> {
        let at = self.parked.iter().position(|leg| leg.route == *route)?;
        let mut leg = self.parked.swap_remove(at);
        is_open_and_silent(&mut leg.stream).then_some(leg)
    }

    /// A connection that was made before the first request, in case the application speaks first, may be what others
    /// wait for.
    fn release_spare(&mut self) {
        for leg in self
            .parked
            .extract_if(.., |leg| leg.age == Age::Fresh && leg.route.is_original())
        {
            self.way.keep(leg.stream);
        }
    }

    /// Keeps connections to the application for the next client.
    pub(super) fn keep_legs(&mut self) {
        let legs = self.leg.take().into_iter().chain(self.parked.drain(..));
        for mut leg in legs {
            if leg.route.is_original()
                && leg.responses.may_be_reused()
                && !leg.has_ended
                && !leg.write_failed
                && is_open_and_silent(&mut leg.stream)
            {
                self.way.keep(leg.stream);
            }
        }
    }
}

/// Copies of some of the requests, one for each session that wants some.
#[derive(Default)]
pub(super) struct RequestCopies {
    copies: Vec<(u64, Copy)>,
    /// Positions of those that want the current request.
    chosen: Vec<usize>,
}

impl RequestCopies {
    /// Chooses who gets a copy of the next request.
    pub(super) fn choose(
        &mut self,
        mirrors: &[Arc<HeldClaim>],
        arrival: &Arrival,
        settings: &Settings,
    ) {
        self.chosen.clear();
        for held in mirrors {
            let known = self
                .copies
                .iter()
                .position(|(identity, _)| *identity == held.identity);
            let position = known.unwrap_or_else(|| {
                let copy = Copy::start(held, arrival, settings);
                self.copies.push((held.identity, copy));
                self.copies.len() - 1
            });
            self.chosen.push(position);
        }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        for position in &self.chosen {
            if let Some((_, copy)) = self.copies.get_mut(*position) {
                copy.push(bytes);
            }
        }
    }
}
