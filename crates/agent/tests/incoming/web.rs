//! HTTP applications and clients. A response has the name of the server, the path and the length of the request body.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::environment::Network;
use crate::programs::{socket, with_timeout};

/// Serves all requests of a connection.
pub(crate) async fn serve(io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, name: &str) {
    let name = name.to_owned();
    let service = service_fn(move |request: Request<Incoming>| {
        let name = name.clone();
        async move {
            let path = request.uri().path().to_owned();
            let body = request.into_body().collect().await;
            let length = body.map_or(0, |body| body.to_bytes().len());
            let text = format!("{name} {path} {length}");
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(text))))
        }
    });
    let _ = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(io), service)
        .await;
}

/// A web application that listens on all addresses of a network, until it is dropped.
pub(crate) struct Site(JoinHandle<()>);

impl Site {
    pub(crate) fn start(network: &Network, port: u16, name: &'static str) -> Self {
        let listener = network.inside(|| {
            std::net::TcpListener::bind(format!("[::]:{port}")).expect("the port is free")
        });
        listener.set_nonblocking(true).expect("it is a socket");
        let listener = TcpListener::from_std(listener).expect("there is a runtime");
        Self(tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, name));
            }
        }))
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Sends a request with these header lines on a new connection, and returns the body of the response.
pub(crate) async fn get(network: &Network, to: SocketAddr, path: &str, headers: &str) -> String {
    let response = try_get(network, to, path, headers).await;
    response.unwrap_or_else(|error| panic!("no response: {error}"))
}

/// The same, where the request may fail.
pub(crate) async fn try_get(
    network: &Network,
    to: SocketAddr,
    path: &str,
    headers: &str,
) -> io::Result<String> {
    let socket = network.inside(|| socket(to));
    let mut stream = with_timeout(socket.connect(to)).await?;
    let head = format!("GET {path} HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n");
    stream
        .write_all(format!("{head}{headers}\r\n").as_bytes())
        .await?;
    let mut response = String::new();
    with_timeout(stream.read_to_string(&mut response)).await?;
    match response.split_once("\r\n\r\n") {
        Some((_, body)) => Ok(body.to_owned()),
        None => Err(io::Error::other(format!(
            "truncated response: {response:?}"
        ))),
    }
}
