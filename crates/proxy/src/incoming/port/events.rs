//! What a port reports to the user.

use std::collections::BTreeSet;

use tonic::Status;

use super::{PortAtAgent, PortTask};
use crate::agent::AgentId;
use crate::event::{
    EarlierSession, Event, IncomingEvent, IncomingEventKind, RedirectCheck, SubscriptionInfo,
    describe,
};
use crate::incoming::reason_of;
use crate::incoming::subscription::ActiveSubscription;

impl PortTask {
    /// Describes the filter, if not all traffic is subscribed to.
    pub(super) fn filter(&self) -> Option<String> {
        let rules = &self.shared.rules;
        rules.filter(self.local_port, self.key.port).map(describe)
    }

    /// Emits one event for the subscriptions at all of these agents.
    pub(super) fn emit_subscribed(
        &self,
        id: Option<&AgentId>,
        all: &[(&AgentId, &ActiveSubscription)],
    ) {
        let active: Vec<&ActiveSubscription> = all.iter().map(|(_, active)| *active).collect();
        let clusters: BTreeSet<&String> = all
            .iter()
            .filter_map(|(agent, _)| agent.cluster.as_ref())
            .collect();
        let info = SubscriptionInfo {
            local_port: self.local_port,
            steals: self.shared.steals(),
            filter: self.filter(),
            check: active
                .iter()
                .map(|active| active.check)
                .min()
                .unwrap_or(RedirectCheck::Unverified),
            mesh: active.iter().find_map(|active| active.mesh.clone()),
            flushed: active.iter().map(|active| active.flushed).sum(),
            is_renewed: active.iter().any(|active| active.is_renewed),
            agents: active.len(),
            clusters: clusters.into_iter().cloned().collect(),
            earlier: merge_earlier(&active),
            is_served: self.is_served,
        };
        self.emit(id, IncomingEventKind::Subscribed(info));
    }

    pub(super) fn emit_refused(
        &self,
        id: &AgentId,
        at: &mut PortAtAgent,
        status: &Status,
        will_retry: bool,
    ) {
        let reason = reason_of(status);
        if at.reported_reason.as_ref() != Some(&reason) && self.listeners.remove_closed() {
            at.reported_reason = Some(reason.clone());
            let kind = IncomingEventKind::LocalOnly { reason, will_retry };
            self.emit(Some(id), kind);
        }
    }

    /// Whether traffic of the port is expected, so that the user is interested in it.
    fn is_expected(&self) -> bool {
        let rules = &self.shared.rules;
        self.is_served || self.has_traffic || rules.names(self.local_port, self.key.port)
    }

    pub(super) fn emit(&self, agent: Option<&AgentId>, kind: IncomingEventKind) {
        let event = IncomingEvent {
            port: self.key.port,
            is_udp: self.key.is_udp,
            agent: agent.cloned(),
            is_expected: self.is_expected(),
            kind,
        };
        (self.shared.context.events)(&Event::Incoming(event));
    }
}

/// The sessions with earlier claims at any of the agents.
fn merge_earlier(active: &[&ActiveSubscription]) -> Vec<EarlierSession> {
    let mut merged: Vec<EarlierSession> = Vec::new();
    for earlier in active.iter().flat_map(|active| &active.earlier) {
        match merged
            .iter_mut()
            .find(|session| session.holder == earlier.holder)
        {
            Some(session) => session.takes_all &= earlier.takes_all,
            None => merged.push(earlier.clone()),
        }
    }
    // A session that takes everything at some agents only leaves something at the others.
    let is_everywhere = |holder: &str| {
        let has = |active: &&ActiveSubscription| {
            let mut earlier = active.earlier.iter();
            earlier.any(|earlier| earlier.holder == holder)
        };
        active.iter().all(has)
    };
    for session in &mut merged {
        session.takes_all &= is_everywhere(&session.holder);
    }
    merged
}
