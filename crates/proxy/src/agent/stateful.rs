//! The client of the current stateful agent.
//!
//! A call that is made while a new agent is being connected waits for it, and so does a call that was not sent yet when the
//! agent was lost. A call that is in progress then fails, because it is unknown how far the agent got.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use link::LinkError;
use link::http2::{BoxBody, BoxError, Client, SendError, boxed};
use protocol::Route;
use tokio::sync::watch;
use tower_service::Service;

use super::AgentConnection;
use crate::outgoing::ConnectionLimit;

/// Sends calls to the current stateful agent. Clones share the same state.
#[derive(Debug, Clone)]
pub(crate) struct StatefulAgent {
    /// Written by the supervisor, read by every caller.
    state: Arc<watch::Sender<State>>,
}

#[derive(Debug, Clone)]
enum State {
    /// An agent is connected. Ends when the agent is lost.
    Connected(AgentConnection),
    /// Calls wait. Ends when an agent is connected, or none can be.
    Pending,
    /// Calls fail. Ends when an agent is connected after all.
    Lost(LinkError),
}

impl StatefulAgent {
    pub(super) fn replace(&self, agent: AgentConnection) {
        self.state.send_replace(State::Connected(agent));
    }

    /// Makes new calls wait for the next agent.
    pub(super) fn set_pending(&self) {
        self.state.send_replace(State::Pending);
    }

    /// Makes calls fail.
    pub(super) fn set_lost(&self, reason: LinkError) {
        self.state.send_replace(State::Lost(reason));
    }

    /// How many connections may be open through the agent. Without an agent, connections that wait for one are not
    /// counted.
    pub(crate) fn connections(&self) -> ConnectionLimit {
        match &*self.state.borrow() {
            State::Connected(agent) => agent.connections.clone(),
            State::Pending | State::Lost(_) => ConnectionLimit::default(),
        }
    }

    /// Completes when calls fail.
    pub(crate) async fn lost(&self) {
        let mut state = self.state.subscribe();
        let lost = state.wait_for(|state| matches!(state, State::Lost(_)));
        // This object holds a sender, so the channel is never closed.
        let _ = lost.await;
    }

    /// Sends a request. Its URI may be a path only.
    pub(crate) fn send<B>(&mut self, request: Request<B>) -> ResponseFuture
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        debug_assert!(
            is_for_stateful_agent(request.uri().path()),
            "{} is for all agents, or for none",
            request.uri().path()
        );
        let request = boxed(request);
        let state = self.state.subscribe();
        // The common case needs no waiting.
        if let State::Connected(AgentConnection { client, .. }) = &*self.state.borrow()
            && !client.is_closed()
        {
            let response = client.clone().try_send(request);
            return Box::pin(async move {
                match response.await {
                    Ok(response) => Ok(response),
                    Err(failed) => send_again(failed, state).await,
                }
            });
        }
        Box::pin(send_when_connected(request, state))
    }
}

impl Default for StatefulAgent {
    /// Calls wait for the first agent.
    fn default() -> Self {
        let state = Arc::new(watch::Sender::new(State::Pending));
        Self { state }
    }
}

/// Whether an operation may go to the stateful agent only. Incoming traffic comes from all agents.
fn is_for_stateful_agent(path: &str) -> bool {
    protocol::route(path).is_some_and(|route| route != Route::Traffic)
}

/// Sends a request to the next agent if nothing of it was sent to the last one.
async fn send_again(
    failed: SendError,
    state: watch::Receiver<State>,
) -> Result<Response<Incoming>, LinkError> {
    match failed.unsent {
        Some(request) => send_when_connected(*request, state).await,
        None => Err(failed.error),
    }
}

/// Sends a request as soon as an agent is connected.
async fn send_when_connected(
    mut request: Request<BoxBody>,
    mut state: watch::Receiver<State>,
) -> Result<Response<Incoming>, LinkError> {
    loop {
        let mut client = wait_for_client(&mut state).await?;
        match client.try_send(request).await {
            Ok(response) => return Ok(response),
            Err(failed) => match failed.unsent {
                Some(unsent) => request = *unsent,
                None => return Err(failed.error),
            },
        }
    }
}

/// Waits for a usable client. A closed one will be replaced, because the supervisor sees its link end.
async fn wait_for_client(state: &mut watch::Receiver<State>) -> Result<Client, LinkError> {
    loop {
        match &*state.borrow_and_update() {
            State::Connected(agent) if !agent.client.is_closed() => {
                return Ok(agent.client.clone());
            }
            State::Lost(reason) => return Err(reason.clone()),
            State::Connected(_) | State::Pending => {}
        }
        if state.changed().await.is_err() {
            return Err(LinkError::StateLost);
        }
    }
}

/// The response to a request.
pub(crate) type ResponseFuture =
    Pin<Box<dyn Future<Output = Result<Response<Incoming>, LinkError>> + Send>>;

impl<B> Service<Request<B>> for StatefulAgent
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Incoming>;
    type Error = LinkError;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        self.send(request)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::{BodyExt as _, Empty};
    use link::http2::{Windows, serve};
    use protocol::files::READ;
    use protocol::rpc::HelloResponse;
    use tokio::io::DuplexStream;
    use tokio::task::AbortHandle;
    use tower_service::Service as _;

    use super::*;

    /// Responds to every request with its name.
    #[derive(Clone)]
    struct NamedServer(&'static str);

    impl Service<Request<Incoming>> for NamedServer {
        type Response = Response<http_body_util::Full<Bytes>>;
        type Error = Infallible;
        type Future = std::future::Ready<Result<Self::Response, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<Incoming>) -> Self::Future {
            std::future::ready(Ok(Response::new(Bytes::from(self.0).into())))
        }
    }

    async fn agent(name: &'static str) -> (AgentConnection, AbortHandle) {
        let (near, far): (DuplexStream, DuplexStream) = tokio::io::duplex(64 * 1024);
        let forever = std::future::pending();
        let server = tokio::spawn(serve(far, Windows::default(), NamedServer(name), forever));
        let client = Client::start(near, Windows::default()).await.unwrap();
        let connection = AgentConnection::new(client, &HelloResponse::default());
        (connection, server.abort_handle())
    }

    async fn name_of_agent(response: ResponseFuture) -> String {
        let body = response.await.unwrap().into_body();
        let bytes = body.collect().await.unwrap().to_bytes();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    fn request() -> Request<Empty<Bytes>> {
        Request::post(READ).body(Empty::new()).unwrap()
    }

    #[tokio::test]
    async fn a_call_that_was_not_sent_goes_to_the_next_agent() {
        let mut stateful = StatefulAgent::default();
        let (first, server) = agent("first").await;
        stateful.replace(first);
        assert_eq!(name_of_agent(stateful.call(request())).await, "first");
        // The connection ends before its task can send the request.
        server.abort();
        tokio::task::yield_now().await;
        let response = stateful.call(request());
        let (second, _server) = agent("second").await;
        stateful.replace(second);
        assert_eq!(name_of_agent(response).await, "second");
    }
}
