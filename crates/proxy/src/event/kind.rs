//! Kinds of events: similar ones can be combined into one message with their number.

use interceptor::Notice;

use super::{Event, FileProblem};

/// A kind of events that differ only in the file or the program that they are about.
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
    TooManyConnections,
}

impl Event {
    /// `None` for events of the session as a whole. Each of them changes what the session can do, so none can stand for
    /// the others.
    #[must_use]
    pub fn kind(&self) -> Option<EventKind> {
        match self {
            Self::Program(notice) => Some(EventKind::of_notice(notice)),
            Self::File(_, problem) => Some(EventKind::of_problem(*problem)),
            Self::TooManyConnections(_) => Some(EventKind::TooManyConnections),
            _ => None,
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

    /// The message for several events, after others of the same kind were shown.
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
            Self::TooManyConnections => (
                "messages",
                "are about too many connections through the target",
            ),
        };
        format!("{count} more {subject} {rest}")
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

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
    fn a_summary_has_the_number_of_events() {
        assert_eq!(
            EventKind::WatchRefused.summary(12),
            "12 more paths cannot be watched for changes"
        );
    }
}
