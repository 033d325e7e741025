//! The HTTP server on the socket of a session.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
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
use proxy::{EventBatch, EventSubscription, Remover};
use rustix::fs::{Mode, fchmod};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use serde_json::json;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::time::{interval, sleep};

use super::SessionContext;
use crate::api::folder::Folder;

/// Events within this interval are sent together, which costs less for both sides.
const BATCH_INTERVAL: Duration = Duration::from_millis(25);
const COUNTERS_INTERVAL: Duration = Duration::from_secs(1);
/// How many chunks are buffered for a subscriber. Further events wait in the session's ring buffer.
const MAX_BUFFERED_CHUNKS: usize = 2;

/// How many connections wait while the session is stopped. Further ones are refused at once.
const MAX_PENDING_CONNECTIONS: i32 = 64;

/// The socket's file, which is removed when this is dropped, or when this process is killed.
#[derive(Debug)]
pub(super) struct Socket {
    path: PathBuf,
    _remover: Option<Remover>,
}

impl Socket {
    pub(super) fn open(folder: &Folder, id: &str) -> Result<(Self, UnixListener)> {
        folder.create()?;
        let path = folder.socket(id);
        // The socket gets its final name when it is ready: a client would remove a socket that refuses connections as stale.
        let unready = path.with_extension("new");
        let remover = Remover::start([path.as_path(), &unready]);
        let remover = remover.inspect_err(|error| {
            tracing::debug!(%error, "no process that removes the socket");
        });
        let listener = open_listener(&unready).with_context(|| path.display().to_string())?;
        fs::rename(&unready, &path)?;
        let socket = Self {
            path,
            _remover: remover.ok(),
        };
        Ok((socket, listener))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn open_listener(path: &Path) -> io::Result<UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Before the socket has a name, so that no other user can ever connect.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, MAX_PENDING_CONNECTIONS)?;
    UnixListener::from_std(socket.into())
}

/// Serves in a task, as long as the runtime exists. The session continues if the server fails.
pub(super) fn serve(context: Arc<SessionContext>, listener: UnixListener) {
    let router = Router::new()
        .route("/health", get(health))
        .route("/info", get(info))
        .route("/state", get(state))
        .route("/config", get(config))
        .route("/events", get(events))
        .route("/kill", post(kill))
        .with_state(Arc::clone(&context));
    let server = async { axum::serve(listener, router).await };
    tokio::spawn(async move {
        if let Some(error) = failure(server).await {
            tracing::warn!(%error, "session socket failed");
            context.progress.report(&format!(
                "the socket of the session has failed, so `standin ui` cannot show it any more; the session continues: {error}"
            ));
        }
    });
}

/// Runs a server in a task of its own. Returns why it failed, also if it panicked.
async fn failure(server: impl Future<Output = io::Result<()>> + Send + 'static) -> Option<String> {
    match tokio::spawn(server).await {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.to_string()),
        // With the runtime.
        Err(error) if error.is_cancelled() => None,
        Err(error) => Some(error.to_string()),
    }
}

type Session = State<Arc<SessionContext>>;

async fn health(State(context): Session) -> Response {
    Json(context.monitor.health()).into_response()
}

async fn info(State(context): Session) -> Response {
    Json(context.info()).into_response()
}

async fn state(State(context): Session) -> Response {
    Json(context.monitor.state()).into_response()
}

async fn config(State(context): Session) -> Response {
    Json(&context.config).into_response()
}

async fn kill(State(context): Session) -> Response {
    if context.program.get().is_none() {
        let message = json!({"error": "the program has not started yet"});
        return (StatusCode::SERVICE_UNAVAILABLE, Json(message)).into_response();
    }
    let text = "the session is ended from outside";
    context.monitor.notice(Level::Warning, text);
    context.progress.report(text);
    tokio::spawn(async move {
        if let Some(program) = context.program.get() {
            program.end().await;
        }
    });
    (StatusCode::ACCEPTED, Json(json!({"status": "ending"}))).into_response()
}

async fn events(State(context): Session, headers: HeaderMap) -> Response {
    let after = headers
        .get("last-event-id")
        .and_then(|value| value.to_str().ok()?.parse().ok());
    let Some(subscription) = context.monitor.subscribe(after) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let (sender, body) = Channel::<Bytes>::new(MAX_BUFFERED_CHUNKS);
    let ended = context.ended.subscribe();
    tokio::spawn(send_events(context, subscription, sender, ended));
    let kind = (header::CONTENT_TYPE, "text/event-stream");
    let cache = (header::CACHE_CONTROL, "no-store");
    ([kind, cache], Body::new(body)).into_response()
}

/// Sends new events, until the subscriber disconnects or the session has ended.
async fn send_events(
    context: Arc<SessionContext>,
    mut events: EventSubscription,
    mut subscriber: Sender<Bytes>,
    mut ended: watch::Receiver<bool>,
) {
    let mut count = interval(COUNTERS_INTERVAL);
    let mut counters = None;
    loop {
        let mut chunk = Vec::new();
        let has_ended = tokio::select! {
            batch = events.next() => {
                write(batch, &mut chunk);
                false
            }
            _ = count.tick() => {
                write_counters(context.monitor.counters(), &mut counters, &mut chunk);
                false
            }
            _ = ended.wait_for(|ended| *ended) => {
                while let Some(batch) = events.take() {
                    write(batch, &mut chunk);
                }
                write_counters(context.monitor.counters(), &mut counters, &mut chunk);
                true
            }
        };
        if subscriber.send_data(chunk.into()).await.is_err() || has_ended {
            return;
        }
        sleep(BATCH_INTERVAL).await;
    }
}

fn write(batch: EventBatch, chunk: &mut Vec<u8>) {
    if batch.missed > 0 {
        stream::write_missed(batch.missed, chunk);
    }
    for entry in batch.entries {
        stream::write_event(&entry, chunk);
    }
}

/// Writes the counters if they have changed, and otherwise a comment that keeps the connection alive.
fn write_counters(now: Counters, before: &mut Option<Counters>, chunk: &mut Vec<u8>) {
    if before.as_ref() == Some(&now) {
        chunk.extend_from_slice(b": \n\n");
    } else {
        stream::write_counters(&now, chunk);
        *before = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use tokio::net::UnixStream;

    use super::*;

    #[tokio::test]
    async fn a_server_that_panics_is_a_reported_failure() {
        async fn panics() -> io::Result<()> {
            panic!("a bug")
        }
        assert!(failure(panics()).await.unwrap().contains("a bug"));
        let error = io::Error::from(io::ErrorKind::OutOfMemory);
        let fails = failure(std::future::ready(Err(error))).await;
        assert_eq!(fails.as_deref(), Some("out of memory"));
        assert_eq!(failure(async { Ok(()) }).await, None);
    }

    #[tokio::test]
    async fn a_socket_is_for_its_user_alone_and_removed_with_its_session() {
        let parent = tempfile::tempdir().unwrap();
        let folder = Folder::new(Some(parent.path())).unwrap();
        let (socket, _listener) = Socket::open(&folder, "a1").unwrap();
        let mode = fs::metadata(folder.socket("a1")).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
        // Nothing accepts, as in a session that was stopped.
        let mut connected = Vec::new();
        let refused = loop {
            match UnixStream::connect(folder.socket("a1")).await {
                Ok(stream) => connected.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        // The kernel's queue has room for one more.
        assert_eq!(connected.len(), MAX_PENDING_CONNECTIONS as usize + 1);
        drop(socket);
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }
}
