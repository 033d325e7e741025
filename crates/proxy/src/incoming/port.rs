//! The life of one port: from its first listener to its last.

use std::sync::Arc;
use std::time::Duration;

use interceptor::Errno;
use protocol::rpc::incoming_client::IncomingClient;
use protocol::rpc::subscribe_event::Event as Happening;
use protocol::rpc::{Failure, Proof, SubscribeEvent, Subscribed as Answer};
use tokio::sync::mpsc;
use tokio::time::{Instant, interval, sleep};
use tonic::{Code, Status, Streaming};

use super::arrival::{Arrival, Waiting};
use super::door::Asking;
use super::doors::Doors;
use super::watch::Watch;
use super::{Key, Shared};
use crate::event::{Checked, Event, IncomingEvent, News, Subscribed, describe};

/// How often it is looked whether the application still listens.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Between attempts to subscribe again.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Before the first of them.
const MOMENT: Duration = Duration::from_millis(50);

pub(super) struct Port {
    shared: Arc<Shared>,
    key: Key,
    /// The application's port.
    local: u16,
    /// From the application's calls to us.
    askings: mpsc::UnboundedReceiver<Asking>,
    /// Who waits for the subscription.
    asking: Vec<Asking>,
    doors: Arc<Doors>,
    /// There was a subscription before.
    again: bool,
    /// What was said last about having none.
    told: Option<String>,
}

/// A port of which the agent says that it is ours.
struct Subscription {
    events: Streaming<SubscribeEvent>,
    waiting: Waiting,
    watch: Watch,
}

/// What happens to a port.
enum Incident {
    Asked(Asking),
    Arrived(Arrival),
    Agent(Result<Option<SubscribeEvent>, Status>),
    Look,
}

/// Why a port is no longer ours.
enum Ending {
    NobodyListens,
    /// To somebody else; what listens stays on this machine.
    Lost,
    /// The agent is gone, and another one may come.
    AgentGone,
}

impl Port {
    pub(super) fn new(
        shared: Arc<Shared>,
        key: Key,
        local: u16,
        askings: mpsc::UnboundedReceiver<Asking>,
    ) -> Self {
        Self {
            shared,
            key,
            local,
            askings,
            asking: Vec::new(),
            doors: Arc::default(),
            again: false,
            told: None,
        }
    }

    pub(super) async fn live(mut self) {
        loop {
            while let Ok(asking) = self.askings.try_recv() {
                self.asking.push(asking);
            }
            if self.asking.is_empty() && !self.doors.look() {
                if self.forget() {
                    return;
                }
                continue;
            }
            match self.subscribe().await {
                Ok(subscription) => match self.serve(subscription).await {
                    Ending::NobodyListens => {}
                    Ending::AgentGone => sleep(MOMENT).await,
                    Ending::Lost => self.stay_local().await,
                },
                Err(status) if self.fail(&status) => sleep(TRY_AGAIN_AFTER).await,
                Err(_) => self.stay_local().await,
            }
        }
    }

    async fn subscribe(&mut self) -> Result<Subscription, Status> {
        let shared = &self.shared;
        let filter = shared.rules.filter(self.local, self.key.port);
        let request = shared.wishes.request(self.key, filter, self.again);
        let mut client = IncomingClient::new(shared.agent.client.clone());
        let mut events = client.subscribe(request).await?.into_inner();
        let first = events.message().await?.and_then(|event| event.event);
        let Some(Happening::Subscribed(answer)) = first else {
            return Err(Status::internal("the agent did not say that it listens"));
        };
        let checked = match answer.proof() {
            Proof::Nothing => Checked::Nothing,
            Proof::Loopback => Checked::Loopback,
            Proof::Outside => Checked::Outside,
        };
        let filter = filter.filter(|_| !self.key.is_udp).map(describe);
        self.tell(News::Subscribed(Subscribed {
            local: self.local,
            steals: shared.steals(),
            filter: filter.clone(),
            checked,
            mesh: Some(answer.mesh.clone()).filter(|mesh| !mesh.is_empty()),
            flushed: answer.flushed,
            again: self.again,
        }));
        Ok(self.subscription(events, &answer, checked, filter))
    }

    fn subscription(
        &self,
        events: Streaming<SubscribeEvent>,
        answer: &Answer,
        checked: Checked,
        filter: Option<String>,
    ) -> Subscription {
        let agent = self.shared.agent.clone();
        Subscription {
            events,
            waiting: Waiting::new(agent, answer.subscription, self.key.is_udp),
            watch: Watch::new(Instant::now(), checked, filter),
        }
    }

    /// Goes on until the port is no longer ours.
    async fn serve(&mut self, mut subscription: Subscription) -> Ending {
        self.again = true;
        self.told = None;
        for asking in std::mem::take(&mut self.asking) {
            self.accept(asking);
        }
        let mut look = interval(LOOK_EVERY);
        look.tick().await;
        loop {
            let Subscription {
                events, waiting, ..
            } = &mut subscription;
            let incident = tokio::select! {
                Some(asking) = self.askings.recv() => Incident::Asked(asking),
                message = events.message() => Incident::Agent(message),
                arrival = waiting.next() => Incident::Arrived(arrival),
                _ = look.tick() => Incident::Look,
            };
            match incident {
                Incident::Asked(asking) => self.accept(asking),
                Incident::Arrived(arrival) => {
                    subscription.watch.arrived();
                    let tls = self.shared.tls.clone();
                    let arriving = self.shared.agent.monitor.arriving(
                        self.key.port,
                        self.key.is_udp,
                        self.shared.steals(),
                        arrival.arrived.client,
                    );
                    tokio::spawn(arrival.hand_over(Arc::clone(&self.doors), tls, arriving));
                }
                Incident::Look => {
                    for news in subscription.watch.news(Instant::now()) {
                        self.tell(news);
                    }
                    subscription.waiting.look();
                    if !self.doors.look() {
                        return Ending::NobodyListens;
                    }
                }
                Incident::Agent(Ok(Some(SubscribeEvent { event }))) => {
                    if let Some(ending) = self.note(&mut subscription.watch, event) {
                        return ending;
                    }
                }
                Incident::Agent(Ok(None) | Err(_)) => return Ending::AgentGone,
            }
        }
    }

    fn note(&self, watch: &mut Watch, event: Option<Happening>) -> Option<Ending> {
        match event? {
            // Only the first event is one.
            Happening::Subscribed(_) => {}
            Happening::TrafficSeen(_) => {
                if let Some(news) = watch.traffic_seen() {
                    self.tell(news);
                }
            }
            Happening::Missed(missed) => watch.missed(&missed),
            Happening::CopyDropped(_) => watch.copy_dropped(),
            Happening::LostTo(holder) => {
                self.tell(News::LostTo { holder });
                return Some(Ending::Lost);
            }
        }
        None
    }

    /// There is no subscription. Says whether it is worth to try again.
    fn fail(&mut self, status: &Status) -> bool {
        let failure = Failure::from_status(status);
        let is_old = status.code() == Code::Unimplemented;
        let reason = match &failure {
            Some(failure) => failure.detail.clone(),
            None if is_old => {
                "the agent is of an older release; install the same one on both sides".to_owned()
            }
            None => status.message().to_owned(),
        };
        // What was subscribed once can be again, when whoever is in the way is gone.
        let tries_again = self.again || failure.is_none() && !is_old;
        if self.shared.steals() {
            let errno = failure.as_ref().and_then(Failure::number);
            let errno = errno.map_or(Errno::EADDRNOTAVAIL, Errno::from_raw);
            let mut refused = false;
            for asking in std::mem::take(&mut self.asking) {
                asking.refuse(errno);
                refused = true;
            }
            if refused {
                let reason = reason.clone();
                self.tell(News::Refused { reason });
            }
            if !self.again {
                return false;
            }
        } else {
            for asking in std::mem::take(&mut self.asking) {
                self.accept(asking);
            }
        }
        if self.told.as_ref() != Some(&reason) && self.doors.look() {
            self.told = Some(reason.clone());
            self.tell(News::Local {
                reason,
                tries_again,
            });
        }
        tries_again
    }

    /// Looks after listeners that get nothing of the target.
    async fn stay_local(&mut self) {
        let mut look = interval(LOOK_EVERY);
        while self.doors.look() {
            tokio::select! {
                Some(asking) = self.askings.recv() => self.accept(asking),
                _ = look.tick() => {}
            }
        }
    }

    fn accept(&self, asking: Asking) {
        let address = asking.address;
        if let Some(door) = asking.accept() {
            self.doors.add(address, door);
        }
    }

    /// Ends, unless somebody has asked meanwhile.
    fn forget(&mut self) -> bool {
        let mut ports = self.shared.lock();
        if !self.askings.is_empty() {
            return false;
        }
        ports.remove(&self.key);
        true
    }

    fn tell(&self, news: News) {
        let event = IncomingEvent {
            port: self.key.port,
            is_udp: self.key.is_udp,
            news,
        };
        (self.shared.agent.tell)(&Event::Incoming(event));
    }
}
