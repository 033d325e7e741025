//! Keeps a session's connection to its agent: watches it, says what happens to it, and makes another when it is lost.

use std::pin::pin;
use std::time::Duration;

use link::http2::{Client, Windows};
use link::{LinkError, Pipe, Status};
use protocol::control::{FEATURES, VERSION};
use protocol::rpc::control_client::ControlClient;
use protocol::rpc::{Failure, HelloRequest, HelloResponse, PingRequest};
use tokio::sync::watch;
use tokio::time::sleep;

use super::cut::{Cuttable, Scissors};
use super::{Connection, Reach, Reached};
use crate::error::Error;
use crate::event::{Event, Tell};

/// How often the agent is asked whether the target is there.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// Attempts to come back that fail before it is worth a word: most losses are over by then.
const WORTH_A_WORD: u32 = 2;

/// An agent that has accepted us.
pub(crate) struct Greeted {
    pub(crate) hello: HelloResponse,
    client: Client,
    status: watch::Receiver<Status>,
    ended: std::pin::Pin<Box<dyn Future<Output = String> + Send>>,
    scissors: Scissors,
}

/// Why a connection has to be replaced.
enum Why {
    Link(LinkError),
    AgentEnded(String),
    /// The target is there again, so another agent has to be beside it.
    Successor,
}

impl Greeted {
    pub(crate) async fn greet(reached: Reached) -> Result<Self, Error> {
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

    pub(crate) fn connection(&self) -> Connection {
        Connection::new(self.client.clone())
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

pub(crate) struct Keeper<R> {
    pub(crate) reach: R,
    pub(crate) connection: Connection,
    pub(crate) tell: Tell,
}

impl<R: Reach> Keeper<R> {
    /// Goes on as long as the session.
    pub(crate) async fn keep(self, mut agent: Greeted) {
        loop {
            match self.watch(&mut agent).await {
                Why::Link(error) => self.tell(&Event::AgentLost(crate::event::chain(&error))),
                Why::AgentEnded(reason) => self.tell(&Event::AgentLost(reason)),
                Why::Successor => self.tell(&Event::TargetBack),
            }
            self.connection.await_another();
            // What is under way fails now, and not when the link gives up hope.
            drop(agent.scissors);
            agent = self.replace().await;
            self.connection.replace(agent.client.clone());
            self.tell(&Event::SessionRestored);
        }
    }

    /// Watches an agent until it has to be replaced.
    async fn watch(&self, agent: &mut Greeted) -> Why {
        let mut successor = pin!(async {
            target_gone(agent.client.clone()).await;
            self.tell(&Event::TargetGone);
            self.reach.successor().await;
        });
        let mut told = false;
        loop {
            tokio::select! {
                biased;
                reason = &mut agent.ended => return Why::AgentEnded(reason),
                () = &mut successor => return Why::Successor,
                changed = agent.status.changed() => {
                    let status = agent.status.borrow_and_update().clone();
                    match status {
                        Status::Failed(error) => return Why::Link(error),
                        Status::Finished => return Why::Link(LinkError::StateLost),
                        Status::Connected if told => {
                            told = false;
                            self.tell(&Event::ConnectionBack);
                        }
                        Status::Reconnecting { attempts, last_error, .. } if !told && attempts >= WORTH_A_WORD => {
                            told = true;
                            self.tell(&Event::ConnectionLost(last_error));
                        }
                        Status::Connected | Status::Reconnecting { .. } => {}
                    }
                    if changed.is_err() {
                        return Why::Link(LinkError::StateLost);
                    }
                }
            }
        }
    }

    /// Reaches another agent, however long it takes. Calls fail from the first attempt that failed.
    async fn replace(&self) -> Greeted {
        let mut told = String::new();
        loop {
            let reached = self.reach.reach().await.map_err(Error::Reach);
            let greeted = match reached {
                Ok(reached) => Greeted::greet(reached).await,
                Err(error) => Err(error),
            };
            let error = match greeted {
                Ok(agent) => return agent,
                Err(error) => error,
            };
            let reason = crate::event::chain(&error);
            if told != reason {
                self.tell(&Event::SessionLost(reason.clone()));
                told = reason;
            }
            self.connection.lose(match error {
                Error::Link(error) => error,
                _ => LinkError::StateLost,
            });
            tokio::select! {
                () = self.reach.successor() => {}
                () = self.reach.another_try() => {}
            }
        }
    }

    fn tell(&self, event: &Event) {
        (self.tell)(event);
    }
}

/// Ends when the agent says that its target has ended.
async fn target_gone(client: Client) {
    loop {
        sleep(ASK_EVERY).await;
        let mut control = ControlClient::new(client.clone());
        match control.ping(PingRequest::default()).await {
            Ok(answer) if !answer.get_ref().target_is_there => return,
            Ok(_) => {}
            // Then the agent is what is lost, and that is seen elsewhere.
            Err(_) => std::future::pending().await,
        }
    }
}
