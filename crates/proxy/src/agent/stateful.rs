//! The client of the current stateful agent.
//!
//! A call that is made while a new agent is being connected waits for it. A call that is in progress when the agent is lost
//! fails, because it is unknown how far the agent got.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use link::LinkError;
use link::http2::{BoxError, Client};
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
        // The common case needs no waiting.
        if let State::Connected(AgentConnection { client, .. }) = &*self.state.borrow()
            && !client.is_closed()
        {
            return client.clone().send(request);
        }
        let state = self.state.subscribe();
        Box::pin(async move { wait_for_client(state).await?.send(request).await })
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

/// Waits for a usable client. A closed one will be replaced, because the supervisor sees its link end.
async fn wait_for_client(mut state: watch::Receiver<State>) -> Result<Client, LinkError> {
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
