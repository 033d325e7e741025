//! Health endpoints for the kubelet. They have a listener of their own, so that no other load delays a probe.

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
    ending: CancellationToken,
    listener: TcpListener,
    admission: Admission,
) {
    let respond = move |path: &str| health(path, background.failure(), ending.is_cancelled());
    plain_http::serve(listener, admission, CONNECTION_TIMEOUT, respond).await;
}

fn health(path: &str, failure: Option<&TaskFailure>, is_ending: bool) -> (StatusCode, String) {
    match (path, failure) {
        ("/healthz" | "/readyz", Some(failure)) => {
            (StatusCode::SERVICE_UNAVAILABLE, format!("{failure}\n"))
        }
        ("/readyz", None) if is_ending => (
            StatusCode::SERVICE_UNAVAILABLE,
            "shutting down\n".to_owned(),
        ),
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
        for (path, failure, is_ending, code, text) in [
            ("/healthz", None, false, 200, "ok\n"),
            ("/readyz", None, false, 200, "ok\n"),
            ("/healthz", None, true, 200, "ok\n"),
            ("/readyz", None, true, 503, "shutting down\n"),
            ("/healthz", Some(&failure), true, 503, failed),
            ("/readyz", Some(&failure), true, 503, failed),
            ("/other", None, true, 404, "not found\n"),
        ] {
            let response = health(path, failure, is_ending);
            let response = (response.0.as_u16(), response.1.as_str());
            assert_eq!(response, (code, text), "{path}");
        }
    }
}
