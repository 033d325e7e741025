//! A port at one agent: asked for, served, and asked for again.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use protocol::rpc::incoming_client::IncomingClient;
use protocol::rpc::subscribe_event::Event as Happening;
use protocol::rpc::{EarlierSession, Proof, SubscribeEvent, Subscribed as Answer};
use tokio::sync::mpsc;
use tokio::time::{interval, sleep};
use tonic::{Status, Streaming};

use super::arrival::{Arrival, Waiting};
use super::doors::Doors;
use super::watch::Watch;
use super::{Key, Shared};
use crate::agent::{AgentId, Member};
use crate::event::{Checked, Earlier};

/// How often it is looked whether fewer streams have to wait.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Between attempts to subscribe again.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Before the first of them.
const MOMENT: Duration = Duration::from_millis(50);

/// What one agent does for a port. It goes on until it is aborted, or the port is lost.
pub(super) struct Subscription {
    pub(super) shared: Arc<Shared>,
    pub(super) key: Key,
    /// The application's port.
    pub(super) local: u16,
    pub(super) id: AgentId,
    pub(super) member: Member,
    pub(super) doors: Arc<Doors>,
    pub(super) watch: Arc<Mutex<Watch>>,
    /// The port was ours at this place before.
    pub(super) again: bool,
    /// Whether refusals may pass, so that it is worth to ask again. Until the application's call is answered it is not.
    pub(super) is_patient: bool,
    pub(super) said: Saying,
}

/// From the agents' tasks to the port, with who says it.
pub(super) type Saying = mpsc::UnboundedSender<(AgentId, Member, Said)>;

/// What becomes of a port at one agent.
#[derive(Debug)]
pub(super) enum Said {
    Ours(Ours),
    /// The agent does not do it, and whether it is asked again.
    Refused(Status, bool),
    TrafficSeen,
    /// Who is served first has changed.
    Earlier(Vec<Earlier>),
    /// Somebody else has it now.
    LostTo(String),
}

/// A port of which an agent says that it is ours.
#[derive(Debug)]
pub(super) struct Ours {
    pub(super) checked: Checked,
    pub(super) mesh: Option<String>,
    pub(super) flushed: u32,
    pub(super) again: bool,
    /// Who is served first.
    pub(super) earlier: Vec<Earlier>,
}

enum Incident {
    Arrived(Arrival),
    Agent(Result<Option<SubscribeEvent>, Status>),
    Look,
}

impl Subscription {
    pub(super) async fn live(mut self) {
        loop {
            match self.subscribe().await {
                Ok((answer, events)) => {
                    let waiting = self.ours(&answer);
                    self.again = true;
                    if let Some(holder) = self.serve(waiting, events).await {
                        self.say(Said::LostTo(holder));
                        return;
                    }
                    sleep(MOMENT).await;
                }
                Err(status) => {
                    let tries_again = self.tries_again(&status);
                    self.say(Said::Refused(status, tries_again));
                    if !tries_again {
                        return;
                    }
                    sleep(TRY_AGAIN_AFTER).await;
                }
            }
        }
    }

    /// What was ours once can be again, when whoever is in the way is gone. So can what failed on its way.
    fn tries_again(&self, status: &Status) -> bool {
        self.again || self.is_patient || !super::is_final(status)
    }

    async fn subscribe(&self) -> Result<(Answer, Streaming<SubscribeEvent>), Status> {
        let shared = &self.shared;
        let filter = shared.rules.filter(self.local, self.key.port);
        let request = shared.wishes.request(self.key, filter, self.again);
        let mut client = IncomingClient::new(self.member.client.clone());
        let mut events = client.subscribe(request).await?.into_inner();
        let first = events.message().await?.and_then(|event| event.event);
        match first {
            Some(Happening::Subscribed(answer)) => Ok((answer, events)),
            _ => Err(Status::internal("the agent did not say that it listens")),
        }
    }

    fn ours(&self, answer: &Answer) -> Waiting {
        let checked = match answer.proof() {
            Proof::Nothing => Checked::Nothing,
            Proof::Loopback => Checked::Loopback,
            Proof::Outside => Checked::Outside,
        };
        self.say(Said::Ours(Ours {
            checked,
            mesh: Some(answer.mesh.clone()).filter(|mesh| !mesh.is_empty()),
            flushed: answer.flushed,
            again: self.again,
            earlier: earlier(&answer.earlier),
        }));
        let tell = Arc::clone(&self.shared.agent.tell);
        Waiting::new(
            self.member.clone(),
            tell,
            answer.subscription,
            self.key.is_udp,
        )
    }

    /// Goes on until the agent does not, or somebody else has the port.
    async fn serve(
        &self,
        mut waiting: Waiting,
        mut events: Streaming<SubscribeEvent>,
    ) -> Option<String> {
        let mut look = interval(LOOK_EVERY);
        look.tick().await;
        loop {
            let incident = tokio::select! {
                message = events.message() => Incident::Agent(message),
                arrival = waiting.next() => Incident::Arrived(arrival),
                _ = look.tick() => Incident::Look,
            };
            match incident {
                Incident::Arrived(arrival) => {
                    self.watch().arrived();
                    let tls = self.shared.tls.clone();
                    let within = self.shared.wishes.accept_within;
                    let arriving = self.shared.agent.monitor.arriving(
                        self.key.port,
                        self.key.is_udp,
                        self.shared.steals(),
                        arrival.arrived.client,
                        self.id.cluster.clone(),
                    );
                    let doors = Arc::clone(&self.doors);
                    tokio::spawn(arrival.hand_over(doors, tls, within, arriving));
                }
                Incident::Look => waiting.look(),
                Incident::Agent(Ok(Some(SubscribeEvent { event }))) => match event {
                    // Only the first event is one.
                    None | Some(Happening::Subscribed(_)) => {}
                    Some(Happening::TrafficSeen(_)) => self.say(Said::TrafficSeen),
                    Some(Happening::Missed(missed)) => {
                        let monitor = &self.shared.agent.monitor;
                        monitor.passed_on(self.key.port, &missed, self.id.cluster.as_ref());
                        self.watch().missed(&missed);
                    }
                    Some(Happening::CopyDropped(_)) => self.watch().copy_dropped(),
                    Some(Happening::Earlier(now)) => {
                        self.say(Said::Earlier(earlier(&now.sessions)));
                    }
                    Some(Happening::LostTo(holder)) => return Some(holder),
                },
                Incident::Agent(Ok(None) | Err(_)) => return None,
            }
        }
    }

    fn watch(&self) -> std::sync::MutexGuard<'_, Watch> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, said: Said) {
        // Without the port we are about to be aborted.
        let _ = self.said.send((self.id.clone(), self.member.clone(), said));
    }
}

fn earlier(sessions: &[EarlierSession]) -> Vec<Earlier> {
    let earlier = |session: &EarlierSession| Earlier {
        holder: session.holder.clone(),
        takes_all: session.takes_all,
    };
    sessions.iter().map(earlier).collect()
}
