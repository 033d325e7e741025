//! What is said of a program that does the same thing in many places: the first few of a kind, and how many more there
//! were.

use std::collections::{HashMap, HashSet};
use std::mem::{Discriminant, discriminant};

use proxy::{Event, FileProblem, Notice};

/// So many of a kind are worth being read.
const MOST: usize = 8;

/// Messages that differ only in the path or the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Program(Discriminant<Notice>),
    File(Discriminant<FileProblem>),
    Connections,
}

impl Kind {
    /// `None` for what happens to the session as a whole, which is always said.
    pub(super) fn of(event: &Event) -> Option<Self> {
        match event {
            Event::Program(notice) => Some(Self::Program(discriminant(notice))),
            Event::File(_, problem) => Some(Self::File(discriminant(problem))),
            Event::TooManyConnections(_) => Some(Self::Connections),
            _ => None,
        }
    }
}

/// What becomes of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Say,
    /// It is the first that is not said.
    SayThatThereAreMore,
    Silence,
}

#[derive(Debug, Default)]
pub(super) struct Notices {
    said: HashMap<Kind, HashSet<String>>,
    left_out: usize,
    more: HashSet<Kind>,
}

impl Notices {
    pub(super) fn judge(&mut self, kind: Kind, text: &str) -> Verdict {
        let said = self.said.entry(kind).or_default();
        if said.contains(text) {
            return Verdict::Silence;
        }
        if said.len() < MOST {
            said.insert(text.to_owned());
            return Verdict::Say;
        }
        self.left_out += 1;
        if self.more.insert(kind) {
            Verdict::SayThatThereAreMore
        } else {
            Verdict::Silence
        }
    }

    /// How many were not said, those of the same text included.
    pub(super) fn left_out(&self) -> usize {
        self.left_out
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn the_first_few_of_each_kind_are_said_once_and_the_rest_is_counted() {
        let mut notices = Notices::default();
        let mut judge = |event: Event| {
            let kind = Kind::of(&event).unwrap();
            notices.judge(kind, &event.to_string())
        };
        let special =
            |number: usize| Event::File(PathBuf::from(format!("/{number}")), FileProblem::Special);
        for number in 0..MOST {
            assert_eq!(judge(special(number)), Verdict::Say);
            assert_eq!(judge(special(number)), Verdict::Silence);
        }
        assert_eq!(judge(special(100)), Verdict::SayThatThereAreMore);
        assert_eq!(judge(special(101)), Verdict::Silence);
        let other = Event::File(PathBuf::from("/0"), FileProblem::TooLarge);
        assert_eq!(judge(other), Verdict::Say);
        let watch = |path: &str| Notice::WatchRefused { path: path.into() };
        assert_eq!(judge(Event::Program(watch("/0"))), Verdict::Say);
        assert_eq!(notices.left_out(), 2);
        // What is remembered does not grow with what happens.
        let remembered: usize = notices.said.values().map(HashSet::len).sum();
        assert_eq!(remembered, MOST + 2);
        assert_eq!(Kind::of(&Event::TargetGone), None);
    }
}
