//! The first words with an agent.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use link::http2::{Client, Windows};
use link::{Pipe, Status};
use protocol::control::{FEATURES, VERSION};
use protocol::rpc::control_client::ControlClient;
use protocol::rpc::{Failure, HelloRequest, HelloResponse};
use tokio::sync::watch;

use super::cut::{Cuttable, Scissors};
use super::{Member, Reached};
use crate::error::Error;

/// An agent that has accepted us.
pub(super) struct Greeted {
    pub(super) hello: HelloResponse,
    pub(super) client: Client,
    pub(super) status: watch::Receiver<Status>,
    /// Ends, with the reason, when the agent has ended.
    pub(super) ended: Pin<Box<dyn Future<Output = String> + Send>>,
    pub(super) scissors: Scissors,
}

impl Greeted {
    pub(super) async fn greet(reached: Reached) -> Result<Self, Error> {
        let Reached { link, token, ended } = reached;
        let status = link.status();
        let (pipe, scissors) = Cuttable::new(link);
        let (client, hello) = greet(pipe, token).await?;
        Ok(Greeted {
            hello,
            client,
            status,
            ended,
            scissors,
        })
    }

    pub(super) fn member(&self) -> Member {
        Member::new(self.client.clone(), &self.hello)
    }
}

/// Says hello over a pipe.
pub(crate) async fn greet(
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
    if !VERSION.understands(version) {
        return Err(Error::OtherVersion {
            agent: hello.agent,
            theirs: version.major,
            ours: VERSION.major,
        });
    }
    tracing::info!(agent = hello.agent, "the agent has accepted the session");
    Ok((client, hello))
}

/// What the agent said instead of an answer.
pub(crate) fn refused(status: &tonic::Status) -> Error {
    let detail = Failure::from_status(status).map(|failure| failure.detail);
    Error::Refused(detail.unwrap_or_else(|| status.to_string()))
}

impl fmt::Debug for Greeted {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("Greeted");
        debug.field("hello", &self.hello).finish_non_exhaustive()
    }
}
