//! A minimal session: it subscribes, and accepts connections as the proxy does.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use agent::Agent;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use protocol::control::VERSION;
use protocol::failure::Failure;
use protocol::incoming::{ACCEPT, ACCEPTED, Accept, ConnectionMeta};
use protocol::rpc::control_client::ControlClient;
use protocol::rpc::incoming_client::IncomingClient;
use protocol::rpc::subscribe_event::Event;
use protocol::rpc::{
    HelloRequest, HttpFilter, IncomingMode, SubscribeEvent, SubscribeRequest, Subscribed,
    UnsubscribeRequest, http_filter,
};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tonic::body::Body;
use tonic::{Status, Streaming};

use crate::programs::with_timeout;

/// The number of pending accept requests.
const ACCEPT_POOL_SIZE: usize = 8;

#[derive(Clone)]
pub(crate) struct Session {
    sender: http2::SendRequest<Body>,
    /// The agent's end of the connection, if the agent is in this process.
    served: Option<Arc<JoinHandle<()>>>,
}

impl Session {
    /// Connects to an agent of this process, and sends Hello.
    pub(crate) async fn of(agent: &Agent) -> Self {
        let (near, far) = tokio::io::duplex(1024 * 1024);
        let agent = agent.clone();
        let served = tokio::spawn(async move {
            let _ = agent.serve_connection(far).await;
        });
        Self {
            served: Some(Arc::new(served)),
            ..Self::over(near).await
        }
    }

    /// Uses a connection to an agent, and sends Hello.
    pub(crate) async fn over(io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Self {
        Self::with_window(io, 256 * 1024).await
    }

    /// The same, with this flow-control window for each stream.
    pub(crate) async fn with_window(
        io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        window: u32,
    ) -> Self {
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(window)
            .initial_connection_window_size(i32::MAX.unsigned_abs())
            .handshake(TokioIo::new(io))
            .await
            .expect("the agent speaks HTTP/2");
        tokio::spawn(connection);
        let session = Self {
            sender,
            served: None,
        };
        let hello = HelloRequest {
            version: Some(VERSION),
            ..HelloRequest::default()
        };
        let hello_response = ControlClient::with_origin(session.clone(), origin())
            .hello(hello)
            .await
            .expect("Hello is accepted")
            .into_inner();
        assert!(hello_response.features.contains(&"incoming".to_owned()));
        session
    }

    /// Closes the connection to the agent without resuming it, as when the client is killed.
    pub(crate) fn lose_connection(&self) {
        self.served
            .as_ref()
            .expect("the agent is in this process")
            .abort();
    }

    pub(crate) async fn subscribe(
        &self,
        request: SubscribeRequest,
    ) -> Result<Subscription, Failure> {
        let mut client = IncomingClient::with_origin(self.clone(), origin());
        let response = with_timeout(client.subscribe(request)).await;
        let mut events = response
            .map_err(|status| {
                Failure::from_status(&status).unwrap_or_else(|| panic!("a failure: {status}"))
            })?
            .into_inner();
        match next_event(&mut events).await {
            Some(Event::Subscribed(subscribed)) => Ok(Subscription {
                session: self.clone(),
                subscribed,
                events,
            }),
            other => panic!("{other:?}"),
        }
    }

    /// Opens a raw stream that sends nothing.
    pub(crate) async fn open_stream(
        &self,
        path: &'static str,
        headers: http::HeaderMap,
    ) -> Response<Incoming> {
        let body = StreamBody::new(futures_util::stream::pending::<Result<Frame<Bytes>, Status>>());
        let mut request = Request::post(format!("http://agent{path}"))
            .body(Body::new(body))
            .expect("a request");
        *request.headers_mut() = headers;
        let response = self.sender.clone().send_request(request).await;
        response.expect("the agent responds")
    }

    async fn accept(&self, subscription: u64) -> Result<OfferedConnection, Failure> {
        let (to_client, bytes) = mpsc::channel::<Bytes>(1);
        let body = futures_util::stream::unfold(bytes, |mut bytes| async move {
            let chunk = bytes.recv().await?;
            if chunk.is_empty() {
                return Some((Err(Status::cancelled("reset")), bytes));
            }
            Some((Ok(Frame::data(chunk)), bytes))
        });
        let mut request = Request::post(format!("http://agent{ACCEPT}"))
            .body(Body::new(StreamBody::new(body)))
            .expect("a request");
        *request.headers_mut() = Accept { subscription }.to_headers();
        let response = self.sender.clone().send_request(request).await;
        let response = response.map_err(|error| Failure {
            detail: error.to_string(),
            ..Failure::default()
        })?;
        if let Some(failure) = Failure::from_headers(response.headers()) {
            return Err(failure);
        }
        Ok(OfferedConnection {
            meta: ConnectionMeta::from_headers(response.headers()).expect("connection metadata"),
            from_client: response.into_body(),
            to_client,
        })
    }
}

fn origin() -> http::Uri {
    http::Uri::from_static("http://agent")
}

async fn next_event(events: &mut Streaming<SubscribeEvent>) -> Option<Event> {
    let event = match with_timeout(events.message()).await {
        Ok(event) => event?,
        Err(status) => {
            eprintln!("subscription ended: {status}");
            return None;
        }
    };
    Some(event.event.expect("a known event"))
}

/// A subscription. Dropping it ends the subscription.
pub(crate) struct Subscription {
    session: Session,
    pub(crate) subscribed: Subscribed,
    events: Streaming<SubscribeEvent>,
}

impl Subscription {
    /// The next event. None if the subscription has ended.
    pub(crate) async fn event(&mut self) -> Option<Event> {
        next_event(&mut self.events).await
    }

    /// Ends the subscription by a request. Returns when the agent confirms it.
    pub(crate) async fn unsubscribe(&self) {
        let mut client = IncomingClient::with_origin(self.session.clone(), origin());
        let request = UnsubscribeRequest {
            subscription: self.subscribed.subscription,
        };
        with_timeout(client.unsubscribe(request)).await.unwrap();
    }

    /// Waits for one connection. The application has not accepted it yet.
    pub(crate) async fn accept(&self) -> Result<OfferedConnection, Failure> {
        self.session.accept(self.subscribed.subscription).await
    }

    /// Serves every connection with an application, until the subscription ends or the returned handle is dropped.
    pub(crate) fn serve<F: Future<Output = ()> + Send>(
        &self,
        application: impl Fn(ConnectionMeta, DuplexStream) -> F + Clone + Send + Sync + 'static,
    ) -> Serving {
        let tasks = (0..ACCEPT_POOL_SIZE).map(|_| {
            let session = self.session.clone();
            let id = self.subscribed.subscription;
            let application = application.clone();
            tokio::spawn(async move {
                while let Ok(stolen) = session.accept(id).await {
                    let application = application.clone();
                    tokio::spawn(async move {
                        let meta = stolen.meta.clone();
                        let stream = stolen.into_stream().await;
                        application(meta, stream).await;
                    });
                }
            })
        });
        Serving(tasks.collect())
    }
}

/// Accepts connections until it is dropped.
pub(crate) struct Serving(Vec<JoinHandle<()>>);

impl Drop for Serving {
    fn drop(&mut self) {
        for task in &self.0 {
            task.abort();
        }
    }
}

/// A connection that was offered to the session.
pub(crate) struct OfferedConnection {
    pub(crate) meta: ConnectionMeta,
    pub(crate) from_client: Incoming,
    /// An empty chunk resets the stream.
    pub(crate) to_client: mpsc::Sender<Bytes>,
}

impl OfferedConnection {
    /// Accepts the connection, and returns it as a stream.
    pub(crate) async fn into_stream(mut self) -> DuplexStream {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let (mut reading, mut writing) = tokio::io::split(far);
        let _ = self.to_client.send(Bytes::from_static(&[ACCEPTED])).await;
        tokio::spawn(async move {
            while let Some(Ok(frame)) = self.from_client.frame().await {
                let Ok(data) = frame.into_data() else {
                    continue;
                };
                if writing.write_all(&data).await.is_err() {
                    return;
                }
            }
            let _ = writing.shutdown().await;
        });
        tokio::spawn(async move {
            let mut buffer = vec![0; 64 * 1024];
            while let Ok(count @ 1..) = reading.read(&mut buffer).await {
                let chunk = Bytes::copy_from_slice(&buffer[..count]);
                if self.to_client.send(chunk).await.is_err() {
                    return;
                }
            }
        });
        near
    }
}

/// Steals all traffic of a port.
pub(crate) fn whole_port(port: u16, holder: &str) -> SubscribeRequest {
    SubscribeRequest {
        port: port.into(),
        holder: holder.to_owned(),
        ..SubscribeRequest::default()
    }
}

/// Steals the requests with a header.
pub(crate) fn with_header(port: u16, holder: &str, pattern: &str) -> SubscribeRequest {
    SubscribeRequest {
        filter: Some(HttpFilter {
            filter: Some(http_filter::Filter::Header(pattern.to_owned())),
        }),
        ..whole_port(port, holder)
    }
}

/// Mirrors all traffic of a port.
pub(crate) fn mirrored_port(port: u16, holder: &str) -> SubscribeRequest {
    SubscribeRequest {
        mode: IncomingMode::Mirror.into(),
        ..whole_port(port, holder)
    }
}

impl tower_service::Service<Request<Body>> for Session {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Incoming>, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.sender.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.sender.send_request(request))
    }
}
