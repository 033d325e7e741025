//! Records the session's events: as monitor events, in the rows of ports and in the session's health.

use monitor::{
    Event as MonitorEvent, Handling, Health, Keyword, Level, Mode, PortRow, Status, Transport,
};
use protocol::rpc::MissedTraffic;

use super::Monitor;
use crate::event::{
    Event, IncomingEvent, IncomingEventKind, MissedReason, RedirectCheck, SubscriptionInfo,
};

impl Monitor {
    /// Records a request that matched, but went to the application instead. The counts are recorded with the combined
    /// `Missed` event.
    pub(crate) fn passed_on(&self, port: u16, missed: &MissedTraffic, cluster: Option<&String>) {
        if missed.method.is_empty() {
            return;
        }
        self.emit(MonitorEvent::IncomingRequest {
            connection: 0,
            port,
            method: missed.method.clone(),
            path: missed.path.clone(),
            protocol: Keyword::default(),
            host: None,
            status: None,
            handling: if missed.lost {
                Handling::Lost
            } else {
                Handling::PassedOn
            },
            reason: Some(MissedReason::from(missed.reason()).to_string()),
            client: String::new(),
            latency_us: 0,
            received: 0,
            sent: 0,
            cluster: cluster.cloned(),
        });
    }

    /// Records an event of the session.
    pub fn record_event(&self, event: &Event) {
        let Some(hub) = &self.0 else { return };
        let text = event.to_string();
        let health = health(event);
        hub.record(|recorder, now| {
            if let Some(health) = health {
                recorder.health = health;
            }
            if let Event::Incoming(incoming) = event {
                let agent = incoming.agent.as_ref();
                let cluster = agent.and_then(|agent| agent.cluster.clone());
                match &incoming.kind {
                    IncomingEventKind::Subscribed(info) => {
                        let row = row(incoming, info, now);
                        recorder.emit(now, port_subscription(&row, info));
                        recorder.subscribed(incoming.is_udp, row);
                        return;
                    }
                    IncomingEventKind::Missed {
                        reason,
                        count,
                        lost,
                    } => {
                        recorder.passed_on(incoming.port, *count);
                        let event = MonitorEvent::RequestsPassedOn {
                            port: incoming.port,
                            count: *count,
                            lost: *lost,
                            reason: reason.to_string(),
                            cluster: cluster.clone(),
                        };
                        recorder.emit(now, event);
                    }
                    IncomingEventKind::Waiting => {}
                    IncomingEventKind::TrafficSeen => {
                        if let Some(row) = recorder.port(incoming.is_udp, incoming.port) {
                            row.last_traffic = Some(now);
                            row.problem = None;
                        }
                    }
                    _ => {
                        if let Some(row) = recorder.port(incoming.is_udp, incoming.port) {
                            row.problem = Some(incoming.kind.to_string());
                        }
                    }
                }
            }
            let level = level(event);
            recorder.emit(now, MonitorEvent::Notice { level, text });
        });
    }
}

fn level(event: &Event) -> Level {
    match event {
        Event::ConnectionRestored | Event::SessionRestored(_) | Event::TargetRestarted => {
            Level::Info
        }
        event if event.is_informational() => Level::Info,
        _ => Level::Warning,
    }
}

fn health(event: &Event) -> Option<Health> {
    let status = match event {
        Event::ConnectionLost(_) | Event::AgentLost { .. } => Status::Reconnecting,
        Event::SessionLost(_) | Event::TargetExited | Event::NoTargetPods(_) => Status::Lost,
        Event::SessionEnded(_) => Status::Ended,
        Event::ConnectionRestored | Event::SessionRestored(_) | Event::TargetRestarted => {
            return Some(Health::default());
        }
        _ => return None,
    };
    let reason = Some(event.to_string());
    Some(Health { status, reason })
}

fn row(incoming: &IncomingEvent, info: &SubscriptionInfo, now: u64) -> PortRow {
    PortRow {
        port: incoming.port,
        local_port: info.local_port,
        transport: if incoming.is_udp {
            Transport::Udp
        } else {
            Transport::Tcp
        },
        mode: if info.steals {
            Mode::Steal
        } else {
            Mode::Mirror
        },
        filter: info.filter.clone(),
        redirect_check: match info.check {
            RedirectCheck::Unverified => "unverified",
            RedirectCheck::Loopback => "loopback",
            RedirectCheck::External => "external",
        }
        .to_owned(),
        since: now,
        connections: 0,
        requests: 0,
        passed_on: 0,
        last_traffic: None,
        problem: None,
        cluster: incoming
            .agent
            .as_ref()
            .and_then(|agent| agent.cluster.clone()),
    }
}

/// The event of a subscription, at one agent or at all agents, which may be in several clusters.
fn port_subscription(row: &PortRow, info: &SubscriptionInfo) -> MonitorEvent {
    let all = (!info.clusters.is_empty()).then(|| info.clusters.join(", "));
    MonitorEvent::PortSubscription {
        port: row.port,
        local_port: row.local_port,
        transport: row.transport,
        mode: row.mode,
        filter: row.filter.clone(),
        redirect_check: row.redirect_check.clone(),
        cluster: row.cluster.clone().or(all),
    }
}
