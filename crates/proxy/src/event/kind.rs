//! Kinds of events: similar ones can be combined into one message with their number.

use interceptor::Notice;

use super::{Event, FileProblem, IncomingEvent, IncomingEventKind};

/// A kind of events that differ only in the file, the program or the port that they are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventKind {
    ForeignArchitecture,
    UnreadableMemory,
    WatchRefused,
    NoPrivileges,
    LocalUnixSocket,
    RemoteProgram,
    PortMoved,
    OtherNotice,
    FileNotEmpty,
    FileTooLarge,
    SpecialFile,
    OtherContent,
    FileNotWritten,
    NoLocalDirectory,
    TooManyConnections,
    /// The program receives the traffic of a port on which none is expected.
    UnexpectedPort,
    WaitingPort,
    SilentPort,
    RefusedPort,
    LocalPort,
}

impl Event {
    /// `None` for events that are always shown: those of the session as a whole, and those of ports on which traffic is
    /// expected.
    #[must_use]
    pub fn kind(&self) -> Option<EventKind> {
        match self {
            Self::Program(notice) => Some(EventKind::of_notice(notice)),
            Self::File(_, problem) => Some(EventKind::of_problem(*problem)),
            Self::NoLocalDirectory { .. } => Some(EventKind::NoLocalDirectory),
            Self::TooManyConnections(_) => Some(EventKind::TooManyConnections),
            Self::Incoming(event) if !event.is_expected => EventKind::of_incoming(event),
            _ => None,
        }
    }

    /// What the event is about. Events of one kind with the same subject count as one.
    #[must_use]
    pub fn subject(&self) -> String {
        match self {
            // A subscription may be repeated with other details.
            Self::Incoming(event) if matches!(event.kind, IncomingEventKind::Subscribed(_)) => {
                event.port_name()
            }
            event => event.to_string(),
        }
    }
}

impl EventKind {
    fn of_notice(notice: &Notice) -> Self {
        match notice {
            Notice::ForeignArchitecture { .. } => Self::ForeignArchitecture,
            Notice::UnreadableMemory { .. } => Self::UnreadableMemory,
            Notice::WatchRefused { .. } => Self::WatchRefused,
            Notice::NoPrivileges { .. } => Self::NoPrivileges,
            Notice::LocalUnixSocket { .. } => Self::LocalUnixSocket,
            Notice::RemoteProgram { .. } => Self::RemoteProgram,
            Notice::PortMoved { .. } => Self::PortMoved,
            _ => Self::OtherNotice,
        }
    }

    fn of_problem(problem: FileProblem) -> Self {
        match problem {
            FileProblem::NotEmpty => Self::FileNotEmpty,
            FileProblem::TooLarge => Self::FileTooLarge,
            FileProblem::Special => Self::SpecialFile,
            FileProblem::OtherContent => Self::OtherContent,
            FileProblem::NotWritten(_) => Self::FileNotWritten,
        }
    }

    fn of_incoming(event: &IncomingEvent) -> Option<Self> {
        match &event.kind {
            IncomingEventKind::Subscribed(_) => Some(Self::UnexpectedPort),
            IncomingEventKind::Waiting => Some(Self::WaitingPort),
            IncomingEventKind::Silent { .. } | IncomingEventKind::NothingMatched { .. } => {
                Some(Self::SilentPort)
            }
            IncomingEventKind::Refused { .. } => Some(Self::RefusedPort),
            IncomingEventKind::LocalOnly { .. } => Some(Self::LocalPort),
            _ => None,
        }
    }

    /// Whether even the first event of the kind need not be shown at once.
    #[must_use]
    pub fn is_minor(self) -> bool {
        self == Self::UnexpectedPort
    }

    /// The message for several events, in addition to those that were shown.
    #[must_use]
    pub fn summary(self, count: usize) -> String {
        let (subject, rest) = match self {
            Self::ForeignArchitecture => (
                "programs",
                "are of another architecture: everything that they do is local",
            ),
            Self::UnreadableMemory => (
                "programs",
                "have memory that cannot be read: everything that they do is local",
            ),
            Self::WatchRefused => ("paths", "cannot be watched for changes"),
            Self::NoPrivileges => (
                "programs",
                "run without the privileges that they have otherwise",
            ),
            Self::LocalUnixSocket => (
                "sockets",
                "are created on this machine: processes at the target cannot reach them",
            ),
            Self::RemoteProgram => (
                "programs",
                "are of the target, and cannot be started from this machine",
            ),
            Self::PortMoved => (
                "addresses",
                "are not available on this machine: the program is reached from here at others",
            ),
            Self::OtherNotice => ("messages", "are about programs of the session"),
            Self::FileNotEmpty => (
                "files",
                "have content at the target, and cannot be changed without FUSE",
            ),
            Self::FileTooLarge => ("files", "are too large to be read without FUSE"),
            Self::SpecialFile => (
                "paths",
                "are pipes, sockets or devices of the target, which cannot be opened from here",
            ),
            Self::OtherContent => (
                "files",
                "are at the target, and were opened for reading and writing: those of this machine are used",
            ),
            Self::FileNotWritten => (
                "files",
                "were not written: what the program wrote did not reach the target",
            ),
            Self::NoLocalDirectory => (
                "programs",
                "were not started: their working directories are on the target only",
            ),
            Self::TooManyConnections => (
                "messages",
                "are about too many connections through the target",
            ),
            Self::UnexpectedPort => {
                return format!(
                    "the program also opened {count} ports that the target does not serve"
                );
            }
            Self::WaitingPort => ("ports", "wait until the agents of all pods are connected"),
            Self::SilentPort => ("ports", "have no traffic for the program"),
            Self::RefusedPort => {
                return format!(
                    "the program cannot listen on a port of the target: {count} more times"
                );
            }
            Self::LocalPort => (
                "ports",
                "are on this machine alone: the program gets nothing of the target's",
            ),
        };
        format!("{count} more {subject} {rest}")
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::event::{RedirectCheck, SubscriptionInfo};

    #[test]
    fn events_about_files_and_programs_have_a_kind_and_events_of_the_session_have_none() {
        let path = || PathBuf::from("/etc/shop");
        let watch = Event::Program(Notice::WatchRefused { path: path() });
        for (event, expected) in [
            (watch, Some(EventKind::WatchRefused)),
            (
                Event::File(path(), FileProblem::Special),
                Some(EventKind::SpecialFile),
            ),
            (
                Event::TooManyConnections(7),
                Some(EventKind::TooManyConnections),
            ),
            (Event::TargetExited, None),
            (Event::ConnectionLost("timed out".to_owned()), None),
        ] {
            assert_eq!(event.kind(), expected, "{event}");
        }
    }

    #[test]
    fn events_of_ports_have_a_kind_if_no_traffic_is_expected() {
        let event = |kind: IncomingEventKind, is_expected| {
            Event::Incoming(IncomingEvent {
                port: 40_000,
                is_udp: true,
                agent: None,
                is_expected,
                kind,
            })
        };
        let waiting = || IncomingEventKind::Waiting;
        assert_eq!(event(waiting(), true).kind(), None);
        assert_eq!(event(waiting(), false).kind(), Some(EventKind::WaitingPort));
        let first = event(IncomingEventKind::TrafficSeen, false);
        assert_eq!(first.kind(), None);
        let info = SubscriptionInfo {
            local_port: 40_000,
            steals: true,
            filter: None,
            check: RedirectCheck::Loopback,
            mesh: None,
            flushed: 0,
            is_renewed: false,
            agents: 1,
            clusters: Vec::new(),
            earlier: Vec::new(),
            is_served: false,
        };
        let subscribed = event(IncomingEventKind::Subscribed(info), false);
        assert_eq!(subscribed.kind(), Some(EventKind::UnexpectedPort));
        assert_eq!(subscribed.subject(), "UDP port 40000");
    }

    #[test]
    fn a_summary_has_the_number_of_events() {
        assert_eq!(
            EventKind::WatchRefused.summary(12),
            "12 more paths cannot be watched for changes"
        );
    }
}
