//! The event stream to a browser: the current sessions, and all later messages.
//!
//! A browser that reconnects sends the numbers of its last events (`?after=<session>:<number>,…`), and gets the events after
//! them, none twice. A browser that reads too slowly is resynchronized in the same way.

use std::sync::Arc;

use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use tokio::sync::broadcast::error::RecvError;

use super::Shared;
use super::hub::{Cursors, Hub, UiMessage};

#[derive(Debug, Deserialize)]
pub(super) struct StreamQuery {
    #[serde(default)]
    after: String,
}

pub(super) async fn all(
    State(shared): State<Shared>,
    Query(query): Query<StreamQuery>,
    upgrade: WebSocketUpgrade,
) -> Response {
    upgrade.on_upgrade(move |socket| serve(socket, shared.hub, cursors(&query.after), None))
}

pub(super) async fn one(
    State(shared): State<Shared>,
    Path(id): Path<String>,
    Query(query): Query<StreamQuery>,
    upgrade: WebSocketUpgrade,
) -> Response {
    if shared.hub.find(&id).is_none() {
        return StatusCode::NOT_FOUND.into_response();
    }
    upgrade.on_upgrade(move |socket| serve(socket, shared.hub, cursors(&query.after), Some(id)))
}

fn cursors(after: &str) -> Cursors {
    let parts = after.split(',').filter_map(|part| part.split_once(':'));
    parts
        .filter_map(|(id, number)| Some((id.to_owned(), number.parse().ok()?)))
        .collect()
}

async fn serve(mut socket: WebSocket, hub: Arc<Hub>, mut cursors: Cursors, only: Option<String>) {
    loop {
        let (messages, mut later) = hub.subscribe(&mut cursors, only.as_deref());
        for message in messages {
            if send(&mut socket, &message).await.is_err() {
                return;
            }
        }
        loop {
            let received = tokio::select! {
                received = later.recv() => received,
                // Messages of a browser are ignored, except its end.
                message = socket.recv() => match message {
                    Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                    Some(Ok(_)) => continue,
                },
            };
            match received {
                Ok(message) => {
                    if is_new(&message, &mut cursors, only.as_deref())
                        && send(&mut socket, &message).await.is_err()
                    {
                        return;
                    }
                }
                Err(RecvError::Lagged(_)) => break,
                Err(RecvError::Closed) => return,
            }
        }
    }
}

/// Whether a browser has subscribed to a message and has not received it.
fn is_new(message: &UiMessage, cursors: &mut Cursors, only: Option<&str>) -> bool {
    let session = message.session();
    if only.is_some() && session != only {
        return false;
    }
    if let UiMessage::Event { session_id, data } = message {
        let last = cursors.entry(session_id.clone()).or_default();
        if data.seq <= *last {
            return false;
        }
        *last = data.seq;
    }
    true
}

async fn send(socket: &mut WebSocket, message: &UiMessage) -> Result<(), axum::Error> {
    let text = serde_json::to_string(message).map_err(axum::Error::new)?;
    socket.send(Message::text(text)).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use monitor::{Entry, Event, Level};

    fn event(seq: u64) -> UiMessage {
        UiMessage::Event {
            session_id: "a".to_owned(),
            data: Arc::new(Entry {
                seq,
                time: 0,
                event: Event::Notice {
                    level: Level::Info,
                    text: String::new(),
                },
            }),
        }
    }

    #[test]
    fn no_event_is_sent_twice() {
        let mut cursors = cursors("a:3,nonsense,b:x");
        assert_eq!(cursors.len(), 1);
        assert!(!is_new(&event(3), &mut cursors, None));
        assert!(is_new(&event(4), &mut cursors, None));
        assert!(!is_new(&event(4), &mut cursors, None));
        assert!(!is_new(&event(5), &mut cursors, Some("b")));
        assert!(is_new(&event(5), &mut cursors, Some("a")));
    }
}
