//! The socket of a session, and what it answers.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http_body_util::channel::{Channel, Sender};
use monitor::stream;
use monitor::{Counters, Level};
use proxy::{Batch, Subscription};
use serde_json::json;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::time::{interval, sleep};

use super::Watched;
use crate::api::folder::Folder;

/// Events that come quickly are sent together, which costs less for both sides.
const TOGETHER: Duration = Duration::from_millis(25);
const COUNT_EVERY: Duration = Duration::from_secs(1);
/// Pieces that may wait for a listener. Meanwhile its events wait in the session's ring.
const PIECES: usize = 2;

/// The socket's file, which goes with this.
#[derive(Debug)]
pub(super) struct Socket(PathBuf);

impl Socket {
    pub(super) fn open(folder: &Folder, id: &str) -> Result<(Self, UnixListener)> {
        folder.make()?;
        let path = folder.socket(id);
        // It gets its name when it is ready: one that does not answer is taken for one that nobody has any more.
        let nameless = Self(path.with_extension("new"));
        let listener =
            UnixListener::bind(&nameless.0).with_context(|| path.display().to_string())?;
        fs::set_permissions(&nameless.0, Permissions::from_mode(0o600))?;
        fs::rename(&nameless.0, &path)?;
        Ok((Self(path), listener))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Serves on the runtime, as long as that lives.
pub(super) fn serve(watched: Arc<Watched>, listener: UnixListener) {
    let router = Router::new()
        .route("/health", get(health))
        .route("/info", get(info))
        .route("/state", get(state))
        .route("/config", get(config))
        .route("/events", get(events))
        .route("/kill", post(kill))
        .with_state(watched);
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::warn!(%error, "the session's socket has failed");
        }
    });
}

type Session = State<Arc<Watched>>;

async fn health(State(watched): Session) -> Response {
    Json(watched.monitor.health()).into_response()
}

async fn info(State(watched): Session) -> Response {
    Json(watched.info()).into_response()
}

async fn state(State(watched): Session) -> Response {
    Json(watched.monitor.state()).into_response()
}

async fn config(State(watched): Session) -> Response {
    Json(&watched.config).into_response()
}

async fn kill(State(watched): Session) -> Response {
    if watched.program.get().is_none() {
        let message = json!({"error": "the program has not started yet"});
        return (StatusCode::SERVICE_UNAVAILABLE, Json(message)).into_response();
    }
    let text = "the session is ended from outside";
    watched.monitor.notice(Level::Warning, text);
    watched.progress.report(text);
    tokio::spawn(async move {
        if let Some(program) = watched.program.get() {
            program.end().await;
        }
    });
    (StatusCode::ACCEPTED, Json(json!({"status": "ending"}))).into_response()
}

async fn events(State(watched): Session, headers: HeaderMap) -> Response {
    let after = headers
        .get("last-event-id")
        .and_then(|value| value.to_str().ok()?.parse().ok());
    let Some(subscription) = watched.monitor.subscribe(after) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let (sender, body) = Channel::<Bytes>::new(PIECES);
    let over = watched.over.subscribe();
    tokio::spawn(tell(watched, subscription, sender, over));
    let kind = (header::CONTENT_TYPE, "text/event-stream");
    let cache = (header::CACHE_CONTROL, "no-store");
    ([kind, cache], Body::new(body)).into_response()
}

/// Sends what is new, until the listener goes or the session is over.
async fn tell(
    watched: Arc<Watched>,
    mut events: Subscription,
    mut listener: Sender<Bytes>,
    mut over: watch::Receiver<bool>,
) {
    let mut count = interval(COUNT_EVERY);
    let mut counters = None;
    loop {
        let mut sent = Vec::new();
        let is_over = tokio::select! {
            batch = events.next() => {
                write(batch, &mut sent);
                false
            }
            _ = count.tick() => {
                write_counters(watched.monitor.counters(), &mut counters, &mut sent);
                false
            }
            _ = over.wait_for(|over| *over) => {
                while let Some(batch) = events.take() {
                    write(batch, &mut sent);
                }
                write_counters(watched.monitor.counters(), &mut counters, &mut sent);
                true
            }
        };
        if listener.send_data(sent.into()).await.is_err() || is_over {
            return;
        }
        sleep(TOGETHER).await;
    }
}

fn write(batch: Batch, sent: &mut Vec<u8>) {
    if batch.missed > 0 {
        stream::write_missed(batch.missed, sent);
    }
    for entry in batch.entries {
        stream::write_event(&entry, sent);
    }
}

/// Only those that have changed; otherwise a word that keeps the connection from looking dead.
fn write_counters(now: Counters, before: &mut Option<Counters>, sent: &mut Vec<u8>) {
    if before.as_ref() == Some(&now) {
        sent.extend_from_slice(b": \n\n");
    } else {
        stream::write_counters(&now, sent);
        *before = Some(now);
    }
}
