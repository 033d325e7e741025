//! Limits repeated warnings about a program: the first few of each kind are printed, and the others are counted.

use std::collections::{HashMap, HashSet};
use std::mem::{Discriminant, discriminant};

use proxy::{Event, FileProblem, Notice};

/// How many warnings of each kind are printed.
const MAX_PER_KIND: usize = 8;

/// Messages that differ only in the path or the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum NoticeKind {
    Program(Discriminant<Notice>),
    File(Discriminant<FileProblem>),
    Directory,
    Connections,
}

impl NoticeKind {
    /// `None` for events of the session as a whole, which are always printed.
    pub(super) fn of(event: &Event) -> Option<Self> {
        match event {
            Event::Program(notice) => Some(Self::Program(discriminant(notice))),
            Event::File(_, problem) => Some(Self::File(discriminant(problem))),
            Event::NoLocalDirectory { .. } => Some(Self::Directory),
            Event::TooManyConnections(_) => Some(Self::Connections),
            _ => None,
        }
    }
}

/// What to do with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Print,
    /// It is the first one that is suppressed.
    AnnounceMore,
    Suppress,
}

#[derive(Debug, Default)]
pub(super) struct Notices {
    printed: HashMap<NoticeKind, HashSet<String>>,
    suppressed: usize,
    announced: HashSet<NoticeKind>,
}

impl Notices {
    pub(super) fn check(&mut self, kind: NoticeKind, text: &str) -> Verdict {
        let printed = self.printed.entry(kind).or_default();
        if printed.contains(text) {
            return Verdict::Suppress;
        }
        if printed.len() < MAX_PER_KIND {
            printed.insert(text.to_owned());
            return Verdict::Print;
        }
        self.suppressed += 1;
        if self.announced.insert(kind) {
            Verdict::AnnounceMore
        } else {
            Verdict::Suppress
        }
    }

    /// How many were suppressed beyond the limit, repeated texts included.
    pub(super) fn suppressed(&self) -> usize {
        self.suppressed
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn the_first_few_of_each_kind_are_printed_once_and_the_rest_is_counted() {
        let mut notices = Notices::default();
        let mut check = |event: Event| {
            let kind = NoticeKind::of(&event).unwrap();
            notices.check(kind, &event.to_string())
        };
        let special =
            |number: usize| Event::File(PathBuf::from(format!("/{number}")), FileProblem::Special);
        for number in 0..MAX_PER_KIND {
            assert_eq!(check(special(number)), Verdict::Print);
            assert_eq!(check(special(number)), Verdict::Suppress);
        }
        assert_eq!(check(special(100)), Verdict::AnnounceMore);
        assert_eq!(check(special(101)), Verdict::Suppress);
        let other = Event::File(PathBuf::from("/0"), FileProblem::TooLarge);
        assert_eq!(check(other), Verdict::Print);
        let watch = |path: &str| Notice::WatchRefused { path: path.into() };
        assert_eq!(check(Event::Program(watch("/0"))), Verdict::Print);
        assert_eq!(notices.suppressed(), 2);
        // Memory use does not grow with the number of events.
        let stored: usize = notices.printed.values().map(HashSet::len).sum();
        assert_eq!(stored, MAX_PER_KIND + 2);
        assert_eq!(NoticeKind::of(&Event::TargetExited), None);
    }
}
