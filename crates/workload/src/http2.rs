//! HTTP/2: servers and clients with the default settings of its library, and clients that stall.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use clap::Args;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::http1;

/// How many bytes a stalled client offers on each stream.
const OFFERED: usize = 1 << 20;
/// The size of each frame of a stalled client.
const PIECE: usize = 16 * 1024;
/// Clients are stalled when none of them could send anything for this long.
const QUIET: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(crate) struct StallingArguments {
    #[arg(long)]
    listen: SocketAddr,
}

/// Responds to `GET`, and never reads or responds to other requests.
pub(crate) fn run_stalling(arguments: &StallingArguments) -> Result<()> {
    http1::until_input_ends(async {
        http1::listen(arguments.listen, |stream| async move {
            let service = service_fn(|request: Request<Incoming>| async move {
                if request.method() != Method::GET {
                    let _unread = request;
                    std::future::pending::<()>().await;
                }
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"served"))))
            });
            hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .max_concurrent_streams(None)
                .serve_connection(TokioIo::new(stream), service)
                .await?;
            Ok(())
        })
        .await?;
        println!("ready");
        std::future::pending().await
    })
}

/// One request on a connection of its own.
pub(crate) async fn get(address: SocketAddr, limit: Duration) -> Result<()> {
    let exchange = async {
        let stream = TcpStream::connect(address).await?;
        let (mut client, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                .await?;
        tokio::spawn(connection);
        let request = Request::get("http://target/").body(Empty::<Bytes>::new())?;
        let response = client.send_request(request).await?;
        ensure!(response.status().is_success(), "{}", response.status());
        response.into_body().collect().await?;
        Ok(())
    };
    timeout(limit, exchange)
        .await
        .context("no response in time")?
}

/// Opens connections and streams on each, and sends bodies until no window has any room. The caller's runtime keeps them.
pub(crate) async fn stall(address: SocketAddr, clients: usize, streams: usize) -> Result<()> {
    let sent = Arc::<AtomicU64>::default();
    for _ in 0..clients {
        let stream = TcpStream::connect(address).await?;
        let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        builder.initial_max_send_streams(streams);
        let (client, connection) = builder.handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        for _ in 0..streams {
            let mut client = client.clone();
            let body = Endless {
                left: OFFERED,
                sent: Arc::clone(&sent),
            };
            tokio::spawn(async move {
                let request = Request::post("http://target/").body(body)?;
                client.send_request(request).await?;
                anyhow::Ok(())
            });
        }
    }
    loop {
        let before = sent.load(Ordering::Relaxed);
        sleep(QUIET).await;
        if sent.load(Ordering::Relaxed) == before {
            return Ok(());
        }
    }
}

/// A body that is sent as far as flow control allows, and never ends.
struct Endless {
    left: usize,
    sent: Arc<AtomicU64>,
}

impl Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut TaskContext<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            return Poll::Pending;
        }
        self.left = self.left.saturating_sub(PIECE);
        self.sent.fetch_add(PIECE as u64, Ordering::Relaxed);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[7; PIECE])))))
    }
}

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
