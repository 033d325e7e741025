//! The agent's side of one tunnel: serves the hub's requests.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use link::http2::BoxError;
use link::{LinkError, Meter};
use parking_lot::Mutex;
use tower_service::Service;

use crate::body::{Body, Explain, WindowedBody};
use crate::error::{EndReason, Error};
use crate::flow::{self, Flow, Receiving, STREAM_HEADER, Sending};

/// The agent's service, with the windows of its streams.
#[derive(Clone)]
pub(crate) struct TunnelService<S> {
    inner: S,
    tunnel: Arc<Tunnel>,
}

pub(crate) struct Tunnel {
    flow: Arc<Flow>,
    meter: Meter,
    streams: Mutex<Streams>,
}

/// The streams of the hub's requests.
#[derive(Default)]
struct Streams {
    open: usize,
    /// No more are accepted.
    is_ending: bool,
}

/// An open stream.
struct Open(Arc<Tunnel>);

impl Drop for Open {
    fn drop(&mut self) {
        let mut streams = self.0.streams.lock();
        streams.open -= 1;
        self.0.end_after_streams(&streams);
    }
}

impl Tunnel {
    pub(crate) fn new(max_bytes_in_flight: u64, meter: Meter) -> Arc<Self> {
        Arc::new(Self {
            flow: Flow::new(max_bytes_in_flight),
            meter,
            streams: Mutex::default(),
        })
    }

    /// The agent leaves: the tunnel's own exchange ends after the last stream, which may need it until then.
    pub(crate) fn end(&self) {
        let mut streams = self.streams.lock();
        streams.is_ending = true;
        self.end_after_streams(&streams);
    }

    fn end_after_streams(&self, streams: &Streams) {
        if streams.is_ending && streams.open == 0 {
            self.flow.end();
        }
    }

    fn open(self: &Arc<Self>) -> Open {
        self.streams.lock().open += 1;
        Open(Arc::clone(self))
    }
}

impl Explain for Tunnel {
    fn explain(&self, error: hyper::Error) -> Error {
        match self.meter.failure() {
            Some(failure) => Error::Disconnected {
                reason: EndReason::of(&failure),
                is_sent: true,
            },
            None => Error::Stream(LinkError::from(error)),
        }
    }
}

impl<S> TunnelService<S> {
    pub(crate) fn new(inner: S, tunnel: Arc<Tunnel>) -> Self {
        Self { inner, tunnel }
    }
}

impl<S, B> Service<Request<Incoming>> for TunnelService<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<WindowedBody>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<Incoming>) -> Self::Future {
        let flow = &self.tunnel.flow;
        if request.uri().path() == flow::path() {
            let messages = flow.messages().map_err(|never: Infallible| match never {});
            let (body, flow) = (request.into_body(), Arc::clone(flow));
            tokio::spawn(async move { flow.receive(body).await });
            let body = WindowedBody::new(messages.boxed_unsync(), None, None);
            return Box::pin(std::future::ready(Ok(Response::new(body))));
        }
        let stream = request.headers_mut().remove(STREAM_HEADER);
        let stream = stream.and_then(|stream| stream.to_str().ok()?.parse().ok());
        let receiving = stream.map(|stream| Receiving::new(Arc::clone(flow), stream));
        let sending = stream.map(|stream| Sending::new(Arc::clone(flow), stream));
        let explain = Arc::clone(&self.tunnel) as Arc<dyn Explain>;
        let request = request.map(|body| Body::new(body, receiving, explain, None));
        let open = self.tunnel.open();
        let response = self.inner.call(request);
        Box::pin(async move {
            let response = response.await.map_err(Into::into)?;
            Ok(response.map(|body| {
                let body = body.map_err(Into::into).boxed_unsync();
                WindowedBody::new(body, sending, Some(Box::new(open)))
            }))
        })
    }
}
