//! One request and its response.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::ext::Protocol;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::request::Parts;
use http::{Request, Response, StatusCode, Version};
use tokio::time::{Instant, timeout};

use super::body::{Broken, RequestBody, forward, reason};
use super::connections::Http2Connections;
use super::mirror::StreamMirror;
use crate::claims::{ActiveClaim, RouteChoice, matching_mirrors, select_route};
use crate::filter::RequestView;
use crate::http1::upstream::Route;
use crate::settings::{FailureReason, Notice, RequestLine};

/// Why there is no response.
enum NoResponse {
    /// The client has cancelled the request.
    Cancelled,
    /// The upstream has reset the stream.
    Refused(Reason),
    /// The upstream has failed.
    Failed {
        why: FailureReason,
        may_have_been_processed: bool,
    },
}

/// Serves one stream of a client.
pub(super) async fn exchange(
    connections: Arc<Http2Connections>,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) {
    let (parts, body) = request.into_parts();
    let settings = &connections.upstreams.port.settings;
    let limit = settings.replay_limit.max(settings.body_limit);
    let (holder, in_flight) = (connections.holder(), &connections.requests);
    let mut body = RequestBody::new(body, limit, holder, in_flight);
    let selected = select_stream_route(&connections, &parts, &mut body, &mut respond).await;
    let (mut route, mirrors) = selected;
    let is_empty = body.is_empty();
    let mirrors = mirrors
        .iter()
        .filter_map(|active| StreamMirror::start(&connections, active, &parts, is_empty));
    body.mirror_to(mirrors.collect());
    let mut has_retried = false;
    loop {
        let attempt = attempt(&connections, &route, &parts, &mut body, &mut respond).await;
        let (why, may_have_been_processed) = match attempt {
            Ok(()) | Err(NoResponse::Cancelled) => return,
            Err(NoResponse::Refused(reason)) => return respond.send_reset(reason),
            Err(NoResponse::Failed {
                why,
                may_have_been_processed,
            }) => (why, may_have_been_processed),
        };
        connections.remove_route(&route);
        let can_replay = body.rewind();
        match &route {
            Route::Claim(active) => {
                active.suspend(Instant::now(), settings.failure_cooldown);
                let notice = if can_replay {
                    Notice::FellBack { reason: why }
                } else {
                    Notice::Lost { reason: why }
                };
                let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
                active.notify_request(notice, Some(RequestLine::new(parts.method.as_str(), path)));
                route = Route::Application;
            }
            Route::Application => {
                let is_safe = !may_have_been_processed || parts.method.is_idempotent();
                if has_retried || !is_safe {
                    return respond.send_reset(Reason::INTERNAL_ERROR);
                }
                has_retried = true;
            }
        }
        if !can_replay {
            return respond.send_reset(Reason::INTERNAL_ERROR);
        }
    }
}

/// Selects the route of a request, and the sessions that mirror it.
async fn select_stream_route(
    connections: &Http2Connections,
    parts: &Parts,
    body: &mut RequestBody,
    respond: &mut SendResponse<Bytes>,
) -> (Route, Vec<Arc<ActiveClaim>>) {
    let port = &connections.upstreams.port;
    let claims = port.claims.snapshot();
    let select = |body: Option<Option<&serde_json::Value>>| {
        let request = RequestView::http2(parts);
        (
            select_route(&claims, &port.probes(), &request, body, Instant::now()),
            matching_mirrors(&claims, &request, body),
        )
    };
    let (mut choice, mut mirrors) = select(None);
    if matches!(choice, RouteChoice::NeedsBody) || mirrors.is_none() {
        if expects_continue(parts) {
            let _ = respond.send_informational(continue_response());
        }
        let peeked = timeout(
            port.settings.body_timeout,
            body.peek(port.settings.body_limit),
        )
        .await;
        let content = peeked.ok().flatten();
        let body: Option<serde_json::Value> =
            content.and_then(|content| serde_json::from_slice(&content).ok());
        (choice, mirrors) = select(Some(body.as_ref()));
    }
    let route = match choice {
        RouteChoice::Claim(active) => Route::Claim(active),
        RouteChoice::Application | RouteChoice::NeedsBody => Route::Application,
    };
    (route, mirrors.unwrap_or_default())
}

/// Whether the client waits for `100 Continue` before it sends the body.
fn expects_continue(parts: &Parts) -> bool {
    parts
        .headers
        .get(http::header::EXPECT)
        .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

fn continue_response() -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::CONTINUE;
    response
}

/// Sends the request to one upstream, and forwards its response.
async fn attempt(
    connections: &Http2Connections,
    route: &Route,
    parts: &Parts,
    body: &mut RequestBody,
    respond: &mut SendResponse<Bytes>,
) -> Result<(), NoResponse> {
    let not_sent = |why| NoResponse::Failed {
        why,
        may_have_been_processed: false,
    };
    let mut connection = tokio::select! {
        biased;
        ready = connections.ready(route) => ready.map_err(not_sent)?,
        _ = poll_fn(|context| respond.poll_reset(context)) => return Err(NoResponse::Cancelled),
    };
    let is_empty = body.is_empty();
    let (response, mut to_upstream) = connection
        .send_request(clone_head(parts), is_empty)
        .map_err(|_| not_sent(FailureReason::Unreachable))?;
    let response_timeout = match route {
        Route::Claim(active) => active.response_timeout(&connections.upstreams.port.settings),
        Route::Application => None,
    };
    let progress = body.progress();
    let mut sending = pin!(async {
        if is_empty {
            Ok(())
        } else {
            body.send(&mut to_upstream).await
        }
    });
    let mut sent = None;
    let response = tokio::select! {
        biased;
        response = await_response(response, sending.as_mut(), &mut sent, respond, &progress) => response?,
        () = stalled_for(response_timeout, &progress) => {
            return Err(NoResponse::Failed { why: FailureReason::Timeout, may_have_been_processed: true });
        }
    };
    forward_response(connections, response, respond, sending, sent).await;
    Ok(())
}

/// Waits for the response head while the body is sent. Informational responses are forwarded.
async fn await_response(
    mut pending: ResponseFuture,
    mut sending: Pin<&mut impl Future<Output = Result<(), Broken>>>,
    sent: &mut Option<Result<(), Broken>>,
    respond: &mut SendResponse<Bytes>,
    progress: &AtomicU64,
) -> Result<Response<RecvStream>, NoResponse> {
    loop {
        tokio::select! {
            biased;
            event = poll_fn(|context| poll_response(&mut pending, context)) => match event {
                UpstreamEvent::Response(response) => return response.map_err(|error| no_response(&error)),
                UpstreamEvent::Informational(response) => {
                    progress.fetch_add(1, Ordering::Relaxed);
                    let _ = respond.send_informational(response);
                }
            },
            _ = poll_fn(|context| respond.poll_reset(context)) => return Err(NoResponse::Cancelled),
            result = sending.as_mut(), if sent.is_none() => {
                if matches!(result, Err(Broken::Sender(_))) {
                    return Err(NoResponse::Cancelled);
                }
                // An upstream that rejects the rest of a body sends a response or a reset.
                *sent = Some(result);
            }
        }
    }
}

/// What an upstream sends.
enum UpstreamEvent {
    /// An informational response such as "early hints".
    Informational(Response<()>),
    Response(Result<Response<RecvStream>, h2::Error>),
}

fn poll_response(pending: &mut ResponseFuture, context: &mut Context<'_>) -> Poll<UpstreamEvent> {
    if let Poll::Ready(Some(Ok(response))) = pending.poll_informational(context) {
        return Poll::Ready(UpstreamEvent::Informational(response));
    }
    Pin::new(pending).poll(context).map(UpstreamEvent::Response)
}

/// Forwards a response while the rest of the request is sent.
async fn forward_response(
    connections: &Http2Connections,
    response: Response<RecvStream>,
    respond: &mut SendResponse<Bytes>,
    mut sending: Pin<&mut impl Future<Output = Result<(), Broken>>>,
    mut sent: Option<Result<(), Broken>>,
) {
    let (head, mut body) = response.into_parts();
    let is_empty = body.is_end_stream();
    let Ok(mut to_client) = respond.send_response(Response::from_parts(head, ()), is_empty) else {
        return;
    };
    let mut receiving = pin!(async {
        if is_empty {
            Ok(())
        } else {
            let (holder, in_flight) = (connections.holder(), &connections.responses);
            forward(&mut body, &mut to_client, holder, in_flight).await
        }
    });
    let mut has_received = false;
    while !has_received || sent.is_none() {
        tokio::select! {
            biased;
            result = receiving.as_mut(), if !has_received => match result {
                Ok(()) => has_received = true,
                Err(Broken::Sender(reason)) => return respond.send_reset(reason),
                Err(Broken::Receiver(_)) => return,
            },
            result = sending.as_mut(), if sent.is_none() => sent = Some(result),
        }
    }
    if let Some(Err(Broken::Receiver(reason))) = sent {
        respond.send_reset(reason);
    }
}

/// Waits until nothing has been sent for this duration.
async fn stalled_for(duration: Option<Duration>, progress: &AtomicU64) {
    let Some(duration) = duration else {
        return std::future::pending().await;
    };
    loop {
        let before = progress.load(Ordering::Relaxed);
        tokio::time::sleep(duration).await;
        if progress.load(Ordering::Relaxed) == before {
            return;
        }
    }
}

fn no_response(error: &h2::Error) -> NoResponse {
    let reason = reason(error);
    if error.is_reset() && error.is_remote() && reason != Reason::REFUSED_STREAM {
        return NoResponse::Refused(reason);
    }
    NoResponse::Failed {
        why: FailureReason::NoResponse,
        may_have_been_processed: !matches!(reason, Reason::REFUSED_STREAM | Reason::NO_ERROR),
    }
}

/// Clones a request head for sending it.
pub(super) fn clone_head(parts: &Parts) -> Request<()> {
    let mut request = Request::new(());
    *request.method_mut() = parts.method.clone();
    *request.uri_mut() = parts.uri.clone();
    *request.headers_mut() = parts.headers.clone();
    // The protocol of an extended CONNECT, such as WebSocket.
    if let Some(protocol) = parts.extensions.get::<Protocol>() {
        request.extensions_mut().insert(protocol.clone());
    }
    // A request that has only a `host` header has no authority. h2 accepts that only for a version below HTTP/2.
    *request.version_mut() = if parts.uri.authority().is_some() {
        Version::HTTP_2
    } else {
        Version::HTTP_11
    };
    request
}
