//! Health endpoints for the kubelet. An agent is ready while it has a tunnel, so `helm install --wait` waits for it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use admission::{Admission, Limits, accept};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

use crate::condition::Condition;

/// The permits of connections. No connection waits for one.
const LIMITS: Limits = Limits {
    total: 64,
    per_source: 32,
};
/// How long a connection may last. The kubelet sends its request at once.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves until it is dropped. Each connection gets one response.
pub(crate) async fn serve(listener: TcpListener, condition: Arc<Condition>) {
    let admission = Admission::new(LIMITS);
    loop {
        let (connection, peer) = accept(&listener).await;
        let mut permit = admission.admit(peer);
        let condition = Arc::clone(&condition);
        tokio::spawn(async move {
            let serving = serve_connection(connection, &condition);
            // A client that disconnects or is too slow needs no response.
            let _ = permit.run(CONNECTION_TIMEOUT, serving).await;
        });
    }
}

async fn serve_connection(connection: TcpStream, condition: &Condition) -> hyper::Result<()> {
    let service = service_fn(|request: Request<_>| {
        let (status, text) = respond(request.uri().path(), condition);
        let mut response = Response::new(Full::new(Bytes::from(text)));
        *response.status_mut() = status;
        async { Ok::<_, Infallible>(response) }
    });
    http1::Builder::new()
        .keep_alive(false)
        .serve_connection(TokioIo::new(connection), service)
        .await
}

/// The response to a probe. The kubelet shows its text in the events of the pod.
fn respond(path: &str, condition: &Condition) -> (StatusCode, String) {
    match (path, condition.problem()) {
        ("/healthz", _) | ("/readyz", None) => (StatusCode::OK, "ok\n".to_owned()),
        ("/readyz", Some(problem)) => (StatusCode::SERVICE_UNAVAILABLE, format!("{problem}\n")),
        _ => (StatusCode::NOT_FOUND, "not found\n".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_without_a_tunnel_is_healthy_and_not_ready() {
        let condition = Condition::default();
        let check = |path: &str, code: u16, text: &str| {
            let (status, body) = respond(path, &condition);
            assert_eq!((status.as_u16(), body.trim_end()), (code, text), "{path}");
        };
        check("/healthz", 200, "ok");
        check("/readyz", 503, "starting");
        condition.set_problem("the hub is not reachable");
        check("/readyz", 503, "the hub is not reachable");
        condition.set_connected();
        check("/readyz", 200, "ok");
        check("/other", 404, "not found");
    }
}
