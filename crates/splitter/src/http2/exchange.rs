//! One request and its answer.

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

use super::body::{Broken, Intake, pass_on, reason};
use super::copy::StreamCopy;
use super::upstream::Upstreams;
use crate::claims::{Choice, HeldClaim, choose, mirrors};
use crate::filter::RequestView;
use crate::http1::leg::Route;
use crate::settings::{Notice, Reason as Failure, RequestLine};

/// Why a place did not answer.
enum Unanswered {
    /// The client has gone.
    Cancelled,
    /// The place said so itself.
    Refused(Reason),
    /// The place failed. `may_have_acted` if it may have begun with what was asked.
    Failed { why: Failure, may_have_acted: bool },
}

/// Serves one stream of a client.
pub(super) async fn exchange(
    upstreams: Arc<Upstreams>,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) {
    let (parts, body) = request.into_parts();
    let settings = &upstreams.way.port.settings;
    let mut intake = Intake::new(body, settings.replay_limit.max(settings.body_limit));
    let chosen = choose_route(&upstreams, &parts, &mut intake, &mut respond).await;
    let (mut route, mirrors) = chosen;
    let is_empty = intake.is_empty();
    let copies = mirrors
        .iter()
        .filter_map(|held| StreamCopy::start(&upstreams, held, &parts, is_empty));
    intake.copy_to(copies.collect());
    let mut has_retried = false;
    loop {
        let attempt = attempt(&upstreams, &route, &parts, &mut intake, &mut respond).await;
        let (why, may_have_acted) = match attempt {
            Ok(()) | Err(Unanswered::Cancelled) => return,
            Err(Unanswered::Refused(reason)) => return respond.send_reset(reason),
            Err(Unanswered::Failed {
                why,
                may_have_acted,
            }) => (why, may_have_acted),
        };
        upstreams.forget_route(&route);
        let can_repeat = intake.rewind();
        match &route {
            Route::Claim(held) => {
                held.suspend(Instant::now(), settings.pause_after_failure);
                let notice = if can_repeat {
                    Notice::FellBack { reason: why }
                } else {
                    Notice::Lost { reason: why }
                };
                let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
                held.tell_of(notice, Some(RequestLine::new(parts.method.as_str(), path)));
                route = Route::Original;
            }
            Route::Original => {
                let is_safe = !may_have_acted || parts.method.is_idempotent();
                if has_retried || !is_safe {
                    return respond.send_reset(Reason::INTERNAL_ERROR);
                }
                has_retried = true;
            }
        }
        if !can_repeat {
            return respond.send_reset(Reason::INTERNAL_ERROR);
        }
    }
}

/// Where a request goes, and who gets a copy.
async fn choose_route(
    upstreams: &Upstreams,
    parts: &Parts,
    intake: &mut Intake,
    respond: &mut SendResponse<Bytes>,
) -> (Route, Vec<Arc<HeldClaim>>) {
    let port = &upstreams.way.port;
    let claims = port.claims.snapshot();
    let choose_with = |body: Option<Option<&serde_json::Value>>| {
        let request = RequestView::http2(parts);
        (
            choose(&claims, &port.probes(), &request, body, Instant::now()),
            mirrors(&claims, &request, body),
        )
    };
    let (mut choice, mut copied) = choose_with(None);
    if matches!(choice, Choice::NeedsBody) || copied.is_none() {
        if expects_continue(parts) {
            let _ = respond.send_informational(go_on());
        }
        let peeked = timeout(
            port.settings.body_within,
            intake.peek(port.settings.body_limit),
        )
        .await;
        let content = peeked.ok().flatten();
        let body: Option<serde_json::Value> =
            content.and_then(|content| serde_json::from_slice(&content).ok());
        (choice, copied) = choose_with(Some(body.as_ref()));
    }
    let route = match choice {
        Choice::Claim(held) => Route::Claim(held),
        Choice::Original | Choice::NeedsBody => Route::Original,
    };
    (route, copied.unwrap_or_default())
}

/// Whether a client sends its body only when it is told to.
fn expects_continue(parts: &Parts) -> bool {
    parts
        .headers
        .get(http::header::EXPECT)
        .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

fn go_on() -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::CONTINUE;
    response
}

/// Sends the request to one place, and passes its answer on if there is one.
async fn attempt(
    upstreams: &Upstreams,
    route: &Route,
    parts: &Parts,
    intake: &mut Intake,
    respond: &mut SendResponse<Bytes>,
) -> Result<(), Unanswered> {
    let not_sent = |why| Unanswered::Failed {
        why,
        may_have_acted: false,
    };
    let mut upstream = upstreams.ready(route).await.map_err(not_sent)?;
    let is_empty = intake.is_empty();
    let (answer, mut to_place) = upstream
        .send_request(copy_of(parts), is_empty)
        .map_err(|_| not_sent(Failure::Unreachable))?;
    let within = match route {
        Route::Claim(held) => held.answer_within(&upstreams.way.port.settings),
        Route::Original => None,
    };
    let progress = intake.progress();
    let mut sending = pin!(async {
        if is_empty {
            Ok(())
        } else {
            intake.send(&mut to_place).await
        }
    });
    let mut sent = None;
    let response = tokio::select! {
        biased;
        response = await_answer(answer, sending.as_mut(), &mut sent, respond, &progress) => response?,
        () = quiet_for(within, &progress) => {
            return Err(Unanswered::Failed { why: Failure::TooSlow, may_have_acted: true });
        }
    };
    pass_answer_on(response, respond, sending, sent).await;
    Ok(())
}

/// Waits for the head of the answer while the body is sent. What a place says before its answer is passed on.
async fn await_answer(
    mut answer: ResponseFuture,
    mut sending: Pin<&mut impl Future<Output = Result<(), Broken>>>,
    sent: &mut Option<Result<(), Broken>>,
    respond: &mut SendResponse<Bytes>,
    progress: &AtomicU64,
) -> Result<Response<RecvStream>, Unanswered> {
    loop {
        tokio::select! {
            biased;
            said = poll_fn(|context| poll_answer(&mut answer, context)) => match said {
                Said::Answer(response) => return response.map_err(|error| unanswered(&error)),
                Said::Before(response) => {
                    progress.fetch_add(1, Ordering::Relaxed);
                    let _ = respond.send_informational(response);
                }
            },
            _ = poll_fn(|context| respond.poll_reset(context)) => return Err(Unanswered::Cancelled),
            result = sending.as_mut(), if sent.is_none() => {
                if matches!(result, Err(Broken::Sender(_))) {
                    return Err(Unanswered::Cancelled);
                }
                // Whoever does not want the rest of a body has an answer, or a reason.
                *sent = Some(result);
            }
        }
    }
}

/// What a place says.
enum Said {
    /// Something like "early hints", before the answer.
    Before(Response<()>),
    Answer(Result<Response<RecvStream>, h2::Error>),
}

fn poll_answer(answer: &mut ResponseFuture, context: &mut Context<'_>) -> Poll<Said> {
    if let Poll::Ready(Some(Ok(response))) = answer.poll_informational(context) {
        return Poll::Ready(Said::Before(response));
    }
    Pin::new(answer).poll(context).map(Said::Answer)
}

/// Passes an answer on, while what is left of the request is sent.
async fn pass_answer_on(
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
            pass_on(&mut body, &mut to_client).await
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

/// Waits until nothing has been sent for so long.
async fn quiet_for(within: Option<Duration>, progress: &AtomicU64) {
    let Some(within) = within else {
        return std::future::pending().await;
    };
    loop {
        let before = progress.load(Ordering::Relaxed);
        tokio::time::sleep(within).await;
        if progress.load(Ordering::Relaxed) == before {
            return;
        }
    }
}

fn unanswered(error: &h2::Error) -> Unanswered {
    let given = reason(error);
    if error.is_reset() && error.is_remote() && given != Reason::REFUSED_STREAM {
        return Unanswered::Refused(given);
    }
    Unanswered::Failed {
        why: Failure::NoAnswer,
        may_have_acted: !matches!(given, Reason::REFUSED_STREAM | Reason::NO_ERROR),
    }
}

/// A request's head, to be sent once more.
pub(super) fn copy_of(parts: &Parts) -> Request<()> {
    let mut request = Request::new(());
    *request.method_mut() = parts.method.clone();
    *request.uri_mut() = parts.uri.clone();
    *request.headers_mut() = parts.headers.clone();
    // What a tunnel is asked for, such as a WebSocket.
    if let Some(protocol) = parts.extensions.get::<Protocol>() {
        request.extensions_mut().insert(protocol.clone());
    }
    // A request that names its host in a header only has no authority, which is allowed for those that look like older ones.
    *request.version_mut() = if parts.uri.authority().is_some() {
        Version::HTTP_2
    } else {
        Version::HTTP_11
    };
    request
}
