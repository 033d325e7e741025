//! What the user is told becomes events, rows of ports and the session's health.

use monitor::{Event as Told, Handling, Health, Level, Mode, PortRow, Status, Transport, Word};
use protocol::rpc::Missed;

use super::Monitor;
use crate::event::{Checked, Event, IncomingEvent, MissedReason, News, Subscribed};

impl Monitor {
    /// A request that the session wanted went to the application instead. How many there were is told with the reasons, for
    /// all of a while together.
    pub(crate) fn passed_on(&self, port: u16, missed: &Missed, cluster: Option<&String>) {
        if missed.method.is_empty() {
            return;
        }
        self.emit(Told::IncomingRequest {
            connection: 0,
            port,
            method: missed.method.clone(),
            path: missed.path.clone(),
            protocol: Word::default(),
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

    /// Takes note of what the user is told.
    pub fn told(&self, event: &Event) {
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
                match &incoming.news {
                    News::Subscribed(subscribed) => {
                        let row = row(incoming, subscribed, now);
                        recorder.emit(now, subscription(&row, subscribed));
                        recorder.subscribed(incoming.is_udp, row);
                        return;
                    }
                    News::Missed {
                        reason,
                        count,
                        lost,
                    } => {
                        recorder.passed_on(incoming.port, *count);
                        let event = Told::RequestsPassedOn {
                            port: incoming.port,
                            count: *count,
                            lost: *lost,
                            reason: reason.to_string(),
                            cluster: cluster.clone(),
                        };
                        recorder.emit(now, event);
                    }
                    News::Waiting => {}
                    News::TrafficSeen => {
                        if let Some(row) = recorder.port(incoming.is_udp, incoming.port) {
                            row.last_traffic = Some(now);
                            row.problem = None;
                        }
                    }
                    _ => {
                        if let Some(row) = recorder.port(incoming.is_udp, incoming.port) {
                            row.problem = Some(incoming.news.to_string());
                        }
                    }
                }
            }
            let level = level(event);
            recorder.emit(now, Told::Notice { level, text });
        });
    }
}

fn level(event: &Event) -> Level {
    match event {
        Event::ConnectionBack | Event::SessionRestored(_) | Event::TargetBack => Level::Info,
        event if event.is_reassuring() => Level::Info,
        _ => Level::Warning,
    }
}

fn health(event: &Event) -> Option<Health> {
    let status = match event {
        Event::ConnectionLost(_) | Event::AgentLost { .. } => Status::Reconnecting,
        Event::SessionLost(_) | Event::TargetGone | Event::NobodyThere(_) => Status::Lost,
        Event::SessionOver(_) => Status::Ended,
        Event::ConnectionBack | Event::SessionRestored(_) | Event::TargetBack => {
            return Some(Health::default());
        }
        _ => return None,
    };
    let reason = Some(event.to_string());
    Some(Health { status, reason })
}

fn row(incoming: &IncomingEvent, subscribed: &Subscribed, now: u64) -> PortRow {
    PortRow {
        port: incoming.port,
        local_port: subscribed.local,
        transport: if incoming.is_udp {
            Transport::Udp
        } else {
            Transport::Tcp
        },
        mode: if subscribed.steals {
            Mode::Steal
        } else {
            Mode::Mirror
        },
        filter: subscribed.filter.clone(),
        checked: match subscribed.checked {
            Checked::Nothing => "nothing",
            Checked::Loopback => "loopback",
            Checked::Outside => "outside",
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

/// Of one agent, or of all together, which may be in several clusters.
fn subscription(row: &PortRow, subscribed: &Subscribed) -> Told {
    let all = (!subscribed.clusters.is_empty()).then(|| subscribed.clusters.join(", "));
    Told::PortSubscription {
        port: row.port,
        local_port: row.local_port,
        transport: row.transport,
        mode: row.mode,
        filter: row.filter.clone(),
        checked: row.checked.clone(),
        cluster: row.cluster.clone().or(all),
    }
}
