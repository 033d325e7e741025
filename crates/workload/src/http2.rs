//! HTTP/2 with the default settings of its library, as a baseline.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

/// Responds with as many bytes as the request's path says.
pub(crate) async fn serve(stream: TcpStream) -> io::Result<()> {
    let service = service_fn(|request: Request<Incoming>| async move {
        let length = request.uri().path().trim_start_matches('/').parse();
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(vec![
            7;
            length
                .unwrap_or(0)
        ]))))
    });
    hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service)
        .await
        .map_err(io::Error::other)
}

/// Fetches `length` bytes over an established connection. Returns the seconds that it took.
pub(crate) async fn fetch(address: SocketAddr, length: usize) -> Result<f64> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (mut client, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request =
        |length: usize| Request::get(format!("http://target/{length}")).body(Empty::<Bytes>::new());
    // The handshake is not measured.
    client.send_request(request(0)?).await?;
    let start = std::time::Instant::now();
    let mut body = client.send_request(request(length)?).await?.into_body();
    let mut received = 0;
    while let Some(frame) = body.frame().await {
        received += frame
            .context("the transfer broke")?
            .into_data()
            .map_or(0, |data| data.len());
    }
    ensure!(
        received == length,
        "{received} of {length} bytes were received"
    );
    Ok(start.elapsed().as_secs_f64())
}
