//! An agent that does what a test says, behind a real connection.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming as Body;
use link::http2::{self, Client, Windows};
use protocol::incoming::{ACCEPT, Accept, Arrived};
use protocol::rpc::incoming_server::{Incoming, IncomingServer};
use protocol::rpc::subscribe_event::Event as Happening;
use protocol::rpc::{
    EarlierSession, Failure, HelloResponse, ReportRequest, ReportResponse, SubscribeEvent,
    SubscribeRequest, Subscribed,
};
use tokio::sync::{Notify, mpsc, oneshot};
use tonic::{Request as Call, Response as Answer, Status};
use tower_service::Service;

use super::News;
use crate::agent::{Agent, Agents, Member};
use crate::event::{Event, IncomingEvent};

/// Clones are the same.
#[derive(Clone, Default)]
pub(super) struct FakeAgent {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
}

#[derive(Default)]
struct State {
    asked: Vec<SubscribeRequest>,
    refuse: Option<Failure>,
    earlier: Vec<EarlierSession>,
    events: Option<mpsc::UnboundedSender<Result<SubscribeEvent, Status>>>,
    waiting: Vec<(Accept, Body, oneshot::Sender<Response<http2::Sent>>)>,
    told: Vec<IncomingEvent>,
}

/// The agent's ends of a connection.
pub(super) struct Arriving {
    pub(super) from_application: Body,
    pub(super) to_application: http2::Sender,
}

impl FakeAgent {
    /// A session's agent, connected to this one.
    pub(super) async fn connect(&self) -> Agent {
        let agents = Agents::only(self.member().await);
        let news = self.clone();
        let tell = move |event: &Event| {
            if let Event::Incoming(event) = event {
                news.change(|state| state.told.push(event.clone()));
            }
        };
        Agent::new(agents, Arc::new(tell))
    }

    pub(super) async fn member(&self) -> Member {
        Member::new(self.client().await, &HelloResponse::default())
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

    /// Others are served first.
    pub(super) fn precede(&self, earlier: Vec<EarlierSession>) {
        self.change(|state| state.earlier = earlier);
    }

    pub(super) fn happen(&self, event: Happening) {
        self.change(|state| {
            let event = SubscribeEvent { event: Some(event) };
            state.events.as_ref().unwrap().send(Ok(event)).unwrap();
        });
    }

    /// Ends the subscription as a lost agent does.
    pub(super) fn break_off(&self) {
        self.change(|state| {
            let events = state.events.take().unwrap();
            events.send(Err(Status::unavailable("gone"))).unwrap();
            state.waiting.clear();
        });
    }

    /// A connection from a client.
    pub(super) async fn arrive(&self, arrived: &Arrived) -> Arriving {
        let waiting = self.until(|state| {
            // Those whose link is lost wait no more.
            state.waiting.retain(|(_, _, answer)| !answer.is_closed());
            state.waiting.pop()
        });
        let (_, from_application, answer) = waiting.await;
        let (to_application, body) = http2::body(4);
        let mut response = Response::new(body);
        *response.headers_mut() = arrived.to_headers();
        answer.send(response).unwrap();
        Arriving {
            from_application,
            to_application,
        }
    }

    pub(super) async fn subscribed(&self, times: usize) -> SubscribeRequest {
        self.until(|state| {
            let is_there = state.asked.len() == times;
            is_there.then(|| state.asked.last().cloned()).flatten()
        })
        .await
    }

    /// Waits until nobody wants the port any more.
    pub(super) async fn unsubscribed(&self) {
        let events = self.until(|state| state.events.clone()).await;
        events.closed().await;
    }

    pub(super) async fn waiting(&self, at_least: usize) -> usize {
        self.until(|state| Some(state.waiting.len()).filter(|count| *count >= at_least))
            .await
    }

    pub(super) async fn news<T>(&self, pick: impl Fn(&News) -> Option<T>) -> T {
        self.event(|event| pick(&event.news)).await
    }

    pub(super) async fn event<T>(&self, pick: impl Fn(&IncomingEvent) -> Option<T>) -> T {
        self.until(|state| state.told.iter().find_map(&pick)).await
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.state.lock().unwrap());
        self.changed.notify_waiters();
        result
    }

    async fn until<T>(&self, mut pick: impl FnMut(&mut State) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            if let Some(picked) = pick(&mut self.state.lock().unwrap()) {
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
    ) -> Result<Answer<Self::SubscribeStream>, Status> {
        self.change(|state| {
            state.asked.push(call.into_inner());
            if let Some(failure) = &state.refuse {
                return Err(failure.to_status());
            }
            let (events, receiver) = mpsc::unbounded_channel();
            let first = Happening::Subscribed(Subscribed {
                subscription: state.asked.len() as u64,
                earlier: state.earlier.clone(),
                ..Subscribed::default()
            });
            let first = SubscribeEvent { event: Some(first) };
            events.send(Ok(first)).unwrap();
            state.events = Some(events);
            let stream =
                tonic::codegen::tokio_stream::wrappers::UnboundedReceiverStream::new(receiver);
            Ok(Answer::new(Box::pin(stream) as Events))
        })
    }

    async fn report(&self, _: Call<ReportRequest>) -> Result<Answer<ReportResponse>, Status> {
        Err(Status::unimplemented("agents report, and sessions do not"))
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
            let (answer, answered) = oneshot::channel();
            this.change(|state| state.waiting.push((accept, request.into_body(), answer)));
            Ok(match answered.await {
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
