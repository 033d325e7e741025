//! The handshake with an agent: the `Hello` call over a new link.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use link::http2::{Client, Windows};
use link::{Pipe, Status};
use protocol::control::{FEATURES, VERSION};
use protocol::rpc::control_client::ControlClient;
use protocol::rpc::{Failure, HelloRequest, HelloResponse};
use tokio::sync::watch;

use super::abortable::{AbortOnDrop, AbortablePipe};
use super::{AgentConnection, Connected};
use crate::error::Error;

/// An agent that has accepted the session.
pub(super) struct AcceptedAgent {
    pub(super) hello: HelloResponse,
    pub(super) client: Client,
    pub(super) status: watch::Receiver<Status>,
    /// Completes with the reason when the agent has ended.
    pub(super) ended: Pin<Box<dyn Future<Output = String> + Send>>,
    pub(super) abort_guard: AbortOnDrop,
}

impl AcceptedAgent {
    pub(super) async fn handshake(connected: Connected) -> Result<Self, Error> {
        let Connected { link, token, ended } = connected;
        let status = link.status();
        let (pipe, abort_guard) = AbortablePipe::new(link);
        let (client, hello) = handshake(pipe, token).await?;
        Ok(Self {
            hello,
            client,
            status,
            ended,
            abort_guard,
        })
    }

    pub(super) fn connection(&self) -> AgentConnection {
        AgentConnection::new(self.client.clone(), &self.hello)
    }
}

/// Performs the `Hello` call over a pipe.
pub(crate) async fn handshake(
    pipe: impl Pipe,
    token: String,
) -> Result<(Client, HelloResponse), Error> {
    let client = Client::start(pipe, Windows::default()).await?;
    let request = HelloRequest {
        version: Some(VERSION),
        features: FEATURES.iter().copied().map(str::to_owned).collect(),
        token,
        client: concat!("standin ", env!("CARGO_PKG_VERSION")).to_owned(),
    };
    let hello = ControlClient::new(client.clone())
        .hello(request)
        .await
        .map_err(|status| refused(&status))?
        .into_inner();
    let version = hello.version.unwrap_or_default();
    if !VERSION.is_compatible_with(version) {
        return Err(Error::OtherVersion {
            agent: hello.agent,
            theirs: version.major,
            ours: VERSION.major,
        });
    }
    tracing::info!(agent = hello.agent, "agent connected");
    Ok((client, hello))
}

/// The error for a status that the agent returned instead of a response.
pub(crate) fn refused(status: &tonic::Status) -> Error {
    let detail = Failure::from_status(status).map(|failure| failure.detail);
    Error::Refused(detail.unwrap_or_else(|| status.to_string()))
}

impl fmt::Debug for AcceptedAgent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("AcceptedAgent");
        debug.field("hello", &self.hello).finish_non_exhaustive()
    }
}
