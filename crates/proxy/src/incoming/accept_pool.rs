//! The accept pool: streams that wait at the agent for connections, and the delivery of these connections.
//!
//! Several streams wait at a time, so that a connection does not have to wait for a round trip. Their number follows the rate
//! of connections.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::BodyExt as _;
use hyper::body::Incoming as Body;
use link::http2::{self, Client};
use protocol::incoming::{ACCEPT, ACCEPTED, Accept, ConnectionMeta};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::app_listeners::AppListeners;
use super::datagrams;
use super::tls::TlsDelivery;
use crate::agent::AgentConnection;
use crate::event::{Event, EventSink};
use crate::monitor::IncomingAttempt;
use crate::stream::{self, ApplicationBody, LocalStream};

/// How long an agent may take to notice that a connection was refused.
const REFUSE_TIMEOUT: Duration = Duration::from_secs(5);
const MIN_STREAMS: usize = 4;
const MAX_STREAMS: usize = 128;

/// The streams that wait for connections of one subscription.
pub(super) struct AcceptPool {
    agent: AgentConnection,
    events: EventSink,
    accept: Accept,
    is_udp: bool,
    streams: JoinSet<Option<StolenConnection>>,
    /// The intended number of waiting streams.
    size: usize,
    accepted_since_adjust: usize,
    /// A stream failed or could not be opened. No more are opened until the next adjustment.
    is_paused: bool,
}

/// An incoming connection, stolen or mirrored, before it is delivered to the application. Dropping it refuses it.
#[derive(Debug)]
pub(super) struct StolenConnection {
    pub(super) meta: ConnectionMeta,
    from_client: Body,
    to_client: ToClient,
    permit: OwnedSemaphorePermit,
}

/// Where the application's bytes are sent.
#[derive(Debug)]
enum ToClient {
    Stream(oneshot::Sender<Arc<LocalStream>>),
    Datagrams(http2::BodySender),
}

impl AcceptPool {
    pub(super) fn new(
        agent: AgentConnection,
        events: EventSink,
        subscription: u64,
        is_udp: bool,
    ) -> Self {
        Self {
            agent,
            events,
            accept: Accept { subscription },
            is_udp,
            streams: JoinSet::new(),
            size: MIN_STREAMS,
            accepted_since_adjust: 0,
            is_paused: false,
        }
    }

    /// Waits for the next connection. Cancel-safe.
    pub(super) async fn next(&mut self) -> StolenConnection {
        loop {
            while self.streams.len() < self.size && !self.is_paused {
                let Some(permit) = self.agent.connections.try_acquire() else {
                    let max = self.agent.connections.max;
                    (self.events)(&Event::TooManyConnections(max));
                    self.is_paused = true;
                    break;
                };
                let client = self.agent.client.clone();
                let accepting = accept_stream(client, self.accept, self.is_udp, permit);
                self.streams.spawn(accepting);
            }
            match self.streams.join_next().await {
                Some(Ok(Some(connection))) => {
                    self.accepted_since_adjust += 1;
                    if self.accepted_since_adjust > self.size {
                        self.size = (self.size * 2).min(MAX_STREAMS);
                    }
                    return connection;
                }
                // The subscription has ended, which its event stream reports, or the agent is overloaded: then more streams
                // are opened after the next adjustment.
                Some(_) => self.is_paused = true,
                None => std::future::pending().await,
            }
        }
    }

    /// Called at intervals: shrinks the pool when fewer connections are accepted.
    pub(super) fn adjust(&mut self) {
        self.is_paused = false;
        if self.accepted_since_adjust < self.size / 4 {
            self.size = (self.size / 2).max(MIN_STREAMS);
        }
        self.accepted_since_adjust = 0;
    }
}

/// Opens one stream and waits until the agent passes a connection on it.
async fn accept_stream(
    mut client: Client,
    accept: Accept,
    is_udp: bool,
    permit: OwnedSemaphorePermit,
) -> Option<StolenConnection> {
    let accepted = Bytes::from_static(&[ACCEPTED]);
    let (to_client, response) = if is_udp {
        let (sender, body) = http2::body(datagrams::MAX_QUEUED);
        let response = client.send(request(accept, body)?);
        (ToClient::Datagrams(sender), response)
    } else {
        let (stream, body) = ApplicationBody::with_prefix(accepted);
        let response = client.send(request(accept, body)?);
        (ToClient::Stream(stream), response)
    };
    let response = response
        .await
        .inspect_err(|error| tracing::debug!(%error, "accept stream ended"))
        .ok()
        .filter(|response| response.status().is_success())?;
    let meta = ConnectionMeta::from_headers(response.headers())
        .inspect_err(|error| tracing::warn!(%error, "connection without metadata"))
        .ok()?;
    Some(StolenConnection {
        meta,
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

impl StolenConnection {
    /// Delivers the connection to the application and copies its bytes to the end.
    pub(super) async fn deliver(
        self,
        listeners: Arc<AppListeners>,
        tls: Option<Arc<TlsDelivery>>,
        accept_timeout: Duration,
        attempt: IncomingAttempt,
    ) {
        let Self {
            meta,
            from_client,
            to_client,
            permit: _permit,
        } = self;
        match to_client {
            ToClient::Datagrams(sender) => {
                let ConnectionMeta { client, server, .. } = meta;
                datagrams::relay(&listeners, client, server, sender, from_client, attempt).await;
            }
            ToClient::Stream(to_client) => match connect(&meta, &listeners, tls).await {
                Some(stream) => {
                    let stream = stream.with_traffic(attempt.accepted());
                    let stream = Arc::new(match meta.is_mirrored {
                        true => stream.discarding_input(),
                        false => stream,
                    });
                    if to_client.send(Arc::clone(&stream)).is_ok() {
                        copy_to_application(stream, from_client, accept_timeout).await;
                    }
                }
                None => {
                    attempt.refused();
                    drop(to_client);
                    refuse(from_client).await;
                }
            },
        }
    }
}

/// Copies the client's bytes to the application. An application that is stopped or stuck does not accept the connection:
/// then the connection is reset, so that the agent routes it elsewhere. An accepted connection may be silent for any time.
async fn copy_to_application(
    stream: Arc<LocalStream>,
    from_client: Body,
    accept_timeout: Duration,
) {
    let mut copying = pin!(stream::copy_to_application(
        Arc::clone(&stream),
        from_client
    ));
    if timeout(accept_timeout, &mut copying).await.is_ok() {
        return;
    }
    if !stream.is_accepted() {
        return stream.reset();
    }
    // Only the reference of the copying future is needed from here on.
    drop(stream);
    copying.await;
}

/// Connects to the application, with TLS if the settings say so.
async fn connect(
    meta: &ConnectionMeta,
    listeners: &AppListeners,
    tls: Option<Arc<TlsDelivery>>,
) -> Option<LocalStream> {
    let stream = listeners.connect(meta.client, meta.server).await?;
    let Some((client_tls, tls)) = meta.tls.as_ref().zip(tls) else {
        return Some(stream);
    };
    tls.wrap(stream, client_tls)
        .await
        .inspect_err(|error| tracing::warn!(%error, "TLS handshake with application failed"))
        .ok()
}

/// Refuses a connection. The end of the request body signals it to the agent, which needs time to see it: closing the stream
/// at once would be a reset.
pub(super) async fn refuse(mut from_client: Body) {
    let rest = async { while let Some(Ok(_)) = from_client.frame().await {} };
    let _ = timeout(REFUSE_TIMEOUT, rest).await;
}
