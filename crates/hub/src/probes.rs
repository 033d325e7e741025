//! Health endpoints for the kubelet. They have a listener of their own, so that no other load delays a probe.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use admission::{Admission, Limits};
use http::StatusCode;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::background::{Background, TaskFailure};
use crate::plain_http;

/// The permits of connections. No connection waits for one.
pub(crate) const LIMITS: Limits = Limits {
    total: 256,
    per_source: 64,
};
/// How long a connection may last. The kubelet sends its request at once.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves until the hub exits.
pub(crate) async fn serve(
    background: Background,
    is_ready: Arc<AtomicBool>,
    ending: CancellationToken,
    listener: TcpListener,
    admission: Admission,
) {
    let respond = move |path: &str| {
        let state = match (ending.is_cancelled(), is_ready.load(Ordering::Acquire)) {
            (true, _) => State::Ending,
            (false, true) => State::Ready,
            (false, false) => State::Starting,
        };
        health(path, background.failure(), state)
    };
    plain_http::serve(listener, admission, CONNECTION_TIMEOUT, respond).await;
}

/// Whether new agents and clients may be sent to this replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It does not know the clusters yet.
    Starting,
    Ready,
    Ending,
}

fn health(path: &str, failure: Option<&TaskFailure>, state: State) -> (StatusCode, String) {
    let unavailable = |text: &str| (StatusCode::SERVICE_UNAVAILABLE, text.to_owned());
    match (path, failure) {
        ("/healthz" | "/readyz", Some(failure)) => {
            (StatusCode::SERVICE_UNAVAILABLE, format!("{failure}\n"))
        }
        ("/readyz", None) if state == State::Starting => unavailable("starting\n"),
        ("/readyz", None) if state == State::Ending => unavailable("shutting down\n"),
        ("/healthz" | "/readyz", None) => (StatusCode::OK, "ok\n".to_owned()),
        _ => (StatusCode::NOT_FOUND, "not found\n".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_with_a_failed_task_is_neither_healthy_nor_ready() {
        let failure = TaskFailure {
            task: "registry",
            reason: "has ended unexpectedly".to_owned(),
        };
        let failed = "the task `registry` has ended unexpectedly\n";
        for (path, failure, state, code, text) in [
            ("/healthz", None, State::Starting, 200, "ok\n"),
            ("/readyz", None, State::Starting, 503, "starting\n"),
            ("/readyz", None, State::Ready, 200, "ok\n"),
            ("/healthz", None, State::Ending, 200, "ok\n"),
            ("/readyz", None, State::Ending, 503, "shutting down\n"),
            ("/healthz", Some(&failure), State::Ending, 503, failed),
            ("/readyz", Some(&failure), State::Ready, 503, failed),
            ("/other", None, State::Ready, 404, "not found\n"),
        ] {
            let response = health(path, failure, state);
            let response = (response.0.as_u16(), response.1.as_str());
            assert_eq!(response, (code, text), "{path}");
        }
    }
}
