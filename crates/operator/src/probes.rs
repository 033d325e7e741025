//! For the kubelet and for Prometheus: whether the operator is alive, whether it is ready, and its numbers. Everybody in the
//! cluster can come here, so nobody gets much of it.

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
use crate::background::Failure;

/// Before the next connection is accepted, when one could not be.
const PAUSE: Duration = Duration::from_millis(100);
/// How long somebody may take to ask, and how long a connection may last.
const HEAD_PATIENCE: Duration = Duration::from_secs(5);
const LIFE: Duration = Duration::from_secs(120);
/// Connections at the same time. The next one waits.
const AT_ONCE: usize = 32;

/// Where connections come from.
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

/// Serves until the operator ends.
pub(crate) async fn serve(shared: Arc<Shared>, listener: TcpListener) {
    serve_with(listener, move |path| answer(&shared, path)).await;
}

async fn serve_with<A>(listener: impl Accept, answer: A)
where
    A: Fn(&str) -> (StatusCode, String) + Clone + Send + Sync + 'static,
{
    let places = Arc::new(Semaphore::new(AT_ONCE));
    // Nobody closes it.
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        let Ok(connection) = listener.accept().await else {
            // No descriptor is left, or the client is gone already. Both pass.
            sleep(PAUSE).await;
            continue;
        };
        let answer = answer.clone();
        tokio::spawn(async move {
            let answering = service_fn(move |request: Request<_>| {
                let (code, text) = answer(request.uri().path());
                let mut answer = Response::new(Full::new(Bytes::from(text)));
                *answer.status_mut() = code;
                async { Ok::<_, Infallible>(answer) }
            });
            let serving = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_PATIENCE)
                .serve_connection(TokioIo::new(connection), answering);
            // A probe that goes away needs no answer.
            let _ = timeout(LIFE, serving).await;
            drop(place);
        });
    }
}

fn answer(shared: &Shared, path: &str) -> (StatusCode, String) {
    match path {
        "/metrics" => (StatusCode::OK, shared.metrics.text()),
        _ => health(
            path,
            shared.background.failure(),
            shared.ending.is_cancelled(),
        ),
    }
}

fn health(path: &str, failure: Option<&Failure>, is_ending: bool) -> (StatusCode, String) {
    match (path, failure) {
        ("/healthz" | "/readyz", Some(failure)) => {
            (StatusCode::SERVICE_UNAVAILABLE, format!("{failure}\n"))
        }
        ("/readyz", None) if is_ending => (StatusCode::SERVICE_UNAVAILABLE, "ending\n".to_owned()),
        ("/healthz" | "/readyz", None) => (StatusCode::OK, "ok\n".to_owned()),
        _ => (StatusCode::NOT_FOUND, "nothing is here\n".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[test]
    fn a_replica_without_one_of_its_tasks_is_neither_healthy_nor_ready() {
        let failure = Failure {
            task: "trust",
            why: "has ended by itself".to_owned(),
        };
        let failed = "the task `trust` has ended by itself\n";
        for (path, failure, is_ending, code, text) in [
            ("/healthz", None, false, 200, "ok\n"),
            ("/readyz", None, false, 200, "ok\n"),
            ("/healthz", None, true, 200, "ok\n"),
            ("/readyz", None, true, 503, "ending\n"),
            ("/healthz", Some(&failure), true, 503, failed),
            ("/readyz", Some(&failure), true, 503, failed),
            ("/other", Some(&failure), true, 404, "nothing is here\n"),
        ] {
            let answered = health(path, failure, is_ending);
            assert_eq!(
                (answered.0.as_u16(), answered.1.as_str()),
                (code, text),
                "{path}"
            );
        }
    }

    /// Fails once, as when no descriptor is left.
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

    async fn asked(address: std::net::SocketAddr) -> String {
        let mut connection = TcpStream::connect(address).await.unwrap();
        let request = b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        connection.write_all(request).await.unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn a_connection_that_fails_is_not_the_last() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let listener = FailsFirst {
            listener,
            has_failed: AtomicBool::new(false),
        };
        let healthy = |_: &str| (StatusCode::OK, "ok\n".to_owned());
        let serving = tokio::spawn(async move { serve_with(listener, healthy).await });
        assert!(asked(address).await.ends_with("ok\n"));
        serving.abort();
    }

    #[tokio::test]
    async fn those_who_say_nothing_do_not_keep_others_out() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let healthy = |_: &str| (StatusCode::OK, "ok\n".to_owned());
        let serving = tokio::spawn(async move { serve_with(listener, healthy).await });
        let mut silent = Vec::new();
        for _ in 0..AT_ONCE {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        // Answered when the silent ones have been sent away.
        assert!(asked(address).await.ends_with("ok\n"));
        serving.abort();
    }
}
