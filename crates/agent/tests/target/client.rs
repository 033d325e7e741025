//! A simple client: gRPC calls and raw streams over one in-memory connection.

use std::pin::Pin;
use std::task::{Context, Poll};

use agent::Agent;
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use protocol::MAX_MESSAGE_BYTES;
use protocol::control::VERSION;
use protocol::failure::Failure;
use protocol::files::{self, ReadRange, WriteRange};
use protocol::rpc::control_client::ControlClient;
use protocol::rpc::dns_client::DnsClient;
use protocol::rpc::env_client::EnvClient;
use protocol::rpc::files_client::FilesClient;
use protocol::rpc::outgoing_client::OutgoingClient;
use protocol::rpc::{HelloRequest, HelloResponse, OpenRequest, OpenResponse, Version};
use tokio::sync::mpsc;
use tonic::Status;
use tonic::body::Body;

#[derive(Clone)]
pub(crate) struct Client(http2::SendRequest<Body>);

impl Client {
    /// Connects to an agent over a new in-memory connection.
    pub(crate) async fn connect(agent: Agent) -> Self {
        let (near, far) = tokio::io::duplex(1024 * 1024);
        tokio::spawn(async move { agent.serve_connection(far).await });
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(256 * 1024)
            .initial_connection_window_size(i32::MAX.unsigned_abs())
            .max_frame_size(256 * 1024)
            .handshake(TokioIo::new(near))
            .await
            .expect("the agent speaks HTTP/2");
        tokio::spawn(connection);
        Self(sender)
    }

    pub(crate) async fn hello(&self, token: &str) -> Result<HelloResponse, Status> {
        self.hello_as(VERSION, token).await
    }

    pub(crate) async fn hello_as(
        &self,
        version: Version,
        token: &str,
    ) -> Result<HelloResponse, Status> {
        let request = HelloRequest {
            version: Some(version),
            token: token.to_owned(),
            client: "test".to_owned(),
            features: vec!["something new".to_owned()],
        };
        self.control()
            .hello(request)
            .await
            .map(tonic::Response::into_inner)
    }

    pub(crate) fn control(&self) -> ControlClient<Self> {
        ControlClient::with_origin(self.clone(), origin())
    }

    pub(crate) fn env(&self) -> EnvClient<Self> {
        EnvClient::with_origin(self.clone(), origin()).max_decoding_message_size(MAX_MESSAGE_BYTES)
    }

    pub(crate) fn files(&self) -> FilesClient<Self> {
        FilesClient::with_origin(self.clone(), origin())
    }

    pub(crate) fn dns(&self) -> DnsClient<Self> {
        DnsClient::with_origin(self.clone(), origin())
    }

    pub(crate) fn outgoing(&self) -> OutgoingClient<Self> {
        OutgoingClient::with_origin(self.clone(), origin())
    }

    pub(crate) async fn open(&self, request: OpenRequest) -> Result<OpenResponse, Status> {
        self.files()
            .open(request)
            .await
            .map(tonic::Response::into_inner)
    }

    /// Reads a whole range of an open file.
    pub(crate) async fn read(
        &self,
        handle: u64,
        offset: u64,
        length: u64,
    ) -> Result<Bytes, Failure> {
        let range = ReadRange {
            handle,
            offset,
            length,
        };
        let response = self
            .raw(files::READ, range.to_headers(), Body::empty())
            .await?;
        let collected = response.into_body().collect().await.expect("the body ends");
        match collected.trailers().and_then(Failure::from_headers) {
            Some(failure) => Err(failure),
            None => Ok(collected.to_bytes()),
        }
    }

    /// Writes to an open file and returns the number of written bytes.
    pub(crate) async fn write(
        &self,
        handle: u64,
        offset: u64,
        bytes: impl Into<Bytes>,
    ) -> Result<u64, Failure> {
        let range = WriteRange { handle, offset };
        let body = Body::new(Full::new(bytes.into()));
        let response = self.raw(files::WRITE, range.to_headers(), body).await?;
        Ok(files::written(response.headers()).expect("a number"))
    }

    /// Opens a connection. Chunks sent to the channel are sent to the peer; the response body has the peer's bytes. An empty
    /// chunk resets the stream.
    pub(crate) async fn connect_stream(
        &self,
        path: &'static str,
        headers: HeaderMap,
    ) -> Result<(mpsc::Sender<Bytes>, Response<Incoming>), Failure> {
        let (bytes_to_peer, bytes) = mpsc::channel(1);
        let stream = futures_util::stream::unfold(bytes, |mut bytes| async move {
            let chunk: Bytes = bytes.recv().await?;
            if chunk.is_empty() {
                return Some((Err(Status::cancelled("reset")), bytes));
            }
            Some((Ok(Frame::data(chunk)), bytes))
        });
        let response = self
            .raw(path, headers, Body::new(StreamBody::new(stream)))
            .await?;
        Ok((bytes_to_peer, response))
    }

    pub(crate) async fn raw(
        &self,
        path: &'static str,
        headers: HeaderMap,
        body: Body,
    ) -> Result<Response<Incoming>, Failure> {
        let mut request = Request::post(format!("http://agent{path}"))
            .body(body)
            .expect("a request");
        *request.headers_mut() = headers;
        let response = self
            .0
            .clone()
            .send_request(request)
            .await
            .expect("a response");
        match Failure::from_headers(response.headers()) {
            Some(failure) => {
                assert_eq!(response.status(), failure.http_status());
                Err(failure)
            }
            None => Ok(response),
        }
    }
}

fn origin() -> http::Uri {
    http::Uri::from_static("http://agent")
}

impl tower_service::Service<Request<Body>> for Client {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Incoming>, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

/// The error number in a failed call.
pub(crate) fn errno<T: std::fmt::Debug>(result: Result<T, Status>) -> i32 {
    let status = result.expect_err("it fails");
    let failure = Failure::from_status(&status).unwrap_or_else(|| panic!("a failure: {status}"));
    failure
        .number()
        .unwrap_or_else(|| panic!("an errno: {failure:?}"))
}

/// Waits for the next data frame of a body.
pub(crate) async fn next_data(body: &mut Incoming) -> Option<Bytes> {
    let frame = body.frame().await?.expect("the stream is not reset");
    Some(frame.into_data().expect("data"))
}
