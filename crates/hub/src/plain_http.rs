//! Plain HTTP for the kubelet and Prometheus, who do not authenticate: every client in the cluster can connect. So each
//! connection gets one response and a short time for it.

use std::convert::Infallible;
use std::time::Duration;

use admission::{Admission, accept};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

/// Serves until the hub exits. `respond` gets the path of the request.
pub(crate) async fn serve<R>(
    listener: TcpListener,
    admission: Admission,
    connection_timeout: Duration,
    respond: R,
) where
    R: Fn(&str) -> (StatusCode, String) + Clone + Send + Sync + 'static,
{
    loop {
        let (connection, peer) = accept(&listener).await;
        let mut permit = admission.admit(peer);
        let respond = respond.clone();
        tokio::spawn(async move {
            let serving = serve_connection(connection, respond);
            // A client that disconnects or is too slow needs no response.
            let _ = permit.run(connection_timeout, serving).await;
        });
    }
}

async fn serve_connection<R>(connection: TcpStream, respond: R) -> hyper::Result<()>
where
    R: Fn(&str) -> (StatusCode, String),
{
    let service = service_fn(|request: Request<_>| {
        let (code, text) = respond(request.uri().path());
        let mut response = Response::new(Full::new(Bytes::from(text)));
        *response.status_mut() = code;
        async { Ok::<_, Infallible>(response) }
    });
    http1::Builder::new()
        .keep_alive(false)
        .serve_connection(TokioIo::new(connection), service)
        .await
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use admission::Limits;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::time::timeout;

    use super::*;

    const LIMITS: Limits = Limits {
        total: 32,
        per_source: 16,
    };
    /// A connection never ends because of its own timeout in these tests.
    const NEVER: Duration = Duration::from_secs(3600);
    /// A test that hangs fails.
    const HANG: Duration = Duration::from_secs(60);

    async fn start() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let respond = |path: &str| (StatusCode::OK, format!("{path}\n"));
        tokio::spawn(serve(listener, Admission::new(LIMITS), NEVER, respond));
        address
    }

    async fn get(connection: &mut TcpStream) -> String {
        let request = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n";
        connection.write_all(request).await.unwrap();
        let mut response = String::new();
        let read = connection.read_to_string(&mut response);
        timeout(HANG, read).await.unwrap().unwrap();
        response
    }

    #[tokio::test]
    async fn a_probe_is_answered_while_idle_and_slow_connections_are_open() {
        let address = start().await;
        let mut idle = Vec::new();
        for number in 0..200 {
            let mut connection = TcpStream::connect(address).await.unwrap();
            if number % 2 == 0 {
                // It may have lost its permit already.
                let _ = connection.write_all(b"GET /healthz HTTP/1.1\r\n").await;
            }
            idle.push(connection);
        }
        let mut probe = TcpStream::connect(address).await.unwrap();
        assert!(get(&mut probe).await.ends_with("/healthz\n"));
    }

    #[tokio::test]
    async fn a_connection_is_closed_after_one_response() {
        let address = start().await;
        let mut connection = TcpStream::connect(address).await.unwrap();
        let requests = b"GET /1 HTTP/1.1\r\nhost: x\r\n\r\nGET /2 HTTP/1.1\r\nhost: x\r\n\r\n";
        connection.write_all(requests).await.unwrap();
        let mut response = Vec::new();
        // The connection may be reset because of the second request.
        let read = connection.read_to_end(&mut response);
        let _ = timeout(HANG, read).await.unwrap();
        let response = String::from_utf8_lossy(&response);
        assert!(!response.contains("/2"), "{response}");
    }
}
