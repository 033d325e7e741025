//! Sends requests to a session over its socket.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use axum::body::Bytes;
use axum::http::{Request, header};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use monitor::stream::{Message, Reader};
use monitor::{ConfigValue, PROTOCOL_VERSION, SessionInfo, State};
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::folder::{Folder, is_id};

/// A session responds from memory, so this is generous.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// One session, by its socket.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    socket: PathBuf,
}

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
            socket: folder.socket(id),
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

    pub(crate) async fn info(&self) -> Result<SessionInfo> {
        let info: SessionInfo = self.get("/info").await?;
        ensure!(
            info.protocol_version <= PROTOCOL_VERSION,
            "session {} is of a newer release ({}); use that release's `standin`",
            info.session_id,
            info.standin_version
        );
        Ok(info)
    }

    pub(crate) async fn state(&self) -> Result<State> {
        self.get("/state").await
    }

    pub(crate) async fn config(&self) -> Result<Vec<ConfigValue>> {
        self.get("/config").await
    }

    /// Ends the session. It may end before it has sent a response.
    pub(crate) async fn kill(&self) -> Result<()> {
        let mut sender = connect(&self.socket).await?;
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
        let mut sender = connect(&self.socket).await?;
        let response = sender.send_request(request.body(Empty::<Bytes>::new())?);
        let response = timeout(REQUEST_TIMEOUT, response)
            .await
            .context("the session does not respond")??;
        let status = response.status();
        ensure!(status.is_success(), "the session responded {status}");
        Ok(Events {
            body: response.into_body(),
            reader: Reader::default(),
        })
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let request = Request::get(path).header(header::HOST, "session");
        let request = request.body(Empty::<Bytes>::new())?;
        let response = async {
            let mut sender = connect(&self.socket).await?;
            let response = sender.send_request(request).await?;
            let status = response.status();
            ensure!(status.is_success(), "the session responded {status}");
            Ok(response.into_body().collect().await?.to_bytes())
        };
        let bytes = timeout(REQUEST_TIMEOUT, response)
            .await
            .context("the session does not respond")??;
        serde_json::from_slice(&bytes).context("the session's response cannot be parsed")
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

async fn connect(socket: &Path) -> Result<http1::SendRequest<Empty<Bytes>>> {
    let stream = UnixStream::connect(socket).await.with_context(|| {
        let name = socket.file_stem().unwrap_or_default();
        format!("session {} cannot be reached", name.to_string_lossy())
    })?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}
