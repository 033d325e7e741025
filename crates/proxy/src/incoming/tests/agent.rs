//! A scripted agent behind a real connection.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming as Body;
use link::http2::{self, Client, Windows};
use parking_lot::Mutex;
use protocol::incoming::{ACCEPT, Accept, ConnectionMeta};
use protocol::rpc::incoming_server::{Incoming, IncomingServer};
use protocol::rpc::subscribe_event::Event as AgentEvent;
use protocol::rpc::{
    EarlierSession, Failure, HelloResponse, PortListeners, ReportRequest, ReportResponse,
    SubscribeEvent, SubscribeRequest, Subscribed, UnsubscribeRequest, UnsubscribeResponse,
};
use tokio::sync::{Notify, mpsc, oneshot};
use tonic::{Request as Call, Response as Reply, Status};
use tower_service::Service;

use super::super::subscription::own_network;
use super::IncomingEventKind;
use crate::agent::{AgentConnection, Agents, SessionContext};
use crate::event::{Event, IncomingEvent};

/// Clones share the same state.
#[derive(Clone, Default)]
pub(super) struct FakeAgent {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
}

#[derive(Default)]
struct State {
    requests: Vec<SubscribeRequest>,
    refuse: Option<Failure>,
    earlier: Vec<EarlierSession>,
    listeners: Option<PortListeners>,
    events: Option<mpsc::UnboundedSender<Result<SubscribeEvent, Status>>>,
    accept_streams: Vec<(
        Accept,
        Body,
        oneshot::Sender<Response<http2::StreamingBody>>,
    )>,
    emitted: Vec<IncomingEvent>,
    /// The subscriptions of `Unsubscribe` requests.
    unsubscribed: Vec<u64>,
    held_unsubscribe: Option<oneshot::Receiver<()>>,
}

/// The agent's side of an incoming connection.
pub(super) struct ClientConnection {
    pub(super) from_application: Body,
    pub(super) to_application: http2::BodySender,
}

impl FakeAgent {
    /// The context of a session that is connected to this agent.
    pub(super) async fn connect(&self) -> SessionContext {
        let agents = Agents::only(self.connection().await);
        let this = self.clone();
        let events = move |event: &Event| {
            if let Event::Incoming(event) = event {
                this.change(|state| state.emitted.push(event.clone()));
            }
        };
        SessionContext::new(agents, Arc::new(events))
    }

    pub(super) async fn connection(&self) -> AgentConnection {
        AgentConnection::new(self.client().await, &HelloResponse::default())
    }

    async fn client(&self) -> Client {
        let (near, far) = tokio::io::duplex(256 * 1024);
        let windows = Windows::default();
        let end = std::future::pending();
        tokio::spawn(http2::serve(far, windows, self.clone(), end));
        Client::start(near, windows).await.unwrap()
    }

    pub(super) fn refuse(&self, failure: Option<Failure>) {
        self.change(|state| state.refuse = failure);
    }

    /// Sets the sessions with earlier claims.
    pub(super) fn set_earlier(&self, earlier: Vec<EarlierSession>) {
        self.change(|state| state.earlier = earlier);
    }

    /// Sets the cookies of the sockets that listen on each port in the target's network.
    pub(super) fn set_listeners(&self, cookies: Vec<u64>, is_own_network: bool) {
        let network = match is_own_network {
            true => own_network().unwrap(),
            false => "another kernel net:[4026531840]".to_owned(),
        };
        self.change(|state| state.listeners = Some(PortListeners { cookies, network }));
    }

    pub(super) fn emit(&self, event: AgentEvent) {
        self.change(|state| {
            let event = SubscribeEvent { event: Some(event) };
            state.events.as_ref().unwrap().send(Ok(event)).unwrap();
        });
    }

    /// Ends the subscription as if the agent was lost.
    pub(super) fn fail_subscription(&self) {
        self.change(|state| {
            let events = state.events.take().unwrap();
            events.send(Err(Status::unavailable("gone"))).unwrap();
            state.accept_streams.clear();
        });
    }

    /// Passes a connection from a client to the session.
    pub(super) async fn incoming_connection(&self, meta: &ConnectionMeta) -> ClientConnection {
        let stream = self.until(|state| {
            // Streams of a lost link are not used.
            state
                .accept_streams
                .retain(|(_, _, response)| !response.is_closed());
            state.accept_streams.pop()
        });
        let (_, from_application, sender) = stream.await;
        let (to_application, body) = http2::body(4);
        let mut response = Response::new(body);
        *response.headers_mut() = meta.to_headers();
        sender.send(response).unwrap();
        ClientConnection {
            from_application,
            to_application,
        }
    }

    pub(super) async fn subscribed(&self, times: usize) -> SubscribeRequest {
        self.until(|state| {
            let is_reached = state.requests.len() == times;
            is_reached.then(|| state.requests.last().cloned()).flatten()
        })
        .await
    }

    /// Waits until the session has ended the subscription.
    pub(super) async fn unsubscribed(&self) {
        let events = self.until(|state| state.events.clone()).await;
        events.closed().await;
    }

    /// Delays the response to the next `Unsubscribe` request until the sender is used.
    pub(super) fn hold_unsubscribe(&self) -> oneshot::Sender<()> {
        let (sender, receiver) = oneshot::channel();
        self.change(|state| state.held_unsubscribe = Some(receiver));
        sender
    }

    /// Waits for an `Unsubscribe` request for this subscription.
    pub(super) async fn unsubscribe_requested(&self, subscription: u64) {
        self.until(|state| state.unsubscribed.contains(&subscription).then_some(()))
            .await;
    }

    pub(super) async fn accept_streams(&self, at_least: usize) -> usize {
        self.until(|state| Some(state.accept_streams.len()).filter(|count| *count >= at_least))
            .await
    }

    pub(super) async fn event_kind<T>(&self, pick: impl Fn(&IncomingEventKind) -> Option<T>) -> T {
        self.event(|event| pick(&event.kind)).await
    }

    pub(super) async fn event<T>(&self, pick: impl Fn(&IncomingEvent) -> Option<T>) -> T {
        self.until(|state| state.emitted.iter().find_map(&pick))
            .await
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.state.lock());
        self.changed.notify_waiters();
        result
    }

    async fn until<T>(&self, mut pick: impl FnMut(&mut State) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            if let Some(picked) = pick(&mut self.state.lock()) {
                return picked;
            }
            changed.await;
        }
    }
}

type Events = Pin<
    Box<dyn tonic::codegen::tokio_stream::Stream<Item = Result<SubscribeEvent, Status>> + Send>,
>;

#[tonic::async_trait]
impl Incoming for FakeAgent {
    type SubscribeStream = Events;

    async fn subscribe(
        &self,
        call: Call<SubscribeRequest>,
    ) -> Result<Reply<Self::SubscribeStream>, Status> {
        self.change(|state| {
            state.requests.push(call.into_inner());
            if let Some(failure) = &state.refuse {
                return Err(failure.to_status());
            }
            let (events, receiver) = mpsc::unbounded_channel();
            let first = AgentEvent::Subscribed(Subscribed {
                subscription: state.requests.len() as u64,
                earlier: state.earlier.clone(),
                listeners: state.listeners.clone(),
                ..Subscribed::default()
            });
            let first = SubscribeEvent { event: Some(first) };
            events.send(Ok(first)).unwrap();
            state.events = Some(events);
            let stream =
                tonic::codegen::tokio_stream::wrappers::UnboundedReceiverStream::new(receiver);
            Ok(Reply::new(Box::pin(stream) as Events))
        })
    }

    async fn unsubscribe(
        &self,
        call: Call<UnsubscribeRequest>,
    ) -> Result<Reply<UnsubscribeResponse>, Status> {
        let held = self.change(|state| {
            state.unsubscribed.push(call.into_inner().subscription);
            state.held_unsubscribe.take()
        });
        if let Some(held) = held {
            held.await.unwrap();
        }
        Ok(Reply::new(UnsubscribeResponse {}))
    }

    async fn report(&self, _: Call<ReportRequest>) -> Result<Reply<ReportResponse>, Status> {
        Err(Status::unimplemented("only agents report"))
    }
}

impl Service<Request<Body>> for FakeAgent {
    type Response = Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            if request.uri().path() != ACCEPT {
                return IncomingServer::new(this).call(request).await;
            }
            let accept = Accept::from_headers(request.headers()).unwrap();
            let (sender, receiver) = oneshot::channel();
            this.change(|state| {
                state
                    .accept_streams
                    .push((accept, request.into_body(), sender));
            });
            Ok(match receiver.await {
                Ok(response) => response.map(|body| {
                    tonic::body::Body::new(body.map_err(|error| Status::unknown(error.to_string())))
                }),
                Err(_) => {
                    let mut gone = Response::new(tonic::body::Body::empty());
                    *gone.status_mut() = http::StatusCode::GONE;
                    gone
                }
            })
        })
    }
}
