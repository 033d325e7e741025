//! HTTP/1.1: an application that responds to requests, and a plain proxy in front of one as a baseline.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use bytes::Bytes;
use clap::{Args, ValueEnum};
use http::{HeaderName, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

/// The response header with the name of the application.
pub(crate) const FROM: &str = "x-from";

/// A response body of a typical size.
const BODY: [u8; 100] = [b'.'; 100];

#[derive(Debug, Args)]
pub(crate) struct HttpArguments {
    #[arg(long, required = true)]
    listen: Vec<SocketAddr>,
    /// The name of the application, which each response has in a header
    #[arg(long)]
    from: String,
    #[arg(long, value_enum, default_value_t = Behavior::Healthy)]
    behavior: Behavior,
}

/// How an application handles its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Behavior {
    /// It responds to each request.
    Healthy,
    /// It accepts connections and reads nothing.
    Slow,
    /// It closes each connection at once.
    Dead,
}

#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct ProxyArguments {
    #[arg(long)]
    listen: SocketAddr,
    #[arg(long)]
    to: SocketAddr,
}

/// Responds to requests. Prints `ready`, and `connected` at the first connection.
pub(crate) fn run(arguments: HttpArguments) -> Result<()> {
    let from = HeaderValue::from_str(&arguments.from)?;
    let seen = Arc::<AtomicBool>::default();
    until_input_ends(async move {
        for address in &arguments.listen {
            let (from, seen) = (from.clone(), Arc::clone(&seen));
            listen(*address, move |stream| {
                if !seen.swap(true, Ordering::Relaxed) {
                    println!("connected");
                }
                serve_as(arguments.behavior, stream, from.clone())
            })
            .await?;
        }
        println!("ready");
        std::future::pending().await
    })
}

/// Each client connection has one connection to the application, to which its requests are forwarded.
pub(crate) fn run_proxy(arguments: ProxyArguments) -> Result<()> {
    until_input_ends(async move {
        listen(arguments.listen, move |stream| {
            forward(stream, arguments.to)
        })
        .await?;
        println!("ready");
        std::future::pending().await
    })
}

/// Runs until the parent process closes our standard input.
pub(crate) fn until_input_ends(work: impl Future<Output = Result<()>>) -> Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    let result = runtime.block_on(async {
        let ended = tokio::task::spawn_blocking(|| io::copy(&mut io::stdin(), &mut io::sink()));
        tokio::select! {
            result = work => result,
            _ = ended => Ok(()),
        }
    });
    runtime.shutdown_background();
    result
}

pub(crate) async fn listen<F>(
    address: SocketAddr,
    serve: impl Fn(TcpStream) -> F + Send + 'static,
) -> Result<()>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address}"))?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            // A client may disconnect early.
            tokio::spawn(serve(stream));
        }
    });
    Ok(())
}

async fn serve_as(behavior: Behavior, stream: TcpStream, from: HeaderValue) -> Result<()> {
    match behavior {
        Behavior::Healthy => respond(stream, from).await,
        Behavior::Slow => {
            std::future::pending::<()>().await;
            drop(stream);
            Ok(())
        }
        Behavior::Dead => Ok(()),
    }
}

async fn respond(stream: TcpStream, from: HeaderValue) -> Result<()> {
    let service = service_fn(|request: Request<Incoming>| {
        let from = from.clone();
        async move {
            let mut body = request.into_body();
            while let Some(Ok(_)) = body.frame().await {}
            let mut response = Response::new(Full::new(Bytes::from_static(&BODY)));
            let headers = response.headers_mut();
            headers.insert(HeaderName::from_static(FROM), from);
            Ok::<_, Infallible>(response)
        }
    });
    let builder = hyper::server::conn::http1::Builder::new();
    builder
        .serve_connection(TokioIo::new(stream), service)
        .await?;
    Ok(())
}

async fn forward(client: TcpStream, to: SocketAddr) -> Result<()> {
    let stream = TcpStream::connect(to).await?;
    stream.set_nodelay(true)?;
    let (send, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    // A client has one request at a time, so the lock is never contended.
    let send = Arc::new(tokio::sync::Mutex::new(send));
    let service = service_fn(move |request: Request<Incoming>| {
        let send = Arc::clone(&send);
        async move { send.lock().await.send_request(request).await }
    });
    hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(client), service)
        .await?;
    Ok(())
}
