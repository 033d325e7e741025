//! Selects the route of a request.

use std::sync::Arc;

use bytes::BytesMut;
use tokio::time::Instant;

use crate::claims::{ActiveClaim, RouteChoice, matching_mirrors, select_route};
use crate::filter::RequestView;
use crate::http1::body::Body;
use crate::http1::head::{Malformed, RequestShape, parse_request};
use crate::http1::upstream::Route;
use crate::port::Upstreams;

/// The route of a request whose head is complete.
pub(super) enum RouteDecision {
    Routed {
        route: Route,
        shape: RequestShape,
        /// Sessions that get a copy of the request.
        mirrors: Vec<Arc<ActiveClaim>>,
    },
    /// The route depends on the body, which is not complete.
    NeedsBody { expects_continue: bool },
}

/// A body as filters inspect it.
enum PeekedBody {
    Incomplete,
    Json(serde_json::Value),
    /// The body is not JSON, or too long to inspect.
    Opaque,
}

/// Selects the route of the request whose head ends at `end`. With `is_final` no further bytes are waited for.
pub(super) fn select_request_route(
    upstreams: &Upstreams,
    input: &[u8],
    end: usize,
    is_final: bool,
) -> Result<RouteDecision, Malformed> {
    parse_request(&input[..end], |head, shape| {
        let request = RequestView::http1(head);
        let claims = upstreams.port.claims.snapshot();
        let now = Instant::now();
        let choice = select_route(&claims, &upstreams.port.probes(), &request, None, now);
        let mirrors = matching_mirrors(&claims, &request, None);
        if let (Some(mirrors), Some(route)) = (mirrors, route(choice)) {
            return RouteDecision::Routed {
                route,
                shape,
                mirrors,
            };
        }
        let peeked = peek(
            shape.body.clone(),
            &input[end..],
            upstreams.port.settings.body_limit,
        );
        let body = match &peeked {
            PeekedBody::Incomplete if !is_final => {
                return RouteDecision::NeedsBody {
                    expects_continue: shape.expects_continue,
                };
            }
            PeekedBody::Json(body) => Some(body),
            PeekedBody::Incomplete | PeekedBody::Opaque => None,
        };
        let choice = select_route(&claims, &upstreams.port.probes(), &request, Some(body), now);
        RouteDecision::Routed {
            route: route(choice).unwrap_or(Route::Application),
            mirrors: matching_mirrors(&claims, &request, Some(body)).unwrap_or_default(),
            shape,
        }
    })
}

fn route(choice: RouteChoice) -> Option<Route> {
    match choice {
        RouteChoice::Application => Some(Route::Application),
        RouteChoice::Claim(active) => Some(Route::Claim(active)),
        RouteChoice::NeedsBody => None,
    }
}

fn peek(body: Option<Body>, bytes: &[u8], limit: usize) -> PeekedBody {
    let Some(mut body) = body else {
        return PeekedBody::Opaque;
    };
    if matches!(body, Body::Length(length) if length > limit as u64) {
        return PeekedBody::Opaque;
    }
    let mut content = BytesMut::new();
    let is_complete = match body.consume_into(bytes, &mut content) {
        Ok(consumed) => consumed.is_end,
        Err(_) => return PeekedBody::Opaque,
    };
    if !is_complete {
        return if bytes.len() < limit {
            PeekedBody::Incomplete
        } else {
            PeekedBody::Opaque
        };
    }
    match serde_json::from_slice(&content) {
        Ok(body) => PeekedBody::Json(body),
        Err(_) => PeekedBody::Opaque,
    }
}
