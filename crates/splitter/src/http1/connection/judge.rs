//! Where a request goes.

use std::sync::Arc;

use bytes::BytesMut;
use tokio::time::Instant;

use crate::claims::{Choice, HeldClaim, choose, mirrors};
use crate::filter::RequestView;
use crate::http1::body::Body;
use crate::http1::head::{Malformed, RequestShape, read_request};
use crate::http1::leg::Route;
use crate::port::Way;

/// What is known of a request whose head is complete.
pub(super) enum Judging {
    Done {
        route: Route,
        shape: RequestShape,
        /// Sessions that get a copy.
        mirrors: Vec<Arc<HeldClaim>>,
    },
    /// The body decides, and is not there.
    NeedsBody { expects_continue: bool },
}

/// What is known of a body.
enum Peeked {
    Incomplete,
    Json(serde_json::Value),
    /// It is no JSON, or too long to look at.
    Unknown,
}

/// Judges the request whose head ends at `end`. `is_last_word` says that nothing more is waited for.
pub(super) fn judge(
    way: &Way,
    input: &[u8],
    end: usize,
    is_last_word: bool,
) -> Result<Judging, Malformed> {
    read_request(&input[..end], |head, shape| {
        let request = RequestView::http1(head);
        let claims = way.port.claims.snapshot();
        let now = Instant::now();
        let choice = choose(&claims, &way.port.probes(), &request, None, now);
        let known = mirrors(&claims, &request, None);
        if let (Some(mirrors), Some(route)) = (known, route(choice)) {
            return Judging::Done {
                route,
                shape,
                mirrors,
            };
        }
        let peeked = peek(
            shape.body.clone(),
            &input[end..],
            way.port.settings.body_limit,
        );
        let body = match &peeked {
            Peeked::Incomplete if !is_last_word => {
                return Judging::NeedsBody {
                    expects_continue: shape.expects_continue,
                };
            }
            Peeked::Json(body) => Some(body),
            Peeked::Incomplete | Peeked::Unknown => None,
        };
        let choice = choose(&claims, &way.port.probes(), &request, Some(body), now);
        Judging::Done {
            route: route(choice).unwrap_or(Route::Original),
            mirrors: mirrors(&claims, &request, Some(body)).unwrap_or_default(),
            shape,
        }
    })
}

fn route(choice: Choice) -> Option<Route> {
    match choice {
        Choice::Original => Some(Route::Original),
        Choice::Claim(held) => Some(Route::Claim(held)),
        Choice::NeedsBody => None,
    }
}

fn peek(body: Option<Body>, bytes: &[u8], limit: usize) -> Peeked {
    let Some(mut body) = body else {
        return Peeked::Unknown;
    };
    if matches!(body, Body::Length(length) if length > limit as u64) {
        return Peeked::Unknown;
    }
    let mut content = BytesMut::new();
    let is_complete = match body.consume_into(bytes, &mut content) {
        Ok(consumed) => consumed.is_end,
        Err(_) => return Peeked::Unknown,
    };
    if !is_complete {
        return if bytes.len() < limit {
            Peeked::Incomplete
        } else {
            Peeked::Unknown
        };
    }
    match serde_json::from_slice(&content) {
        Ok(body) => Peeked::Json(body),
        Err(_) => Peeked::Unknown,
    }
}
