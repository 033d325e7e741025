//! The client of whichever agent is asked alone now.
//!
//! A call that comes while a new agent is being reached waits for it. A call that is under way when the agent goes fails,
//! since nobody knows how far it came.

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

use super::Member;
use crate::outgoing::Budget;

/// Clones are the same connection.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    /// From the keeper to everybody who asks the agent.
    state: Arc<watch::Sender<State>>,
}

#[derive(Debug, Clone)]
enum State {
    /// Left when the agent has gone.
    There(Member),
    /// Left when another one is there, or none can be.
    Awaited,
    /// Left when there is one after all.
    Lost(LinkError),
}

impl Connection {
    pub(super) fn replace(&self, member: Member) {
        self.state.send_replace(State::There(member));
    }

    /// Lets new calls wait.
    pub(super) fn await_another(&self) {
        self.state.send_replace(State::Awaited);
    }

    /// Lets calls fail.
    pub(super) fn lose(&self, reason: LinkError) {
        self.state.send_replace(State::Lost(reason));
    }

    /// How many connections there may be through the agent. Where there is none, whoever waits for one is not counted.
    pub(crate) fn connections(&self) -> Budget {
        match &*self.state.borrow() {
            State::There(member) => member.connections.clone(),
            State::Awaited | State::Lost(_) => Budget::default(),
        }
    }

    /// Ends when calls fail.
    pub(crate) async fn lost(&self) {
        let mut state = self.state.subscribe();
        let lost = state.wait_for(|state| matches!(state, State::Lost(_)));
        // We hold a sender, so somebody is always there.
        let _ = lost.await;
    }

    /// Sends a request; the path is enough as its address.
    pub(crate) fn send<B>(&mut self, request: Request<B>) -> ResponseFuture
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        debug_assert!(
            is_for_one(request.uri().path()),
            "{} is for all agents, or for none",
            request.uri().path()
        );
        // The usual case needs no waiting.
        if let State::There(Member { client, .. }) = &*self.state.borrow()
            && !client.is_closed()
        {
            return client.clone().send(request);
        }
        let state = self.state.subscribe();
        Box::pin(async move { client_of(state).await?.send(request).await })
    }
}

impl Default for Connection {
    /// One that waits for the first agent.
    fn default() -> Self {
        let state = Arc::new(watch::Sender::new(State::Awaited));
        Self { state }
    }
}

/// Whether an operation may be asked of one agent alone. The target's traffic comes from all of them.
fn is_for_one(path: &str) -> bool {
    protocol::route(path).is_some_and(|route| route != Route::Traffic)
}

/// Waits for a client that can be used. One that is closed will be replaced: the keeper sees its link end.
async fn client_of(mut state: watch::Receiver<State>) -> Result<Client, LinkError> {
    loop {
        match &*state.borrow_and_update() {
            State::There(member) if !member.client.is_closed() => return Ok(member.client.clone()),
            State::Lost(reason) => return Err(reason.clone()),
            State::There(_) | State::Awaited => {}
        }
        if state.changed().await.is_err() {
            return Err(LinkError::StateLost);
        }
    }
}

/// The response to a request.
pub(crate) type ResponseFuture =
    Pin<Box<dyn Future<Output = Result<Response<Incoming>, LinkError>> + Send>>;

impl<B> Service<Request<B>> for Connection
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
