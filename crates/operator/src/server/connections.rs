//! The connections of the server. A client is the API server if its certificate says so, and otherwise unauthenticated: such
//! a client gets one response, which explains the refusal, and its connection is closed.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use admission::Permit;
use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::Watcher;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;

use super::Trust;
use crate::response::ApiResponse;

const TLS_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an unauthenticated client may take for its request and its response.
const UNAUTHENTICATED_TIMEOUT: Duration = Duration::from_secs(5);
/// How long it may take to read its response.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the API server may take to send the head of a request, and to respond to a ping.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(30);
/// The limit of concurrent requests over one connection. Each session has its own connection.
const MAX_CONCURRENT_STREAMS: u32 = 1000;

/// Whether a connection is from the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Authentication {
    FrontProxy,
    None,
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Serves a connection. It needs its permit until the client is authenticated.
pub(super) async fn serve<R, F>(
    trust: &Trust,
    watcher: Watcher,
    mut permit: Permit,
    connection: TcpStream,
    respond: R,
) -> Result<(), BoxError>
where
    R: Fn(Authentication, Request<Incoming>) -> F + Send + Sync + 'static,
    F: Future<Output = ApiResponse> + Send + 'static,
{
    connection.set_nodelay(true)?;
    let handshake = trust.acceptor().accept(connection);
    let stream = permit.run(TLS_HANDSHAKE_TIMEOUT, handshake).await??;
    let certificates = stream.get_ref().1.peer_certificates();
    let certificate = certificates.and_then(<[_]>::first);
    if trust.front_proxy().recognise(certificate) {
        drop(permit);
        return serve_api_server(watcher, stream, respond).await;
    }
    // A shutdown does not wait for it.
    drop(watcher);
    let serving = respond_once(stream, respond);
    permit.run(UNAUTHENTICATED_TIMEOUT, serving).await?
}

async fn serve_api_server<R, F>(
    watcher: Watcher,
    stream: TlsStream<TcpStream>,
    respond: R,
) -> Result<(), BoxError>
where
    R: Fn(Authentication, Request<Incoming>) -> F + Send + Sync + 'static,
    F: Future<Output = ApiResponse> + Send + 'static,
{
    let service = service_fn(move |request| {
        let response = respond(Authentication::FrontProxy, request);
        async move { Ok::<_, Infallible>(response.await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_READ_TIMEOUT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_CONCURRENT_STREAMS)
        .keep_alive_interval(HEADER_READ_TIMEOUT)
        .keep_alive_timeout(HEADER_READ_TIMEOUT);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    watcher.watch(connection.into_owned()).await
}

/// Serves one request, and closes the connection.
async fn respond_once<R, F>(stream: TlsStream<TcpStream>, respond: R) -> Result<(), BoxError>
where
    R: Fn(Authentication, Request<Incoming>) -> F + Send + Sync + 'static,
    F: Future<Output = ApiResponse> + Send + 'static,
{
    let (is_used, used) = (AtomicBool::new(false), Arc::new(Notify::new()));
    let request_received = Arc::clone(&used);
    let service = service_fn(move |request| {
        request_received.notify_one();
        let is_first = !is_used.swap(true, Ordering::AcqRel);
        let response = is_first.then(|| respond(Authentication::None, request));
        async move {
            match response {
                Some(response) => Ok(response.await),
                None => Err("an unauthenticated client gets one response"),
            }
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().keep_alive(false);
    builder.http2().max_concurrent_streams(1);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        ended = connection.as_mut() => return ended,
        () = used.notified() => {}
    }
    // The response that is pending is still sent.
    connection.as_mut().graceful_shutdown();
    timeout(CLOSE_TIMEOUT, connection).await?
}

#[cfg(test)]
mod tests;
