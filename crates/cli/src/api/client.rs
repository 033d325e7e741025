//! Sends requests to a session over its socket.

use std::error::Error;
use std::fmt;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use axum::body::Bytes;
use axum::http::{Request, header};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use monitor::stream::{Message, Reader};
use monitor::{ConfigValue, Health, SessionInfo, State, Status};
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::folder::{Folder, is_id};
use crate::process;

/// A session responds from memory, so this is generous.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
const UNPARSABLE: &str = "the session's response cannot be parsed";

/// One session, by its socket. Clones share what is known of it.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    id: String,
    socket: PathBuf,
    /// The process that listens, once there was a connection. A process that is known to be stopped gets no further
    /// connections, which it could not accept.
    process: Arc<AtomicU32>,
}

/// A session that exists and does not respond.
#[derive(Debug)]
pub(crate) struct NoResponse(String);

impl fmt::Display for NoResponse {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl Error for NoResponse {}

/// The stream of a session's events.
#[derive(Debug)]
pub(crate) struct Events {
    body: Incoming,
    reader: Reader,
}

impl Client {
    pub(crate) fn new(folder: &Folder, id: &str) -> Result<Self> {
        ensure!(is_id(id), "`{id}` is not a session id");
        Ok(Self {
            id: id.to_owned(),
            socket: folder.socket(id),
            process: Arc::default(),
        })
    }

    /// The session whose id has this prefix.
    pub(crate) fn find(folder: &Folder, prefix: &str) -> Result<(String, Self)> {
        let sessions = folder.sessions();
        let mut found = sessions.iter().filter(|id| id.starts_with(prefix));
        match (found.next(), found.next()) {
            (Some(id), None) => Ok((id.clone(), Self::new(folder, id)?)),
            (Some(_), Some(_)) if sessions.iter().any(|id| id == prefix) => {
                Ok((prefix.to_owned(), Self::new(folder, prefix)?))
            }
            (Some(_), Some(_)) => {
                bail!("several session ids begin with `{prefix}`; give more digits")
            }
            (None, _) => {
                bail!("there is no session `{prefix}`; `standin sessions` lists the sessions")
            }
        }
    }

    /// The session. Of another version of the API, it has only what identifies it.
    pub(crate) async fn info(&self) -> Result<SessionInfo> {
        let json = self.get_bytes("/info").await?;
        let info = SessionInfo::parse(&json).context(UNPARSABLE)?;
        Ok(SessionInfo {
            session_id: self.id.clone(),
            ..info
        })
    }

    /// The session, unless it has another version of the API.
    pub(crate) async fn supported_info(&self) -> Result<SessionInfo> {
        let info = self.info().await?;
        match info.is_supported() {
            true => Ok(info),
            false => bail!(info.health.reason.unwrap_or_default()),
        }
    }

    /// What can be said of a session that does not respond.
    pub(crate) fn unresponsive(&self, reason: &NoResponse) -> SessionInfo {
        SessionInfo {
            session_id: self.id.clone(),
            health: Health {
                status: Status::Unresponsive,
                reason: Some(reason.to_string()),
            },
            ..SessionInfo::default()
        }
    }

    pub(crate) async fn state(&self) -> Result<State> {
        self.get("/state").await
    }

    pub(crate) async fn config(&self) -> Result<Vec<ConfigValue>> {
        self.get("/config").await
    }

    /// Ends the session. It may end before it has sent a response.
    pub(crate) async fn kill(&self) -> Result<()> {
        let mut sender = self.connect().await?;
        let request = Request::post("/kill").header(header::HOST, "session");
        let request = request.body(Empty::<Bytes>::new())?;
        if let Ok(Ok(response)) = timeout(REQUEST_TIMEOUT, sender.send_request(request)).await {
            let status = response.status();
            ensure!(status.is_success(), "the session responded {status}");
        }
        Ok(())
    }

    /// Events after the one with this number, or from the oldest one that the session has.
    pub(crate) async fn events(&self, after: Option<u64>) -> Result<Events> {
        let mut request = Request::get("/events").header(header::HOST, "session");
        if let Some(after) = after {
            request = request.header("last-event-id", after);
        }
        let response = async {
            let mut sender = self.connect().await?;
            let request = request.body(Empty::<Bytes>::new())?;
            anyhow::Ok(sender.send_request(request).await?)
        };
        let response = self.with_timeout(response).await?;
        let status = response.status();
        ensure!(status.is_success(), "the session responded {status}");
        Ok(Events {
            body: response.into_body(),
            reader: Reader::default(),
        })
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        serde_json::from_slice(&self.get_bytes(path).await?).context(UNPARSABLE)
    }

    async fn get_bytes(&self, path: &str) -> Result<Bytes> {
        let request = Request::get(path).header(header::HOST, "session");
        let request = request.body(Empty::<Bytes>::new())?;
        let response = async {
            let mut sender = self.connect().await?;
            let response = sender.send_request(request).await?;
            let status = response.status();
            ensure!(status.is_success(), "the session responded {status}");
            Ok(response.into_body().collect().await?.to_bytes())
        };
        self.with_timeout(response).await
    }

    async fn with_timeout<T>(&self, response: impl Future<Output = Result<T>>) -> Result<T> {
        let response = timeout(REQUEST_TIMEOUT, response).await;
        response.unwrap_or_else(|_| Err(self.no_response().into()))
    }

    async fn connect(&self) -> Result<http1::SendRequest<Empty<Bytes>>> {
        self.ensure_running()?;
        let stream = UnixStream::connect(&self.socket).await.map_err(|error| {
            if error.kind() == ErrorKind::WouldBlock {
                return self.no_response().into();
            }
            anyhow!(error).context(format!("session {} cannot be reached", self.id))
        })?;
        let process = stream.peer_cred().ok().and_then(|peer| peer.pid());
        let process = process.and_then(|process| u32::try_from(process).ok());
        self.process
            .store(process.unwrap_or_default(), Ordering::Relaxed);
        self.ensure_running()?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(sender)
    }

    fn ensure_running(&self) -> Result<()> {
        match process::is_stopped(self.process.load(Ordering::Relaxed)) {
            true => Err(self.no_response().into()),
            false => Ok(()),
        }
    }

    fn no_response(&self) -> NoResponse {
        let (id, process) = (&self.id, self.process.load(Ordering::Relaxed));
        NoResponse(match process::is_stopped(process) {
            true => format!(
                "session {id} is stopped, as by Ctrl-Z; `fg` in its terminal or `kill -CONT {process}` continues it"
            ),
            false => format!("session {id} does not respond"),
        })
    }
}

impl Events {
    /// The next messages. `None` when the session has ended.
    pub(crate) async fn next(&mut self) -> Option<Vec<Message>> {
        loop {
            let frame = self.body.frame().await?.ok()?;
            let Ok(bytes) = frame.into_data() else {
                continue;
            };
            let messages = self.reader.push(&bytes);
            if !messages.is_empty() {
                return Some(messages);
            }
        }
    }
}
