//! A redirected port: who wants its traffic, what is known about it, and who is told.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use protocol::rpc::{Missed, MissedReason, subscribe_event};
use splitter::{Claim, ClaimGuard, Notice, Notices, Reason, Settings};
use tokio::sync::watch;

use super::certificates;
use super::datagrams::{UdpClaim, UdpPort};
use super::keeper::{Events, tell};
use super::original::Original;
use super::queue::Queue;
use super::redirect::{Mesh, Protocol};
use super::wanted::Wanted;
use crate::agent::Agent;
use crate::{Error, Result};

/// A redirected port.
#[derive(Debug)]
pub(super) struct OpenPort {
    pub(super) kind: Kind,
    pub(super) listeners: Arc<Listeners>,
    /// Whether traffic has arrived that is not the target's own.
    pub(super) traffic: watch::Sender<bool>,
    mesh: Mutex<Option<Mesh>>,
}

#[derive(Debug)]
pub(super) enum Kind {
    Tcp(Arc<splitter::Port>),
    Udp(Arc<UdpPort>),
}

/// A session gets what it wants as long as this lives.
#[derive(Debug)]
pub(super) enum AnyClaim {
    Tcp(ClaimGuard),
    Udp(UdpClaim),
}

impl OpenPort {
    pub(super) fn new(agent: &Agent, protocol: Protocol) -> Self {
        let listeners = Arc::<Listeners>::default();
        let kind = match protocol {
            Protocol::Udp => Kind::Udp(Arc::new(UdpPort::new(agent))),
            Protocol::Tcp => {
                let told = Arc::clone(&listeners);
                let settings = Settings {
                    notices: Notices::new(move |notice| told.tell(&notice)),
                    ..Settings::default()
                };
                let original = Arc::new(Original(agent.clone()));
                Kind::Tcp(Arc::new(splitter::Port::new(original, settings)))
            }
        };
        Self {
            kind,
            listeners,
            traffic: watch::Sender::new(false),
            mesh: Mutex::default(),
        }
    }

    /// Learns to know what a session knows of the application: its certificate, its health probes.
    pub(super) async fn look_into(&self, agent: &Agent, wanted: &Wanted) -> Result<()> {
        let Kind::Tcp(splitter) = &self.kind else {
            return Ok(());
        };
        if let Some(content) = &wanted.request.tls {
            let tls = certificates::tls(agent, wanted.port.number, content).await?;
            splitter.set_tls(tls);
        }
        splitter.add_probe_paths(wanted.probe_paths.clone());
        Ok(())
    }

    pub(super) fn claim(
        &self,
        wanted: &Wanted,
        session: Arc<Queue>,
        events_to_session: Events,
    ) -> Result<AnyClaim> {
        let splitter = match &self.kind {
            Kind::Udp(port) => {
                let claim = port.claim(wanted, session, events_to_session);
                return claim.map(AnyClaim::Udp);
            }
            Kind::Tcp(splitter) => splitter,
        };
        let claim = Claim {
            holder: wanted.holder.clone(),
            mode: wanted.mode,
            filter: wanted.filter.clone(),
            takes_probes: wanted.takes_probes,
            answer_within: wanted.answer_within,
            destination: session,
        };
        let guard = splitter.claims().claim(claim, wanted.on_conflict);
        Ok(AnyClaim::Tcp(guard.map_err(Error::Claim)?))
    }

    pub(super) fn mesh(&self) -> Option<Mesh> {
        *self.mesh.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_mesh(&self, mesh: Option<Mesh>) {
        *self.mesh.lock().unwrap_or_else(PoisonError::into_inner) = mesh;
    }

    /// Notes that something has arrived. Behind a sidecar everything seems to come from inside.
    pub(super) fn note_traffic(&self, client: SocketAddr, server: SocketAddr) {
        if *self.traffic.borrow() {
            return;
        }
        let is_own = client.ip().is_loopback() || client.ip() == server.ip();
        if !is_own || self.mesh().is_some() {
            self.traffic.send_replace(true);
        }
    }
}

impl AnyClaim {
    /// Waits until somebody takes it away, and says who.
    pub(super) async fn overridden(&self) -> String {
        match self {
            Self::Tcp(guard) => guard.overridden().await,
            Self::Udp(claim) => claim.guard.overridden().await,
        }
    }
}

/// Who is told what happens to the requests of a port.
#[derive(Debug, Default)]
pub(super) struct Listeners(Mutex<Vec<Listener>>);

#[derive(Debug)]
struct Listener {
    holder: String,
    events_to_session: Events,
}

impl Listeners {
    fn all(&self) -> MutexGuard<'_, Vec<Listener>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, holder: &str, events_to_session: Events) {
        self.all().push(Listener {
            holder: holder.to_owned(),
            events_to_session,
        });
    }

    pub(super) fn remove(&self, events_to_session: &Events) {
        let is_it =
            |listener: &Listener| listener.events_to_session.same_channel(events_to_session);
        self.all().retain(|listener| !is_it(listener));
    }

    fn tell(&self, notice: &Notice) {
        let missed = |reason: Reason, lost| {
            let reason = match reason {
                Reason::Unreachable => MissedReason::Unreachable,
                Reason::NoAnswer => MissedReason::NoAnswer,
                Reason::TooSlow => MissedReason::TooSlow,
            };
            subscribe_event::Event::Missed(Missed {
                reason: reason.into(),
                lost,
            })
        };
        let (holder, told) = match notice {
            Notice::FellBack { holder, reason } => (holder, missed(*reason, false)),
            Notice::Lost { holder, reason } => (holder, missed(*reason, true)),
            Notice::CopyDropped { holder } => (holder, subscribe_event::Event::CopyDropped(true)),
        };
        tracing::info!(?notice, "incoming traffic");
        for listener in self.all().iter() {
            if listener.holder == *holder {
                tell(&listener.events_to_session, told.clone());
            }
        }
    }
}
