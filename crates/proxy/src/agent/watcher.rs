//! Looks after one agent: reaches it, watches it, and reaches it again when it is lost.

use std::pin::pin;
use std::time::Duration;

use link::http2::Client;
use link::{LinkError, Status};
use protocol::rpc::control_client::ControlClient;
use protocol::rpc::{HelloResponse, PingRequest};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::cut::Scissors;
use super::greet::Greeted;
use super::{AgentId, Member, Reach};
use crate::error::Error;

/// How often the agent is asked whether the target is there.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// Attempts to come back that fail before it is worth a word: most losses are over by then.
const WORTH_A_WORD: u32 = 2;

pub(super) struct Watcher<R> {
    pub(super) id: AgentId,
    /// Tells this watcher from those that had the id before.
    pub(super) number: u64,
    pub(super) reach: R,
    /// From the watchers to the keeper.
    pub(super) reports: mpsc::UnboundedSender<(AgentId, u64, Report)>,
}

/// What has become of an agent.
#[derive(Debug)]
pub(super) enum Report {
    Joined(Member, HelloResponse),
    /// It is lost, and is being reached again. What is under way with it fails when the scissors are dropped.
    Lost(Why, Scissors),
    /// It could not be reached, and it is tried again when that may help.
    Failed(Error),
    /// The link has had no connection for a while.
    Away(String),
    /// It has one again.
    Back,
    /// The agent is there, and what it was beside is not.
    TargetGone,
}

/// Why an agent is lost.
#[derive(Debug)]
pub(super) enum Why {
    Link(LinkError),
    AgentEnded(String),
    /// The target is there again, so another agent has to be beside it.
    Successor,
}

impl<R: Reach> Watcher<R> {
    /// Goes on until it is aborted.
    pub(super) async fn live(self) {
        loop {
            let mut agent = self.reach().await;
            self.report(Report::Joined(agent.member(), agent.hello.clone()));
            let why = self.watch(&mut agent).await;
            self.report(Report::Lost(why, agent.scissors));
        }
    }

    /// Reaches the agent, however long it takes.
    async fn reach(&self) -> Greeted {
        loop {
            let reached = self.reach.reach().await.map_err(Error::Reach);
            let greeted = match reached {
                Ok(reached) => Greeted::greet(reached).await,
                Err(error) => Err(error),
            };
            match greeted {
                Ok(agent) => return agent,
                Err(error) => self.report(Report::Failed(error)),
            }
            tokio::select! {
                () = self.reach.successor() => {}
                () = self.reach.another_try() => {}
            }
        }
    }

    /// Watches an agent until it has to be replaced.
    async fn watch(&self, agent: &mut Greeted) -> Why {
        let mut successor = pin!(async {
            target_gone(agent.client.clone()).await;
            self.report(Report::TargetGone);
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
                            self.report(Report::Back);
                        }
                        Status::Reconnecting { attempts, last_error, .. } if !told && attempts >= WORTH_A_WORD => {
                            told = true;
                            self.report(Report::Away(last_error));
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

    fn report(&self, report: Report) {
        // Without a keeper we are about to be aborted.
        let _ = self.reports.send((self.id.clone(), self.number, report));
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
