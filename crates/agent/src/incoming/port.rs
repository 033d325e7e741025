//! A redirected port: who wants its traffic, what is known about it, and who is told.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use protocol::rpc::{Missed, MissedReason, subscribe_event};
use splitter::{Claim, ClaimGuard, Earlier, Notice, Notices, Reason, RequestLine, Settings};
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
        let kind = match protocol {
            Protocol::Udp => Kind::Udp(Arc::new(UdpPort::new(agent))),
            Protocol::Tcp => {
                let original = Arc::new(Original(agent.clone()));
                Kind::Tcp(Arc::new(splitter::Port::new(original, Settings::default())))
            }
        };
        Self {
            kind,
            traffic: watch::Sender::new(false),
            mesh: Mutex::default(),
        }
    }

    /// Claims what a session wants. What it knows of the application, its certificate and its health probes, is then good
    /// for all. Whoever is refused changes nothing for the others.
    pub(super) async fn claim(
        &self,
        agent: &Agent,
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
        let tls = match &wanted.request.tls {
            Some(content) => Some(certificates::tls(agent, wanted.port.number, content).await?),
            None => None,
        };
        let claim = Claim {
            holder: wanted.holder.clone(),
            owner: wanted.owner.clone(),
            held_for: wanted.held_for,
            mode: wanted.mode,
            filter: wanted.filter.clone(),
            takes_probes: wanted.takes_probes,
            answer_within: wanted.answer_within,
            tls,
            notices: Notices::new(move |notice, request| {
                tell(&events_to_session, event(notice, request));
            }),
            destination: session,
        };
        let guard = splitter.claims().claim(claim, wanted.on_conflict);
        let guard = guard.map_err(Error::Claim)?;
        splitter.add_probe_paths(wanted.probe_paths.clone());
        Ok(AnyClaim::Tcp(guard))
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
    fn guard(&self) -> &ClaimGuard {
        match self {
            Self::Tcp(guard) => guard,
            Self::Udp(claim) => &claim.guard,
        }
    }

    /// Waits until somebody takes it away, and says who.
    pub(super) async fn overridden(&self) -> String {
        self.guard().overridden().await
    }

    /// Who was there before and gets some of it first.
    pub(super) fn earlier(&self) -> Vec<Earlier> {
        self.guard().earlier()
    }

    /// Waits until that is not `known` any more, and says what it is now.
    pub(super) async fn earlier_changed(&self, known: &[Earlier]) -> Vec<Earlier> {
        self.guard().earlier_changed(known).await
    }
}

/// What a session is told when something becomes of its requests.
fn event(notice: Notice, request: Option<RequestLine>) -> subscribe_event::Event {
    let (method, path) = request.map_or_else(Default::default, |line| (line.method, line.path));
    let missed = |reason: Reason, lost| {
        let reason = match reason {
            Reason::Unreachable => MissedReason::Unreachable,
            Reason::NoAnswer => MissedReason::NoAnswer,
            Reason::TooSlow => MissedReason::TooSlow,
        };
        subscribe_event::Event::Missed(Missed {
            reason: reason.into(),
            lost,
            method,
            path,
        })
    };
    match notice {
        Notice::FellBack { reason } => missed(reason, false),
        Notice::Lost { reason } => missed(reason, true),
        Notice::CopyDropped => subscribe_event::Event::CopyDropped(true),
    }
}
