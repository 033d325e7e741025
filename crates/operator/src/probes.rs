//! For the kubelet and for Prometheus: whether the operator is alive, whether it is ready, and its numbers.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::TcpListener;

use crate::Shared;

/// Serves until the operator ends.
pub(crate) async fn serve(shared: Arc<Shared>, listener: TcpListener) {
    while let Ok((connection, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let answering = service_fn(move |request: Request<_>| {
                let answer = answer(&shared, request.uri().path());
                async { Ok::<_, Infallible>(answer) }
            });
            // A probe that goes away needs no answer.
            let _ = auto::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(connection), answering)
                .await;
        });
    }
}

fn answer(shared: &Shared, path: &str) -> Response<Full<Bytes>> {
    let (code, text) = match path {
        "/readyz" if shared.ending.is_cancelled() => {
            (StatusCode::SERVICE_UNAVAILABLE, "ending\n".to_owned())
        }
        "/healthz" | "/readyz" => (StatusCode::OK, "ok\n".to_owned()),
        "/metrics" => (StatusCode::OK, shared.metrics.text()),
        _ => (StatusCode::NOT_FOUND, "nothing is here\n".to_owned()),
    };
    let mut answer = Response::new(Full::new(Bytes::from(text)));
    *answer.status_mut() = code;
    answer
}
