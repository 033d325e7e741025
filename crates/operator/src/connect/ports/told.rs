//! What agents have told of their ports, put together. Decides, and does nothing.

use std::collections::BTreeMap;

use api::session::SessionPort;

/// Ports of one session that people are told of.
const MOST_PORTS: usize = 100;
/// Agents tell less.
const LONGEST_FILTER: usize = 500;

/// What a session has.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Of each agent. None: it has not spoken yet.
    agents: BTreeMap<String, Option<Vec<SessionPort>>>,
    /// All of it, in order.
    ports: Vec<SessionPort>,
    /// What the session's object has. None: it has not been read yet.
    written: Option<Vec<SessionPort>>,
    /// What comes now comes too late.
    is_closed: bool,
}

/// What is different.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) begun: Vec<SessionPort>,
    pub(super) ended: Vec<SessionPort>,
}

impl Change {
    pub(super) fn is_none(&self) -> bool {
        self.begun.is_empty() && self.ended.is_empty()
    }
}

impl Told {
    /// Goes on from what the session's object has. The first time counts: after it, we know better.
    pub(super) fn begin(&mut self, written: &[SessionPort]) {
        if self.written.is_none() {
            self.ports = written.to_vec();
            self.written = Some(written.to_vec());
        }
    }

    /// An agent will speak. Nothing ends before it has.
    pub(super) fn expect(&mut self, agent: &str) {
        self.agents.entry(agent.to_owned()).or_default();
    }

    /// It does not speak now.
    pub(super) fn expect_no_more(&mut self, agent: &str) -> Change {
        if let Some(silent @ None) = self.agents.get_mut(agent) {
            *silent = Some(Vec::new());
        }
        self.changed()
    }

    pub(super) fn hear(&mut self, agent: &str, ports: Vec<SessionPort>) -> Change {
        // One that has gone meanwhile has nothing.
        if let Some(known) = self.agents.get_mut(agent) {
            *known = Some(ports);
        }
        self.changed()
    }

    /// The others are gone.
    pub(super) fn keep_only(&mut self, is_there: impl Fn(&str) -> bool) -> Change {
        let before = self.agents.len();
        self.agents.retain(|agent, _| is_there(agent));
        match self.agents.len() == before {
            true => Change::default(),
            false => self.changed(),
        }
    }

    /// What the session's object should have, if it has something else.
    pub(super) fn unwritten(&self) -> Option<Vec<SessionPort>> {
        let is_written = self.written.as_ref() == Some(&self.ports);
        (self.written.is_some() && !is_written).then(|| self.ports.clone())
    }

    pub(super) fn note_written(&mut self, ports: &[SessionPort]) {
        self.written = Some(ports.to_vec());
    }

    /// From now on nothing is different any more.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
    }

    fn changed(&mut self) -> Change {
        if self.is_closed {
            return Change::default();
        }
        let all_have_spoken = self.agents.values().all(Option::is_some);
        let told = self.agents.values().flatten().flatten();
        let mut now: Vec<SessionPort> = told.cloned().collect();
        if !all_have_spoken {
            now.extend_from_slice(&self.ports);
        }
        now.sort_unstable();
        now.dedup();
        now.truncate(MOST_PORTS);
        let missing = |from: &[SessionPort], all: &[SessionPort]| {
            let missing = all.iter().filter(|port| !from.contains(port));
            missing.cloned().collect::<Vec<_>>()
        };
        let change = Change {
            begun: missing(&self.ports, &now),
            ended: missing(&now, &self.ports),
        };
        self.ports = now;
        change
    }
}

/// What is stored and shown of what an agent says: it is beside somebody's program, and may be somebody else.
pub(super) fn believed(ports: Vec<SessionPort>) -> Vec<SessionPort> {
    let is_known = |port: &SessionPort| {
        [SessionPort::TCP, SessionPort::UDP].contains(&&*port.protocol)
            && [SessionPort::STEAL, SessionPort::MIRROR].contains(&&*port.mode)
    };
    let plain = |filter: String| {
        let visible = |character: char| match character.is_control() {
            true => char::REPLACEMENT_CHARACTER,
            false => character,
        };
        filter.chars().take(LONGEST_FILTER).map(visible).collect()
    };
    let ports = ports.into_iter().filter(is_known).take(MOST_PORTS);
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

    fn check(change: &Change, begun: &[u16], ended: &[u16]) {
        assert_eq!(change.begun, ports(begun));
        assert_eq!(change.ended, ports(ended));
    }

    #[test]
    fn a_port_begins_with_the_first_agent_and_ends_with_the_last() {
        let mut told = Told::default();
        told.begin(&[]);
        told.expect("a");
        told.expect("b");
        check(&told.hear("a", ports(&[80])), &[80], &[]);
        check(&told.hear("b", ports(&[80, 90])), &[90], &[]);
        check(&told.hear("a", ports(&[])), &[], &[]);
        assert_eq!(told.unwritten(), Some(ports(&[80, 90])));
        told.note_written(&ports(&[80, 90]));
        assert_eq!(told.unwritten(), None);
        check(&told.keep_only(|agent| agent == "a"), &[], &[80, 90]);
        assert_eq!(told.unwritten(), Some(Vec::new()));
    }

    #[test]
    fn who_goes_on_for_another_replica_tells_nothing_twice() {
        let mut told = Told::default();
        told.begin(&ports(&[80]));
        // What we have told ourselves comes back with the object, perhaps late.
        told.begin(&[]);
        told.expect("a");
        told.expect("b");
        // The new one has nothing yet, and the other has not spoken.
        check(&told.hear("b", Vec::new()), &[], &[]);
        check(&told.hear("a", ports(&[80])), &[], &[]);
        assert_eq!(told.unwritten(), None);
        check(&told.hear("a", Vec::new()), &[], &[80]);
    }

    #[test]
    fn who_is_silent_keeps_nothing_alive_and_takes_nothing_away() {
        let mut told = Told::default();
        told.begin(&ports(&[80]));
        told.expect("a");
        told.expect("b");
        check(&told.hear("a", Vec::new()), &[], &[]);
        check(&told.expect_no_more("b"), &[], &[80]);
        check(&told.hear("a", ports(&[90])), &[90], &[]);
        check(&told.expect_no_more("a"), &[], &[]);
        told.close();
        check(&told.hear("a", Vec::new()), &[], &[]);
        assert_eq!(told.unwritten(), Some(ports(&[90])));
    }

    #[test]
    fn nothing_is_known_before_the_object_is() {
        let told = Told::default();
        assert_eq!(told.unwritten(), None);
    }

    #[test]
    fn what_agents_say_is_bounded() {
        let odd = SessionPort {
            filter: Some(format!("\u{1b}{}", "a".repeat(5000))),
            ..port(80)
        };
        let unknown = SessionPort {
            mode: "juggle".to_owned(),
            ..port(81)
        };
        let believed = believed([vec![unknown, odd], vec![port(82); 1000]].concat());
        assert_eq!(believed.len(), MOST_PORTS);
        let filter = believed[0].filter.as_ref().unwrap();
        assert_eq!(filter.chars().count(), LONGEST_FILTER);
        assert!(filter.starts_with("\u{fffd}a"));
    }
}
