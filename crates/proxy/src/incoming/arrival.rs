//! Streams that wait at the agent for connections, and what becomes of those.
//!
//! Several wait at a time, so that a connection need not wait for the way there and back. How many follows from how many
//! connections come.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::BodyExt as _;
use hyper::body::Incoming as Body;
use link::http2::{self, Client};
use protocol::incoming::{ACCEPT, Accept, Arrived, TAKEN};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::datagrams;
use super::doors::Doors;
use super::tls::TlsDelivery;
use crate::agent::Member;
use crate::event::{Event, Tell};
use crate::monitor::Arriving;
use crate::stream::{self, FromApplication, LocalStream};

/// How long an agent may take to see that a connection was refused.
const PATIENCE: Duration = Duration::from_secs(5);
const FEWEST: usize = 4;
const MOST: usize = 128;

/// Streams that wait for one subscription.
pub(super) struct Waiting {
    agent: Member,
    tell: Tell,
    accept: Accept,
    is_udp: bool,
    streams: JoinSet<Option<Arrival>>,
    wanted: usize,
    since_look: usize,
    has_failed: bool,
}

/// A connection that has come, and that the application does not have yet. To drop it is to refuse it.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) arrived: Arrived,
    from_client: Body,
    to_client: ToClient,
    permit: OwnedSemaphorePermit,
}

/// Where the application's bytes are put.
#[derive(Debug)]
enum ToClient {
    Stream(oneshot::Sender<Arc<LocalStream>>),
    Datagrams(http2::Sender),
}

impl Waiting {
    pub(super) fn new(agent: Member, tell: Tell, subscription: u64, is_udp: bool) -> Self {
        Self {
            agent,
            tell,
            accept: Accept { subscription },
            is_udp,
            streams: JoinSet::new(),
            wanted: FEWEST,
            since_look: 0,
            has_failed: false,
        }
    }

    /// The next connection. Safe to be given up and called again.
    pub(super) async fn next(&mut self) -> Arrival {
        loop {
            while self.streams.len() < self.wanted && !self.has_failed {
                let Some(permit) = self.agent.connections.take() else {
                    let most = self.agent.connections.most;
                    (self.tell)(&Event::TooManyConnections(most));
                    self.has_failed = true;
                    break;
                };
                let client = self.agent.client.clone();
                let waiting = wait(client, self.accept, self.is_udp, permit);
                self.streams.spawn(waiting);
            }
            match self.streams.join_next().await {
                Some(Ok(Some(arrival))) => {
                    self.since_look += 1;
                    if self.since_look > self.wanted {
                        self.wanted = (self.wanted * 2).min(MOST);
                    }
                    return arrival;
                }
                // The subscription has ended, which is told elsewhere, or there is too much to do: then there are more after
                // a while.
                Some(_) => self.has_failed = true,
                None => std::future::pending().await,
            }
        }
    }

    /// Called now and then: fewer have to wait when fewer come.
    pub(super) fn look(&mut self) {
        self.has_failed = false;
        if self.since_look < self.wanted / 4 {
            self.wanted = (self.wanted / 2).max(FEWEST);
        }
        self.since_look = 0;
    }
}

async fn wait(
    mut client: Client,
    accept: Accept,
    is_udp: bool,
    permit: OwnedSemaphorePermit,
) -> Option<Arrival> {
    let taken = Bytes::from_static(&[TAKEN]);
    let (to_client, response) = if is_udp {
        let (sender, body) = http2::body(datagrams::PARTS);
        let response = client.send(request(accept, body)?);
        (ToClient::Datagrams(sender), response)
    } else {
        let (stream, body) = FromApplication::after(taken);
        let response = client.send(request(accept, body)?);
        (ToClient::Stream(stream), response)
    };
    let response = response
        .await
        .inspect_err(|error| tracing::debug!(%error, "a waiting stream ended"))
        .ok()
        .filter(|response| response.status().is_success())?;
    let arrived = Arrived::from_headers(response.headers())
        .inspect_err(
            |error| tracing::warn!(%error, "the agent sent a connection without addresses"),
        )
        .ok()?;
    Some(Arrival {
        arrived,
        from_client: response.into_body(),
        to_client,
        permit,
    })
}

fn request<B>(accept: Accept, body: B) -> Option<Request<B>> {
    let mut request = Request::post(ACCEPT).body(body).ok()?;
    request.headers_mut().extend(accept.to_headers());
    Some(request)
}

impl Arrival {
    /// Brings the connection to the application, and carries it to its end.
    pub(super) async fn hand_over(
        self,
        doors: Arc<Doors>,
        tls: Option<Arc<TlsDelivery>>,
        accept_within: Duration,
        arriving: Arriving,
    ) {
        let Self {
            arrived,
            from_client,
            to_client,
            permit: _permit,
        } = self;
        match to_client {
            ToClient::Datagrams(sender) => {
                let Arrived { client, server, .. } = arrived;
                datagrams::carry(&doors, client, server, sender, from_client, arriving).await;
            }
            ToClient::Stream(to_client) => match connect(&arrived, &doors, tls).await {
                Some(stream) => {
                    let stream = stream.watched(arriving.accepted());
                    let stream = Arc::new(match arrived.is_copy {
                        true => stream.unheard(),
                        false => stream,
                    });
                    if to_client.send(Arc::clone(&stream)).is_ok() {
                        carry(stream, from_client, accept_within).await;
                    }
                }
                None => {
                    arriving.refused();
                    drop(to_client);
                    refuse(from_client).await;
                }
            },
        }
    }
}

/// Carries what the client sends. An application that is stopped, or stuck, has not even accepted the connection: then it is
/// broken off, so that the agent gives it to somebody else. One that was accepted may be silent for as long as it likes.
async fn carry(stream: Arc<LocalStream>, from_client: Body, accept_within: Duration) {
    let mut carrying = pin!(stream::to_application(Arc::clone(&stream), from_client));
    if timeout(accept_within, &mut carrying).await.is_ok() {
        return;
    }
    if !stream.is_accepted() {
        return stream.give_up();
    }
    // Only the one has to live on.
    drop(stream);
    carrying.await;
}

/// A connection to the application, as it wants it.
async fn connect(
    arrived: &Arrived,
    doors: &Doors,
    tls: Option<Arc<TlsDelivery>>,
) -> Option<LocalStream> {
    let stream = doors.connect(arrived.client, arrived.server).await?;
    let Some((asked, tls)) = arrived.tls.as_ref().zip(tls) else {
        return Some(stream);
    };
    tls.wrap(stream, asked)
        .await
        .inspect_err(
            |error| tracing::warn!(%error, "the application did not take a connection with TLS"),
        )
        .ok()
}

/// The agent is told by the end of what we send. It is given time for that: to close at once would be a reset.
pub(super) async fn refuse(mut from_client: Body) {
    let rest = async { while let Some(Ok(_)) = from_client.frame().await {} };
    let _ = timeout(PATIENCE, rest).await;
}
