//! Merges the ports that a session's agents report. Pure logic without I/O.

use std::collections::BTreeMap;

use api::session::SessionPort;

/// The limit of ports that are stored and shown for one session.
const MAX_PORTS: usize = 100;
/// The limit of a filter's text. Agents send less.
const MAX_FILTER_CHARS: usize = 500;

/// The ports of one session.
#[derive(Debug, Default)]
pub(super) struct ReportedPorts {
    /// By agent. `None`: the agent has not reported yet.
    agents: BTreeMap<String, Option<Vec<SessionPort>>>,
    /// The ports of all agents, sorted.
    ports: Vec<SessionPort>,
    /// The ports in the session's object. `None`: the object has not been read yet.
    written: Option<Vec<SessionPort>>,
    /// Later reports are ignored.
    is_closed: bool,
}

/// The difference between two states.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PortChange {
    pub(super) added: Vec<SessionPort>,
    pub(super) removed: Vec<SessionPort>,
}

impl PortChange {
    pub(super) fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty()
    }
}

impl ReportedPorts {
    /// Starts with the ports in the session's object. Only the first call has an effect: afterwards this state is newer.
    pub(super) fn initialize(&mut self, written: &[SessionPort]) {
        if self.written.is_none() {
            self.ports = written.to_vec();
            self.written = Some(written.to_vec());
        }
    }

    /// An agent will report its ports. No port is removed before it has.
    pub(super) fn expect(&mut self, agent: &str) {
        self.agents.entry(agent.to_owned()).or_default();
    }

    /// An agent is unreachable. If it has never reported, it no longer prevents the removal of ports.
    pub(super) fn stop_expecting(&mut self, agent: &str) -> PortChange {
        if let Some(unreported @ None) = self.agents.get_mut(agent) {
            *unreported = Some(Vec::new());
        }
        self.merge()
    }

    pub(super) fn report(&mut self, agent: &str, ports: Vec<SessionPort>) -> PortChange {
        // The report of an agent that was removed in the meantime is ignored.
        if let Some(reported) = self.agents.get_mut(agent) {
            *reported = Some(ports);
        }
        self.merge()
    }

    /// Removes the agents for which `exists` is false.
    pub(super) fn retain(&mut self, exists: impl Fn(&str) -> bool) -> PortChange {
        let before = self.agents.len();
        self.agents.retain(|agent, _| exists(agent));
        match self.agents.len() == before {
            true => PortChange::default(),
            false => self.merge(),
        }
    }

    /// The ports that the session's object should have, if it has others.
    pub(super) fn unwritten(&self) -> Option<Vec<SessionPort>> {
        let is_written = self.written.as_ref() == Some(&self.ports);
        (self.written.is_some() && !is_written).then(|| self.ports.clone())
    }

    pub(super) fn mark_written(&mut self, ports: &[SessionPort]) {
        self.written = Some(ports.to_vec());
    }

    /// Ignores all later reports.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
    }

    fn merge(&mut self) -> PortChange {
        if self.is_closed {
            return PortChange::default();
        }
        let all_have_reported = self.agents.values().all(Option::is_some);
        let reported = self.agents.values().flatten().flatten();
        let mut now: Vec<SessionPort> = reported.cloned().collect();
        if !all_have_reported {
            now.extend_from_slice(&self.ports);
        }
        now.sort_unstable();
        now.dedup();
        now.truncate(MAX_PORTS);
        let missing = |from: &[SessionPort], all: &[SessionPort]| {
            let missing = all.iter().filter(|port| !from.contains(port));
            missing.cloned().collect::<Vec<_>>()
        };
        let change = PortChange {
            added: missing(&self.ports, &now),
            removed: missing(&now, &self.ports),
        };
        self.ports = now;
        change
    }
}

/// Sanitizes and bounds the report of an agent before it is stored and shown. An agent runs next to a user's program, so its
/// reports are not trusted.
pub(super) fn sanitize(ports: Vec<SessionPort>) -> Vec<SessionPort> {
    let is_valid = |port: &SessionPort| {
        [SessionPort::TCP, SessionPort::UDP].contains(&&*port.protocol)
            && [SessionPort::STEAL, SessionPort::MIRROR].contains(&&*port.mode)
    };
    let plain = |filter: String| {
        let visible = |character: char| match character.is_control() {
            true => char::REPLACEMENT_CHARACTER,
            false => character,
        };
        filter.chars().take(MAX_FILTER_CHARS).map(visible).collect()
    };
    let ports = ports.into_iter().filter(is_valid).take(MAX_PORTS);
    ports
        .map(|port| SessionPort {
            filter: port.filter.map(plain),
            ..port
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(number: u16) -> SessionPort {
        SessionPort {
            port: number,
            protocol: SessionPort::TCP.to_owned(),
            mode: SessionPort::STEAL.to_owned(),
            filter: None,
        }
    }

    fn ports(numbers: &[u16]) -> Vec<SessionPort> {
        numbers.iter().copied().map(port).collect()
    }

    fn check(change: &PortChange, added: &[u16], removed: &[u16]) {
        assert_eq!(change.added, ports(added));
        assert_eq!(change.removed, ports(removed));
    }

    #[test]
    fn a_port_is_added_with_the_first_agent_and_removed_with_the_last() {
        let mut reported = ReportedPorts::default();
        reported.initialize(&[]);
        reported.expect("a");
        reported.expect("b");
        check(&reported.report("a", ports(&[80])), &[80], &[]);
        check(&reported.report("b", ports(&[80, 90])), &[90], &[]);
        check(&reported.report("a", ports(&[])), &[], &[]);
        assert_eq!(reported.unwritten(), Some(ports(&[80, 90])));
        reported.mark_written(&ports(&[80, 90]));
        assert_eq!(reported.unwritten(), None);
        check(&reported.retain(|agent| agent == "a"), &[], &[80, 90]);
        assert_eq!(reported.unwritten(), Some(Vec::new()));
    }

    #[test]
    fn a_failover_reports_no_change_twice() {
        let mut reported = ReportedPorts::default();
        reported.initialize(&ports(&[80]));
        // Later versions of the object contain our own writes, perhaps with a delay.
        reported.initialize(&[]);
        reported.expect("a");
        reported.expect("b");
        // `b` is new and has no port, and `a` has not reported yet.
        check(&reported.report("b", Vec::new()), &[], &[]);
        check(&reported.report("a", ports(&[80])), &[], &[]);
        assert_eq!(reported.unwritten(), None);
        check(&reported.report("a", Vec::new()), &[], &[80]);
    }

    #[test]
    fn an_unreachable_agent_neither_keeps_nor_removes_ports() {
        let mut reported = ReportedPorts::default();
        reported.initialize(&ports(&[80]));
        reported.expect("a");
        reported.expect("b");
        check(&reported.report("a", Vec::new()), &[], &[]);
        check(&reported.stop_expecting("b"), &[], &[80]);
        check(&reported.report("a", ports(&[90])), &[90], &[]);
        check(&reported.stop_expecting("a"), &[], &[]);
        reported.close();
        check(&reported.report("a", Vec::new()), &[], &[]);
        assert_eq!(reported.unwritten(), Some(ports(&[90])));
    }

    #[test]
    fn nothing_is_written_before_the_object_was_read() {
        let reported = ReportedPorts::default();
        assert_eq!(reported.unwritten(), None);
    }

    #[test]
    fn reports_are_bounded() {
        let odd = SessionPort {
            filter: Some(format!("\u{1b}{}", "a".repeat(5000))),
            ..port(80)
        };
        let unknown = SessionPort {
            mode: "juggle".to_owned(),
            ..port(81)
        };
        let sanitized = sanitize([vec![unknown, odd], vec![port(82); 1000]].concat());
        assert_eq!(sanitized.len(), MAX_PORTS);
        let filter = sanitized[0].filter.as_ref().unwrap();
        assert_eq!(filter.chars().count(), MAX_FILTER_CHARS);
        assert!(filter.starts_with("\u{fffd}a"));
    }
}
