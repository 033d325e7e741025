//! Health endpoints for the kubelet and metrics for Prometheus. Every client in the cluster can connect, so connections are
//! limited in number and time.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::Shared;
use crate::background::TaskFailure;

/// The delay after a failed `accept`.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(120);
/// The limit of concurrent connections. The next one waits.
const MAX_CONNECTIONS: usize = 32;

/// A source of connections.
pub(crate) trait Accept {
    async fn accept(&self) -> io::Result<TcpStream>;
}

impl Accept for TcpListener {
    async fn accept(&self) -> io::Result<TcpStream> {
        TcpListener::accept(self)
            .await
            .map(|(connection, _)| connection)
    }
}

/// Serves until the operator exits.
pub(crate) async fn serve(shared: Arc<Shared>, listener: TcpListener) {
    serve_with(listener, move |path| respond(&shared, path)).await;
}

async fn serve_with<R>(listener: impl Accept, respond: R)
where
    R: Fn(&str) -> (StatusCode, String) + Clone + Send + Sync + 'static,
{
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    // The semaphore is never closed.
    while let Ok(permit) = Arc::clone(&permits).acquire_owned().await {
        let Ok(connection) = listener.accept().await else {
            // No file descriptor is left, or the client has disconnected already. Both are temporary.
            sleep(ACCEPT_RETRY_DELAY).await;
            continue;
        };
        let respond = respond.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request: Request<_>| {
                let (code, text) = respond(request.uri().path());
                let mut response = Response::new(Full::new(Bytes::from(text)));
                *response.status_mut() = code;
                async { Ok::<_, Infallible>(response) }
            });
            let serving = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_READ_TIMEOUT)
                .serve_connection(TokioIo::new(connection), service);
            // A probe that disconnects needs no response.
            let _ = timeout(CONNECTION_TIMEOUT, serving).await;
            drop(permit);
        });
    }
}

fn respond(shared: &Shared, path: &str) -> (StatusCode, String) {
    match path {
        "/metrics" => (StatusCode::OK, shared.metrics.text()),
        _ => health(
            path,
            shared.background.failure(),
            shared.ending.is_cancelled(),
        ),
    }
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
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[test]
    fn a_replica_with_a_failed_task_is_neither_healthy_nor_ready() {
        let failure = TaskFailure {
            task: "trust",
            reason: "has ended unexpectedly".to_owned(),
        };
        let failed = "the task `trust` has ended unexpectedly\n";
        for (path, failure, is_ending, code, text) in [
            ("/healthz", None, false, 200, "ok\n"),
            ("/readyz", None, false, 200, "ok\n"),
            ("/healthz", None, true, 200, "ok\n"),
            ("/readyz", None, true, 503, "shutting down\n"),
            ("/healthz", Some(&failure), true, 503, failed),
            ("/readyz", Some(&failure), true, 503, failed),
            ("/other", Some(&failure), true, 404, "not found\n"),
        ] {
            let response = health(path, failure, is_ending);
            assert_eq!(
                (response.0.as_u16(), response.1.as_str()),
                (code, text),
                "{path}"
            );
        }
    }

    /// A listener whose first `accept` fails, as when no file descriptor is left.
    struct FailsFirst {
        listener: TcpListener,
        has_failed: AtomicBool,
    }

    impl Accept for FailsFirst {
        async fn accept(&self) -> io::Result<TcpStream> {
            if !self.has_failed.swap(true, Ordering::AcqRel) {
                return Err(io::ErrorKind::Other.into());
            }
            Accept::accept(&self.listener).await
        }
    }

    async fn get_healthz(address: std::net::SocketAddr) -> String {
        let mut connection = TcpStream::connect(address).await.unwrap();
        let request = b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        connection.write_all(request).await.unwrap();
        let mut response = String::new();
        connection.read_to_string(&mut response).await.unwrap();
        response
    }

    #[tokio::test]
    async fn accepting_continues_after_a_failure() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let listener = FailsFirst {
            listener,
            has_failed: AtomicBool::new(false),
        };
        let healthy = |_: &str| (StatusCode::OK, "ok\n".to_owned());
        let serving = tokio::spawn(async move { serve_with(listener, healthy).await });
        assert!(get_healthz(address).await.ends_with("ok\n"));
        serving.abort();
    }

    #[tokio::test]
    async fn silent_clients_do_not_block_others() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let healthy = |_: &str| (StatusCode::OK, "ok\n".to_owned());
        let serving = tokio::spawn(async move { serve_with(listener, healthy).await });
        let mut silent = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        // Served once the silent connections have timed out.
        assert!(get_healthz(address).await.ends_with("ok\n"));
        serving.abort();
    }
}
