//! HTTP/1.1: an application that answers requests, and a plain proxy in front of one to compare with.

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

/// The header in which an application says who it is.
pub(crate) const FROM: &str = "x-from";

/// As much as an answer of a service often has.
const ANSWER: [u8; 100] = [b'.'; 100];

#[derive(Debug, Args)]
pub(crate) struct HttpArguments {
    #[arg(long, required = true)]
    listen: Vec<SocketAddr>,
    /// Who says that it answered
    #[arg(long)]
    from: String,
    #[arg(long, value_enum, default_value_t = Manner::Healthy)]
    manner: Manner,
}

/// How an application treats its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Manner {
    /// It answers each request.
    Healthy,
    /// It accepts, and takes nothing.
    Slow,
    /// It closes each connection.
    Dead,
}

#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct ProxyArguments {
    #[arg(long)]
    listen: SocketAddr,
    #[arg(long)]
    to: SocketAddr,
}

/// Answers requests, and says `ready` and when the first connection has come.
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
                treat(arguments.manner, stream, from.clone())
            })
            .await?;
        }
        println!("ready");
        std::future::pending().await
    })
}

/// Each connection of a client is carried by one connection to the application, request by request.
pub(crate) fn run_proxy(arguments: ProxyArguments) -> Result<()> {
    until_input_ends(async move {
        listen(arguments.listen, move |stream| {
            pass_on(stream, arguments.to)
        })
        .await?;
        println!("ready");
        std::future::pending().await
    })
}

/// Until whoever started us closes our standard input.
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

async fn listen<F>(
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
            // A client that leaves early is no news.
            tokio::spawn(serve(stream));
        }
    });
    Ok(())
}

async fn treat(manner: Manner, stream: TcpStream, from: HeaderValue) -> Result<()> {
    match manner {
        Manner::Healthy => answer(stream, from).await,
        Manner::Slow => {
            std::future::pending::<()>().await;
            drop(stream);
            Ok(())
        }
        Manner::Dead => Ok(()),
    }
}

async fn answer(stream: TcpStream, from: HeaderValue) -> Result<()> {
    let service = service_fn(|request: Request<Incoming>| {
        let from = from.clone();
        async move {
            let mut body = request.into_body();
            while let Some(Ok(_)) = body.frame().await {}
            let mut response = Response::new(Full::new(Bytes::from_static(&ANSWER)));
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

async fn pass_on(client: TcpStream, to: SocketAddr) -> Result<()> {
    let stream = TcpStream::connect(to).await?;
    stream.set_nodelay(true)?;
    let (send, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    // One client has one request at a time, so nobody waits for it.
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
