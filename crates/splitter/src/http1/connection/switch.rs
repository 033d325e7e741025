//! Switches between upstream connections: opens, parks and replaces them when an upstream fails.

use std::sync::Arc;

use tokio::time::Instant;

use super::{Connection, RequestState};
use crate::claims::ActiveClaim;
use crate::http1::upstream::{Age, Route, UpstreamConnection};
use crate::mirror::Mirror;
use crate::settings::{FailureReason, Notice, RequestLine, Settings};
use crate::stream::{ConnectionMeta, is_idle_and_open};

impl Connection {
    /// Switches to the upstream connection of the next request. Returns whether the client's connection continues.
    pub(super) async fn switch(&mut self) -> bool {
        if let Some(upstream) = self.upstream.take()
            && upstream.responses.may_be_reused()
        {
            self.parked.push(upstream);
        }
        let RequestState::Routed { route, shape, .. } = &self.request else {
            return true;
        };
        let (mut route, is_idempotent) = (route.clone(), shape.is_idempotent);
        // A session may have failed since the route was selected.
        if matches!(&route, Route::Claim(active) if !active.is_healthy(Instant::now())) {
            route = Route::Application;
            self.route_to_application();
        }
        if let Some(upstream) = self.take_parked(&route) {
            self.upstream = Some(upstream);
            return true;
        }
        if let Route::Claim(active) = &route {
            self.pool_spare();
            match self.upstreams.open_claim(active, &self.meta).await {
                Ok(upstream) => {
                    self.upstream = Some(upstream);
                    return true;
                }
                Err(reason) => {
                    let request = RequestLine::parse(&self.input);
                    active.notify_request(Notice::FellBack { reason }, request);
                }
            }
            self.route_to_application();
            if let Some(upstream) = self.take_parked(&Route::Application) {
                self.upstream = Some(upstream);
                return true;
            }
        }
        let opened = self
            .upstreams
            .reuse_or_open_application(&self.meta, is_idempotent);
        match opened.await {
            Ok(upstream) => self.upstream = Some(upstream),
            Err(error) => tracing::debug!(%error, "application unreachable"),
        }
        self.upstream.is_some()
    }

    /// Replays a request without a response to the original application. Returns whether the client's connection continues.
    pub(super) async fn fall_back(&mut self, reason: FailureReason) -> bool {
        let Some(mut failed) = self.upstream.take() else {
            return false;
        };
        let request = failed.take_request();
        if let Route::Claim(active) = &failed.route {
            active.suspend(
                Instant::now(),
                self.upstreams.port.settings.failure_cooldown,
            );
            match &request {
                Some(request) => active.notify_request(Notice::FellBack { reason }, request.line()),
                None => active.notify(Notice::Lost { reason }),
            }
        }
        let Some(request) = request else {
            return false;
        };
        match self.upstreams.open_application(&self.meta).await {
            Ok(mut upstream) => {
                request.send_on(&mut upstream);
                self.upstream = Some(upstream);
                true
            }
            Err(_) => false,
        }
    }

    fn route_to_application(&mut self) {
        if let RequestState::Routed { route, .. } = &mut self.request {
            *route = Route::Application;
        }
    }

    /// Handles an idle upstream connection that was closed by the upstream. Without the proxy the client would see the end
    /// of the application's connection, or one that was announced with `Connection: close`, so the client's connection ends
    /// too. The end of a session's connection is not visible to the client. Returns whether the client's connection
    /// continues.
    pub(super) fn drop_closed_upstream(&mut self) -> bool {
        let is_visible = self.upstream.take().is_some_and(|upstream| {
            upstream.route.is_application() || !upstream.responses.may_be_reused()
        });
        let is_between_requests =
            self.input.is_empty() && matches!(self.request, RequestState::Head);
        !(is_visible && is_between_requests)
    }

    fn take_parked(&mut self, route: &Route) -> Option<UpstreamConnection> {
        let at = self
            .parked
            .iter()
            .position(|upstream| upstream.route == *route)?;
        let mut upstream = self.parked.swap_remove(at);
        is_idle_and_open(&mut upstream.stream).then_some(upstream)
    }

    /// Returns unused connections to the pool: one is opened before the first request in case the application speaks
    /// first, and other clients may need it.
    fn pool_spare(&mut self) {
        for upstream in self.parked.extract_if(.., |upstream| {
            upstream.age == Age::Fresh && upstream.route.is_application()
        }) {
            self.upstreams.return_to_pool(upstream.stream);
        }
    }

    /// Returns reusable connections to the application to the pool.
    pub(super) fn pool_connections(&mut self) {
        let connections = self
            .upstream
            .take()
            .into_iter()
            .chain(self.parked.drain(..));
        for mut upstream in connections {
            if upstream.route.is_application()
                && upstream.responses.may_be_reused()
                && !upstream.write_ended
                && !upstream.write_failed
                && is_idle_and_open(&mut upstream.stream)
            {
                self.upstreams.return_to_pool(upstream.stream);
            }
        }
    }
}

/// Mirrors of some of the requests, one for each session with matching requests.
#[derive(Default)]
pub(super) struct RequestMirrors {
    mirrors: Vec<(u64, Mirror)>,
    /// Indices of the mirrors that get the current request.
    selected: Vec<usize>,
}

impl RequestMirrors {
    /// Selects the sessions that get a copy of the next request.
    pub(super) fn select(
        &mut self,
        mirrors: &[Arc<ActiveClaim>],
        meta: &ConnectionMeta,
        settings: &Settings,
    ) {
        self.selected.clear();
        for active in mirrors {
            let existing = self.mirrors.iter().position(|(id, _)| *id == active.id);
            let position = existing.unwrap_or_else(|| {
                let mirror = Mirror::start(active, meta, settings);
                self.mirrors.push((active.id, mirror));
                self.mirrors.len() - 1
            });
            self.selected.push(position);
        }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        for position in &self.selected {
            if let Some((_, mirror)) = self.mirrors.get_mut(*position) {
                mirror.push(bytes);
            }
        }
    }
}
