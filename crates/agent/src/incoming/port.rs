//! A redirected port: the claims of its traffic, and the events about it.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use protocol::rpc::{MissedReason, MissedTraffic, subscribe_event};
use splitter::{
    Claim, ClaimGuard, EarlierSession, FailureReason, Notice, NoticeHandler, RequestLine, Settings,
};
use tokio::sync::watch;

use super::accept_pool::AcceptPool;
use super::application::ApplicationDestination;
use super::certificates;
use super::datagrams::{UdpClaim, UdpPort};
use super::redirect::{Mesh, Protocol};
use super::spec::SubscriptionSpec;
use super::subscription_task::{EventSender, emit};
use crate::agent::Agent;
use crate::{Error, Result};

/// A redirected port.
#[derive(Debug)]
pub(super) struct OpenPort {
    pub(super) kind: PortKind,
    /// Whether traffic was received that is not the target's own.
    pub(super) traffic: watch::Sender<bool>,
    mesh: Mutex<Option<Mesh>>,
}

#[derive(Debug)]
pub(super) enum PortKind {
    Tcp(Arc<splitter::Port>),
    Udp(Arc<UdpPort>),
}

/// A claim of traffic. Dropping it ends the claim.
#[derive(Debug)]
pub(super) enum TrafficClaim {
    Tcp(ClaimGuard),
    Udp(UdpClaim),
}

impl OpenPort {
    pub(super) fn new(agent: &Agent, protocol: Protocol) -> Self {
        let kind = match protocol {
            Protocol::Udp => PortKind::Udp(Arc::new(UdpPort::new(agent))),
            Protocol::Tcp => {
                let application = Arc::new(ApplicationDestination(agent.clone()));
                let settings = Settings {
                    memory: agent.memory().clone(),
                    ..Settings::default()
                };
                PortKind::Tcp(Arc::new(splitter::Port::new(application, settings)))
            }
        };
        Self {
            kind,
            traffic: watch::Sender::new(false),
            mesh: Mutex::default(),
        }
    }

    /// Claims the traffic that a session subscribes to. The application's certificate and health probes that the session
    /// provides then apply to all sessions. A claim that fails changes nothing for the others.
    pub(super) async fn claim(
        &self,
        agent: &Agent,
        spec: &SubscriptionSpec,
        session: Arc<AcceptPool>,
        events_to_session: EventSender,
    ) -> Result<TrafficClaim> {
        let splitter = match &self.kind {
            PortKind::Udp(port) => {
                let claim = port.claim(spec, session, events_to_session);
                return claim.map(TrafficClaim::Udp);
            }
            PortKind::Tcp(splitter) => splitter,
        };
        let tls = match &spec.request.tls {
            Some(content) => {
                Some(certificates::tls_termination(agent, spec.port.number, content).await?)
            }
            None => None,
        };
        let claim = Claim {
            holder: spec.holder.clone(),
            owner: spec.owner.clone(),
            age: spec.claim_age,
            mode: spec.mode,
            filter: spec.filter.clone(),
            takes_probes: spec.takes_probes,
            response_timeout: spec.response_timeout,
            tls,
            on_notice: NoticeHandler::new(move |notice, request| {
                emit(&events_to_session, event(notice, request));
            }),
            destination: session,
        };
        let guard = splitter.claims().claim(claim, spec.on_conflict);
        let guard = guard.map_err(Error::Claim)?;
        splitter.add_probe_paths(spec.probe_paths.clone());
        Ok(TrafficClaim::Tcp(guard))
    }

    pub(super) fn mesh(&self) -> Option<Mesh> {
        *self.mesh.lock()
    }

    pub(super) fn set_mesh(&self, mesh: Option<Mesh>) {
        *self.mesh.lock() = mesh;
    }

    /// Records that traffic was received. Behind a sidecar, the source of all traffic is inside.
    pub(super) fn record_traffic(&self, client: SocketAddr, server: SocketAddr) {
        if *self.traffic.borrow() {
            return;
        }
        let is_own = client.ip().is_loopback() || client.ip() == server.ip();
        if !is_own || self.mesh().is_some() {
            self.traffic.send_replace(true);
        }
    }
}

impl TrafficClaim {
    fn guard(&self) -> &ClaimGuard {
        match self {
            Self::Tcp(guard) => guard,
            Self::Udp(claim) => &claim.guard,
        }
    }

    /// Waits until another session takes over the claim, and returns its holder.
    pub(super) async fn overridden(&self) -> String {
        self.guard().overridden().await
    }

    /// The sessions with earlier claims of the same traffic, which take precedence.
    pub(super) fn earlier(&self) -> Vec<EarlierSession> {
        self.guard().earlier_sessions()
    }

    /// Waits until the earlier sessions are no longer `known`, and returns the current ones.
    pub(super) async fn earlier_changed(&self, known: &[EarlierSession]) -> Vec<EarlierSession> {
        self.guard().earlier_sessions_changed(known).await
    }
}

/// The event for a notice of the splitter.
fn event(notice: Notice, request: Option<RequestLine>) -> subscribe_event::Event {
    let (method, path) = request.map_or_else(Default::default, |line| (line.method, line.path));
    let missed = |reason: FailureReason, lost| {
        let reason = match reason {
            FailureReason::Unreachable => MissedReason::Unreachable,
            FailureReason::NoResponse => MissedReason::NoResponse,
            FailureReason::Timeout => MissedReason::TooSlow,
        };
        subscribe_event::Event::Missed(MissedTraffic {
            reason: reason.into(),
            lost,
            method,
            path,
        })
    };
    match notice {
        Notice::FellBack { reason } => missed(reason, false),
        Notice::Lost { reason } => missed(reason, true),
        Notice::MirrorDropped => subscribe_event::Event::MirrorDropped(true),
    }
}
