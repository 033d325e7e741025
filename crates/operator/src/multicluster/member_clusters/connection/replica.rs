//! A connection to one replica of a member's operator, for one client's session.

use std::io;
use std::pin::pin;

use api::connect::{AgentEndpoints, SESSION_ENDED};
use link::channels::{Channels, Event};
use link::websocket::WebSocketStream;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use crate::multicluster::bounds;

/// Why a member is not connected.
#[derive(Debug)]
pub(super) struct Disconnected {
    pub(super) text: String,
    /// The member's session has ended, so it has no agents either.
    pub(super) session_ended: bool,
}

impl Disconnected {
    pub(super) fn temporary(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            session_ended: false,
        }
    }
}

/// An event of the connection.
#[derive(Debug)]
pub(super) enum MemberEvent {
    Endpoints(AgentEndpoints),
    /// The connection is closed. No event follows.
    Closed(Disconnected),
}

/// The connection. Dropping it closes it.
#[derive(Debug)]
pub(super) struct ReplicaConnection {
    pub(super) channels: Channels,
    events: mpsc::UnboundedReceiver<Event>,
    driver: AbortOnDropHandle<io::Result<()>>,
    /// Why the session has ended, if the member has sent a reason.
    ended: Option<String>,
}

impl ReplicaConnection {
    pub(super) fn over<S>(socket: WebSocketStream<S>) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (channels, events, driver) = Channels::over(socket);
        Self {
            channels,
            events,
            driver: AbortOnDropHandle::new(tokio::spawn(driver)),
            ended: None,
        }
    }

    /// The next event. It is cancel safe. It must not be called after [`MemberEvent::Closed`].
    pub(super) async fn next(&mut self) -> MemberEvent {
        loop {
            let event = tokio::select! {
                // Received messages are delivered before the end of the connection.
                biased;
                event = self.events.recv() => event,
                ended = &mut self.driver => return MemberEvent::Closed(lost(ended)),
            };
            match event {
                Some(Event::Message(message)) => {
                    if let Ok(endpoints) = serde_json::from_slice(&message) {
                        let endpoints = bounds::endpoints(endpoints);
                        self.ended.clone_from(&endpoints.ended);
                        return MemberEvent::Endpoints(endpoints);
                    }
                }
                Some(Event::Closed(text)) => {
                    let session_ended = text == SESSION_ENDED;
                    return MemberEvent::Closed(Disconnected {
                        text: self.ended.take().unwrap_or_else(|| bounds::text(&text)),
                        session_ended,
                    });
                }
                Some(Event::Opened { .. } | Event::Finished) => {}
                None => return MemberEvent::Closed(lost((&mut self.driver).await)),
            }
        }
    }

    /// Waits until the connection is closed, and ignores all events before.
    pub(super) async fn closed(&mut self) -> Disconnected {
        loop {
            if let MemberEvent::Closed(reason) = self.next().await {
                return reason;
            }
        }
    }

    /// Keeps the connection open until all of its channels are closed, or it is closed.
    pub(super) async fn drain(mut self) {
        let channels = self.channels.clone();
        let unused = pin!(channels.all_released());
        tokio::select! {
            () = unused => {}
            _ = self.closed() => {}
        }
    }
}

fn lost(ended: Result<io::Result<()>, tokio::task::JoinError>) -> Disconnected {
    match ended {
        Ok(Err(error)) => Disconnected::temporary(format!("the connection is lost: {error}")),
        Ok(Ok(())) | Err(_) => Disconnected::temporary("the connection has ended"),
    }
}
