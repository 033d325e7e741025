//! The requests with which a session waits for connections. To the splitter, the queue is the session.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::Response;
use hyper::body::Incoming;
use protocol::incoming::{Arrived, ArrivedTls};
use splitter::{Arrival, Away, BoxFuture, BoxStream, Destination};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::time::sleep;
use tonic::body::Body;

use super::reachable::Reachable;
use super::stream::SessionStream;
use crate::connection::succeeded;
use crate::{Error, Result};

/// How long a connection waits for the session to ask for one more.
const ASKS_WITHIN: Duration = Duration::from_secs(5);
/// As many requests that were given up may be in the queue before it is cleaned.
const GIVEN_UP: usize = 64;

/// The requests with which a session waits for connections.
pub(super) struct Queue {
    waiting: Mutex<VecDeque<Waiting>>,
    /// At least as many as wait: some may have been given up.
    available: Semaphore,
    has_ended: watch::Sender<bool>,
    reachable: Reachable,
}

struct Waiting {
    from_session: Incoming,
    answer: oneshot::Sender<Response<Body>>,
}

impl Queue {
    pub(super) fn new(reachable: Reachable) -> Self {
        Self {
            reachable,
            waiting: Mutex::default(),
            available: Semaphore::new(0),
            has_ended: watch::Sender::new(false),
        }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.waiting().len();
        formatter.debug_tuple("Queue").field(&waiting).finish()
    }
}

impl Queue {
    fn waiting(&self) -> MutexGuard<'_, VecDeque<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is a connection, and answers with it.
    pub(super) async fn wait(&self, from_session: Incoming) -> Result<Response<Body>> {
        let (answer, answered) = oneshot::channel();
        {
            let mut waiting = self.waiting();
            if self.available.is_closed() {
                return Err(Error::SubscriptionEnded);
            }
            if waiting.len() >= GIVEN_UP {
                waiting.retain(|waiting| !waiting.answer.is_closed());
            }
            waiting.push_back(Waiting {
                from_session,
                answer,
            });
        }
        self.available.add_permits(1);
        answered.await.map_err(|_| Error::SubscriptionEnded)
    }

    /// No connection comes any more.
    pub(super) fn end(&self) {
        let mut waiting = self.waiting();
        self.available.close();
        waiting.clear();
        self.has_ended.send_replace(true);
    }

    pub(super) fn has_ended(&self) -> bool {
        *self.has_ended.borrow()
    }

    /// Waits until no connection comes any more.
    pub(super) async fn ended(&self) {
        let mut has_ended = self.has_ended.subscribe();
        // It lives as long as this does.
        let _ = has_ended.wait_for(|ended| *ended).await;
    }

    async fn offer(&self, arrived: &Arrived) -> io::Result<SessionStream> {
        loop {
            let permit = self.available.acquire().await;
            permit.map_err(io::Error::other)?.forget();
            let Some(waiting) = self.waiting().pop_front() else {
                continue;
            };
            let (stream, body) = SessionStream::new(waiting.from_session, &self.reachable);
            let response = succeeded(arrived.to_headers(), Body::new(body));
            // Otherwise the session has given it up.
            if waiting.answer.send(response).is_ok() {
                return Ok(stream);
            }
        }
    }

    /// Gives the session a connection.
    pub(super) async fn open(&self, arrival: &Arrival) -> io::Result<SessionStream> {
        self.give(&arrived(arrival)).await
    }

    async fn give(&self, arrived: &Arrived) -> io::Result<SessionStream> {
        if !self.reachable.is_so() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        tokio::select! {
            biased;
            offered = self.offer(arrived) => offered,
            () = self.reachable.clone().lost() => Err(io::ErrorKind::NotConnected.into()),
            () = sleep(ASKS_WITHIN) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

impl Destination for Queue {
    fn open<'a>(&'a self, arrival: &'a Arrival) -> BoxFuture<'a, io::Result<BoxStream>> {
        Box::pin(async move {
            let stream = Queue::open(self, arrival).await?;
            Ok(Box::new(stream) as BoxStream)
        })
    }

    fn open_copy<'a>(&'a self, arrival: &'a Arrival) -> BoxFuture<'a, io::Result<BoxStream>> {
        Box::pin(async move {
            let copy = Arrived {
                is_copy: true,
                ..arrived(arrival)
            };
            Ok(Box::new(self.give(&copy).await?) as BoxStream)
        })
    }

    fn away(&self) -> Option<Away> {
        self.reachable.away()
    }
}

fn arrived(arrival: &Arrival) -> Arrived {
    Arrived {
        client: arrival.client,
        server: arrival.server,
        tls: arrival.tls.as_ref().map(|facts| ArrivedTls {
            server_name: facts.server_name.clone(),
            application_protocol: facts.application_protocol.clone(),
        }),
        is_copy: false,
    }
}
