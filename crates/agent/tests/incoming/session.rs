//! A small session: it subscribes, and takes connections as a proxy does.

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
use protocol::incoming::{ACCEPT, Accept, Arrived, TAKEN};
use protocol::rpc::control_client::ControlClient;
use protocol::rpc::incoming_client::IncomingClient;
use protocol::rpc::subscribe_event::Event;
use protocol::rpc::{
    HelloRequest, HttpFilter, IncomingMode, SubscribeEvent, SubscribeRequest, Subscribed,
    http_filter,
};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tonic::body::Body;
use tonic::{Status, Streaming};

use crate::programs::soon;

/// As a proxy does, several requests wait for connections.
const WAITING: usize = 8;

#[derive(Clone)]
pub(crate) struct Session {
    sender: http2::SendRequest<Body>,
    /// The agent's end, if it is here.
    served: Option<Arc<JoinHandle<()>>>,
}

impl Session {
    /// Connects to an agent of this process, and says Hello.
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

    /// Speaks with an agent, and says Hello.
    pub(crate) async fn over(io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Self {
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(256 * 1024)
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
        let greeted = ControlClient::with_origin(session.clone(), origin())
            .hello(hello)
            .await
            .expect("it is welcome")
            .into_inner();
        assert!(greeted.features.contains(&"incoming".to_owned()));
        session
    }

    /// Loses the connection to the agent for good, as when the session's program is killed.
    pub(crate) fn lose_connection(&self) {
        self.served.as_ref().expect("the agent is here").abort();
    }

    pub(crate) async fn subscribe(
        &self,
        request: SubscribeRequest,
    ) -> Result<Subscription, Failure> {
        let mut client = IncomingClient::with_origin(self.clone(), origin());
        let answer = soon(client.subscribe(request)).await;
        let mut events = answer
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

    async fn accept(&self, number: u64) -> Result<Taken, Failure> {
        let (bytes_to_client, bytes) = mpsc::channel::<Bytes>(1);
        let body = futures_util::stream::unfold(bytes, |mut bytes| async move {
            let piece = bytes.recv().await?;
            if piece.is_empty() {
                return Some((Err(Status::cancelled("reset")), bytes));
            }
            Some((Ok(Frame::data(piece)), bytes))
        });
        let mut request = Request::post(format!("http://agent{ACCEPT}"))
            .body(Body::new(StreamBody::new(body)))
            .expect("a request");
        *request.headers_mut() = Accept {
            subscription: number,
        }
        .to_headers();
        let response = self.sender.clone().send_request(request).await;
        let response = response.map_err(|error| Failure {
            detail: error.to_string(),
            ..Failure::default()
        })?;
        if let Some(failure) = Failure::from_headers(response.headers()) {
            return Err(failure);
        }
        Ok(Taken {
            arrived: Arrived::from_headers(response.headers()).expect("both ends"),
            from_client: response.into_body(),
            to_client: bytes_to_client,
        })
    }
}

fn origin() -> http::Uri {
    http::Uri::from_static("http://agent")
}

async fn next_event(events: &mut Streaming<SubscribeEvent>) -> Option<Event> {
    let event = match soon(events.message()).await {
        Ok(event) => event?,
        Err(status) => {
            eprintln!("a subscription ended: {status}");
            return None;
        }
    };
    Some(event.event.expect("an event that we know"))
}

/// A subscription. It ends when this is dropped.
pub(crate) struct Subscription {
    session: Session,
    pub(crate) subscribed: Subscribed,
    events: Streaming<SubscribeEvent>,
}

impl Subscription {
    /// The next event, or none when the subscription has ended.
    pub(crate) async fn event(&mut self) -> Option<Event> {
        next_event(&mut self.events).await
    }

    /// Waits for one connection. The application has not taken it yet.
    pub(crate) async fn accept(&self) -> Result<Taken, Failure> {
        self.session.accept(self.subscribed.subscription).await
    }

    /// Gives every connection to an application. Ends with the subscription, and with the returned handle.
    pub(crate) fn serve<F: Future<Output = ()> + Send>(
        &self,
        application: impl Fn(Arrived, DuplexStream) -> F + Clone + Send + Sync + 'static,
    ) -> Serving {
        let tasks = (0..WAITING).map(|_| {
            let session = self.session.clone();
            let number = self.subscribed.subscription;
            let application = application.clone();
            tokio::spawn(async move {
                while let Ok(taken) = session.accept(number).await {
                    let application = application.clone();
                    tokio::spawn(async move {
                        let arrived = taken.arrived.clone();
                        let stream = taken.into_stream().await;
                        application(arrived, stream).await;
                    });
                }
            })
        });
        Serving(tasks.collect())
    }
}

/// Takes connections until it is dropped.
pub(crate) struct Serving(Vec<JoinHandle<()>>);

impl Drop for Serving {
    fn drop(&mut self) {
        for task in &self.0 {
            task.abort();
        }
    }
}

/// A connection that has been offered.
pub(crate) struct Taken {
    pub(crate) arrived: Arrived,
    pub(crate) from_client: Incoming,
    /// An empty piece resets the stream.
    pub(crate) to_client: mpsc::Sender<Bytes>,
}

impl Taken {
    /// Takes it, and answers it as a stream.
    pub(crate) async fn into_stream(mut self) -> DuplexStream {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let (mut reading, mut writing) = tokio::io::split(far);
        let _ = self.to_client.send(Bytes::from_static(&[TAKEN])).await;
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
                let piece = Bytes::copy_from_slice(&buffer[..count]);
                if self.to_client.send(piece).await.is_err() {
                    return;
                }
            }
        });
        near
    }
}

/// Asks for a whole port.
pub(crate) fn whole_port(port: u16, holder: &str) -> SubscribeRequest {
    SubscribeRequest {
        port: port.into(),
        holder: holder.to_owned(),
        ..SubscribeRequest::default()
    }
}

/// Asks for the requests with a header.
pub(crate) fn with_header(port: u16, holder: &str, pattern: &str) -> SubscribeRequest {
    SubscribeRequest {
        filter: Some(HttpFilter {
            filter: Some(http_filter::Filter::Header(pattern.to_owned())),
        }),
        ..whole_port(port, holder)
    }
}

/// Asks for a copy of a port's traffic.
pub(crate) fn copy_of(port: u16, holder: &str) -> SubscribeRequest {
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
