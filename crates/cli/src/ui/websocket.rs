//! The stream to a browser: what there is, and what happens from then on.
//!
//! A browser that comes back says what it has (`?after=<session>:<number>,…`), and gets the rest, nothing twice. One that
//! does not read quickly enough is brought up to date in the same way.

use std::sync::Arc;

use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use tokio::sync::broadcast::error::RecvError;

use super::Shared;
use super::hub::{Cursors, Hub, News};

#[derive(Debug, Deserialize)]
pub(super) struct Wishes {
    #[serde(default)]
    after: String,
}

pub(super) async fn all(
    State(shared): State<Shared>,
    Query(wishes): Query<Wishes>,
    upgrade: WebSocketUpgrade,
) -> Response {
    upgrade.on_upgrade(move |socket| serve(socket, shared.hub, cursors(&wishes.after), None))
}

pub(super) async fn one(
    State(shared): State<Shared>,
    Path(id): Path<String>,
    Query(wishes): Query<Wishes>,
    upgrade: WebSocketUpgrade,
) -> Response {
    if shared.hub.find(&id).is_none() {
        return StatusCode::NOT_FOUND.into_response();
    }
    upgrade.on_upgrade(move |socket| serve(socket, shared.hub, cursors(&wishes.after), Some(id)))
}

fn cursors(after: &str) -> Cursors {
    let parts = after.split(',').filter_map(|part| part.split_once(':'));
    parts
        .filter_map(|(id, number)| Some((id.to_owned(), number.parse().ok()?)))
        .collect()
}

async fn serve(mut socket: WebSocket, hub: Arc<Hub>, mut cursors: Cursors, only: Option<String>) {
    loop {
        let (news, mut later) = hub.subscribe(&mut cursors, only.as_deref());
        for news in news {
            if send(&mut socket, &news).await.is_err() {
                return;
            }
        }
        loop {
            let received = tokio::select! {
                received = later.recv() => received,
                // A browser says nothing that matters but its end.
                said = socket.recv() => match said {
                    Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                    Some(Ok(_)) => continue,
                },
            };
            match received {
                Ok(news) => {
                    if is_new(&news, &mut cursors, only.as_deref())
                        && send(&mut socket, &news).await.is_err()
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

/// Whether a browser wants something and does not have it.
fn is_new(news: &News, cursors: &mut Cursors, only: Option<&str>) -> bool {
    let session = news.session();
    if only.is_some() && session != only {
        return false;
    }
    if let News::Event { session_id, data } = news {
        let last = cursors.entry(session_id.clone()).or_default();
        if data.seq <= *last {
            return false;
        }
        *last = data.seq;
    }
    true
}

async fn send(socket: &mut WebSocket, news: &News) -> Result<(), axum::Error> {
    let text = serde_json::to_string(news).map_err(axum::Error::new)?;
    socket.send(Message::text(text)).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use monitor::{Entry, Event, Level};

    fn event(seq: u64) -> News {
        News::Event {
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
    fn nothing_is_sent_twice() {
        let mut cursors = cursors("a:3,nonsense,b:x");
        assert_eq!(cursors.len(), 1);
        assert!(!is_new(&event(3), &mut cursors, None));
        assert!(is_new(&event(4), &mut cursors, None));
        assert!(!is_new(&event(4), &mut cursors, None));
        assert!(!is_new(&event(5), &mut cursors, Some("b")));
        assert!(is_new(&event(5), &mut cursors, Some("a")));
    }
}
