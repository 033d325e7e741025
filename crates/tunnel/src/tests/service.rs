//! What the agent serves in tests, and the requests for it.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use tokio::net::TcpStream;
use tower_service::Service;

use super::upgrades::upstream;
use crate::{Body, BoxBody, Error, Session, body, upgrade};

/// Size of a part of a generated body.
pub(super) const PART: usize = 32 * 1024;

/// A service made from a function.
#[derive(Clone)]
pub(super) struct ServiceOf<F>(F);

pub(super) fn service_of<F>(function: F) -> ServiceOf<F> {
    ServiceOf(function)
}

impl<F, R, B, S, E> Service<Request<B>> for ServiceOf<F>
where
    F: Fn(Request<B>) -> R,
    R: Future<Output = Result<Response<S>, E>>,
{
    type Response = Response<S>;
    type Error = E;
    type Future = R;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), E>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> R {
        (self.0)(request)
    }
}

/// | path | response |
/// |---|---|
/// | `/hello` | a short text |
/// | `/echo` | the request's body |
/// | `/bytes/N` | N bytes of [`pattern`] |
/// | `/fail` | the connection to the API server fails |
/// | `/never` | none, until the request is cancelled |
///
/// A request for an upgrade goes to a server that echoes.
#[derive(Clone, Default)]
pub(super) struct TestService {
    /// How many bytes of `/bytes` were produced.
    pub(super) produced: Arc<AtomicU64>,
    /// How many bodies of `/bytes` are being produced.
    pub(super) producing: Arc<AtomicU64>,
    /// How many requests for `/never` are pending.
    pub(super) pending: Arc<AtomicU64>,
}

impl Service<Request<Body>> for TestService {
    type Response = Response<BoxBody>;
    type Error = crate::BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move { service.respond(request).await })
    }
}

impl TestService {
    async fn respond(&self, request: Request<Body>) -> Result<Response<BoxBody>, crate::BoxError> {
        assert!(!request.headers().contains_key(crate::flow::STREAM_HEADER));
        if request.headers().contains_key(upgrade::UPGRADE_HEADER) {
            let stream = TcpStream::connect(upstream().await).await?;
            return Ok(upgrade::serve(request, stream).await?);
        }
        let path = request.uri().path().to_owned();
        match path.as_str() {
            "/hello" => Ok(Response::new(full("hello"))),
            "/echo" => Ok(Response::new(
                request.into_body().map_err(Into::into).boxed_unsync(),
            )),
            "/fail" => Err("the API server cannot be reached".into()),
            "/never" => {
                let _pending = Counted::new(&self.pending);
                std::future::pending().await
            }
            _ => {
                let length = path
                    .strip_prefix("/bytes/")
                    .ok_or("there is no such path")?;
                Ok(Response::new(self.bytes(length.parse()?)))
            }
        }
    }

    fn bytes(&self, length: usize) -> BoxBody {
        let (mut sender, body) = body(1);
        let produced = Arc::clone(&self.produced);
        let producing = Counted::new(&self.producing);
        tokio::spawn(async move {
            let _producing = producing;
            let mut start = 0;
            while start < length {
                let part = pattern(start, PART.min(length - start));
                start += part.len();
                let count = part.len() as u64;
                if sender.send_data(part.into()).await.is_err() {
                    return;
                }
                produced.fetch_add(count, Ordering::SeqCst);
            }
        });
        body.boxed_unsync()
    }
}

/// One of a number that is counted.
struct Counted(Arc<AtomicU64>);

impl Counted {
    fn new(number: &Arc<AtomicU64>) -> Self {
        number.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(number))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Bytes of a stream, from this position on. Neighbouring blocks differ.
pub(super) fn pattern(start: usize, length: usize) -> Vec<u8> {
    let byte = |position: usize| (position.wrapping_mul(31) >> 5) as u8 ^ (position >> 16) as u8;
    (start..start + length).map(byte).collect()
}

pub(super) fn full(text: &'static str) -> BoxBody {
    Full::new(Bytes::from_static(text.as_bytes()))
        .map_err(|never: Infallible| match never {})
        .boxed_unsync()
}

pub(super) async fn get(session: &Session, path: &str) -> Result<Response<Body>, Error> {
    let request = Request::get(path).body(full("")).unwrap();
    session.send(request).await
}

/// The text of a response.
pub(super) async fn text(response: Response<Body>) -> Result<String, Error> {
    let bytes = response.into_body().collect().await?.to_bytes();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads a body to its end, and compares it with the pattern.
pub(super) async fn read_pattern(mut body: Body, length: usize) -> Result<(), Error> {
    let mut position = 0;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else {
            continue;
        };
        assert!(data == pattern(position, data.len()), "from {position} on");
        position += data.len();
    }
    assert_eq!(position, length);
    Ok(())
}
